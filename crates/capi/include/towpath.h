/*
 * towpath: sockets on a TCP/IP stack in this process.
 *
 * Calls have the shapes, constants, structures and errors of POSIX and Linux; the instance comes
 * first. They return -1 and set errno on errors. Memory belongs to the caller before, during and
 * after each call, except for what is sent with MSG_ZEROCOPY on a socket with SO_ZEROCOPY: it is
 * lent, and must stay readable until a notice on the error queue (recvmsg with MSG_ERRQUEUE) tells
 * that it is the caller's again, for what towpath_recvmsg_lent() hands out, and for operations of event
 * queues. All calls may be made by any thread, those on event queues by one at a time; none raises SIGPIPE.
 *
 * Structures of this header may get fields behind those that they have. So the library is told how long they are, as
 * the program was compiled: in a field (struct towpath_config), with the call (towpath_get_stats()), in `len` of an
 * operation (struct towpath_transfer, struct towpath_lent), or, for arrays, by the functions whose names end in _sized,
 * which inline functions call for programs in C and C++. `size` is that of one element there. What an older program
 * does not know is as if it were 0, and is not told. What a newer program has set that the library does not know is
 * E2BIG, of that structure alone; else all works, and fields that the library does not know are told as 0. A size that
 * no version has is EINVAL, one above 4096 E2BIG. Structures within others stay as they are.
 */
#ifndef TOWPATH_H
#define TOWPATH_H

#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header; a number that later versions exceed. */
#define TOWPATH_MAKE_VERSION(major, minor, patch) ((unsigned int)(major) << 16 | (minor) << 8 | (patch))
#define TOWPATH_VERSION_MAJOR 0
#define TOWPATH_VERSION_MINOR 1
#define TOWPATH_VERSION_PATCH 0
#define TOWPATH_VERSION \
	TOWPATH_MAKE_VERSION(TOWPATH_VERSION_MAJOR, TOWPATH_VERSION_MINOR, TOWPATH_VERSION_PATCH)

/* That of the library that is in use, as TOWPATH_VERSION of its header. */
unsigned int towpath_version(void);

/* A stack, its memory and its descriptors. */
struct towpath;

/*
 * Makes an instance whose packets the caller moves. `addresses` are its addresses as text, each
 * with the length of its link's prefix ("192.0.2.1/24"), separated by spaces; `mtu` is the
 * largest IP packet. NULL with errno if an argument is wrong.
 */
struct towpath *towpath_new(const char *addresses, int mtu);
/*
 * Waits until the peers have acknowledged all that was written, on open and on closed sockets, and the end of
 * those that were shut down or closed; or until nothing more can arrive, as when a connection is reset. `timeout`
 * is in milliseconds; -1 is for as long as it takes. ETIMEDOUT: something is left; towpath_get_stats() tells how
 * much (`sending`, `unacknowledged_bytes`), and it goes on its way. Of an instance made by towpath_new(), other
 * threads move the packets meanwhile.
 */
int towpath_finish(struct towpath *instance, int timeout);
/*
 * Closes all sockets and ends an instance, with its thread if it has one. Nobody may use it any more. As with the
 * kernel's sockets when a program ends, what was written before is still sent: this waits as towpath_finish(), for
 * as long as `linger` of struct towpath_config says, 5 seconds by default; what has not arrived by then is lost.
 * It waits for nothing if the instance was made by towpath_new(), as nobody could move its packets. NULL is a
 * no-op. In the child of a fork instances are the parent's: this does nothing, other calls fail with EPERM.
 */
void towpath_free(struct towpath *instance);

/* What an attached instance is told. Zero in a field stands for the default. */
struct towpath_config {
	/* sizeof(struct towpath_config), so that later versions may add fields. */
	size_t size;
	/* As for towpath_new(). */
	const char *addresses;
	/* Next hops for what is not on the link: at most one of each family, or NULL. */
	const char *gateways;
	/* Bytes of packet memory; 64 MiB by default. */
	size_t memory;
	/* Largest IP packet; 1500 by default. That of the interface is for its owner to set. */
	unsigned int mtu;
	/* Link-layer address; one is made up by default. */
	unsigned char mac[6];
	/* Zero. */
	unsigned char reserved[6];
	/* Bytes of files in memory that TOWPATH_SENDFILE sends; 64 MiB by default. */
	size_t file_cache;
	/* Milliseconds that towpath_free() waits for what was written; 5000 by default, -1 for none. */
	int linger;
	/* Zero. */
	int more_reserved;
};

/*
 * Makes an instance on the TAP interface `name` of this network namespace (which is made if it is
 * not there), and a thread in this process that drives it: calls then block, wait and time out in
 * real time. NULL with errno on errors.
 */
struct towpath *towpath_attach(const char *name, const struct towpath_config *config);
/*
 * The same on an open file of /dev/net/tun, attached with IFF_TAP | IFF_NO_PI | IFF_VNET_HDR. The
 * instance uses a duplicate; the file becomes non-blocking.
 */
struct towpath *towpath_attach_fd(int fd, const struct towpath_config *config);

/*
 * For instances made by towpath_new(). Gives the instance an IP packet, as if its device had
 * received it.
 */
int towpath_input(struct towpath *instance, const void *packet, size_t len);
/* Takes the next IP packet that leaves; 0 if there is none. What does not fit is cut off. */
ssize_t towpath_output(struct towpath *instance, void *packet, size_t len);
/* Runs the timers that are due; milliseconds until the next, or -1 if there is none. */
int towpath_run_timers(struct towpath *instance);

int towpath_socket(struct towpath *instance, int domain, int type, int protocol);
int towpath_bind(struct towpath *instance, int fd, const struct sockaddr *address,
		 socklen_t len);
int towpath_listen(struct towpath *instance, int fd, int backlog);
int towpath_accept(struct towpath *instance, int fd, struct sockaddr *address,
		   socklen_t *len);
int towpath_accept4(struct towpath *instance, int fd, struct sockaddr *address,
		    socklen_t *len, int flags);
int towpath_connect(struct towpath *instance, int fd, const struct sockaddr *address,
		    socklen_t len);
int towpath_shutdown(struct towpath *instance, int fd, int how);
/*
 * Its number is free at once. What was written is still sent: the instance goes on with it, until towpath_free().
 * With SO_LINGER and a time, the call waits until the peer has acknowledged all, the end too, or that time is over;
 * with a time of 0, or with received bytes that nobody has read, the connection is reset and the rest is lost.
 */
int towpath_close(struct towpath *instance, int fd);

ssize_t towpath_read(struct towpath *instance, int fd, void *buffer, size_t len);
ssize_t towpath_readv(struct towpath *instance, int fd, const struct iovec *pieces,
		      int count);
ssize_t towpath_recv(struct towpath *instance, int fd, void *buffer, size_t len, int flags);
ssize_t towpath_recvfrom(struct towpath *instance, int fd, void *buffer, size_t len,
			 int flags, struct sockaddr *address, socklen_t *address_len);
ssize_t towpath_recvmsg(struct towpath *instance, int fd, struct msghdr *message, int flags);
struct mmsghdr;
int towpath_recvmmsg(struct towpath *instance, int fd, struct mmsghdr *messages,
		     unsigned int count, int flags, struct timespec *timeout);
/*
 * As towpath_recvmsg(), but copies nothing: fills msg_iov, which has room for msg_iovlen pieces, with
 * the addresses and lengths of what was received, and msg_iovlen with their number. They may be read,
 * not written, and stay as they are until towpath_return() is called with the token, whatever becomes
 * of the socket; the token is 0 if there are none. What is held takes room of the receive buffer; if
 * it is too much, the call fails with ENOBUFS and copying calls go on. A datagram in more pieces than
 * there is room for stays (EMSGSIZE). Of the flags, MSG_DONTWAIT is known.
 *
 * On sockets of AF_PACKET and of AF_INET with SOCK_RAW the first piece is the caller's room for headers, at least
 * TOWPATH_HEADERS_MAX bytes (EMSGSIZE). They are copied into it, and its length becomes how many they are.
 */
#define TOWPATH_HEADERS_MAX 256
ssize_t towpath_recvmsg_lent(struct towpath *instance, int fd, struct msghdr *message,
			     int flags, uint64_t *token);
/* Gives back what such a call handed out: EINVAL if there is nothing with this token. */
int towpath_return(struct towpath *instance, uint64_t token);
ssize_t towpath_write(struct towpath *instance, int fd, const void *buffer, size_t len);
ssize_t towpath_writev(struct towpath *instance, int fd, const struct iovec *pieces,
		       int count);
ssize_t towpath_send(struct towpath *instance, int fd, const void *buffer, size_t len,
		     int flags);
ssize_t towpath_sendto(struct towpath *instance, int fd, const void *buffer, size_t len,
		       int flags, const struct sockaddr *address, socklen_t address_len);
ssize_t towpath_sendmsg(struct towpath *instance, int fd, const struct msghdr *message,
			int flags);
int towpath_sendmmsg(struct towpath *instance, int fd, struct mmsghdr *messages,
		     unsigned int count, int flags);

/*
 * When lent memory comes back at the latest, in milliseconds after the call that lent it: an int at
 * SOL_SOCKET, for the calls from then on; 0, the default, is no such time. As a control message of
 * towpath_sendmsg() it is that call's, if it is not 0. What is still needed then is copied, and the
 * notice says SO_EE_CODE_ZEROCOPY_COPIED.
 */
#define TOWPATH_SO_ZEROCOPY_TERM 0x7001
/*
 * Asks for the memory of the calls `first` to `last` of a socket at once; notices tell of them as
 * ever. 0 if none of it is used any more. EAGAIN, ENOMEM: not yet, but soon.
 */
int towpath_recall(struct towpath *instance, int fd, uint32_t first, uint32_t last);
/*
 * How much sockets may lend from now on; a call beyond that fails with ENOBUFS. `notices` is bytes of
 * the notices of each socket, 768 for one, from the call until it is read: 131072 at first
 * (net.core.optmem_max of Linux). `memory` is bytes that all sockets of the instance lend at a time,
 * of each call its whole pages and two more, until they come back: at first SIZE_MAX, for no limit
 * (RLIMIT_MEMLOCK of Linux, which the library does not look at).
 */
int towpath_limit_lent(struct towpath *instance, size_t notices, size_t memory);

/*
 * What an instance has lent and copied so far: bytes of payload, unless a field says otherwise.
 * copied / carried are the copies per byte, hits / lent is the part of zero-copy sends that was one.
 */
struct towpath_stats {
	/* Passed between the program and the stack, each way. */
	uint64_t carried;
	/* Copied in all; the fields copied_... tell where. */
	uint64_t copied;
	/* Sent with MSG_ZEROCOPY, and what of that was not copied after all (at least). */
	uint64_t lent;
	uint64_t hits;
	/* Lent now: calls that no notice tells of yet, their bytes, microseconds since the first. */
	uint64_t lent_calls;
	uint64_t lent_bytes;
	uint64_t oldest_us;
	/* How often a term ended a loan: a count. */
	uint64_t terms_fired;
	/* For readers that need one stretch; quoted in ICMP errors. */
	uint64_t copied_linearise;
	uint64_t copied_icmp_quote;
	/* By calls that send and receive with a copy. */
	uint64_t copied_socket_send;
	uint64_t copied_socket_receive;
	/* Datagrams in too many fragments; lent memory that came back early. */
	uint64_t copied_squeeze;
	uint64_t copied_recall;
	/* Small pieces put together; before checksums made here. */
	uint64_t copied_pack;
	uint64_t copied_checksum;
	/*
	 * Counts: ranges of memory that came back early, by a term or because they were asked for; how
	 * often there was no memory for the copy that this needs, which is tried again; packets that
	 * were dropped as the device is gone.
	 */
	uint64_t recalls;
	uint64_t recalls_starved;
	uint64_t dropped_link_gone;
	/* Of files that TOWPATH_SENDFILE sends: bytes read into memory. */
	uint64_t copied_file;
	/*
	 * Memory that files take now, in bytes. Counts of blocks: wanted and there; read; read for one
	 * send alone, as all memory was lent; given up for others.
	 */
	uint64_t file_cache_bytes;
	uint64_t file_cache_hits;
	uint64_t file_cache_misses;
	uint64_t file_cache_private;
	uint64_t file_cache_evicted;
	/* Count: of blocks that were read past the kernel's cache, which is no copy. */
	uint64_t file_cache_direct;
	/* Count: of packets that the device refused, such as those whose lent memory was unmapped. */
	uint64_t refused_by_device;
	/*
	 * Now: connections, open or closed by the program, whose peer has not acknowledged all that was
	 * written, or the end; and bytes of that.
	 */
	uint64_t sending;
	uint64_t unacknowledged_bytes;
};
/*
 * Fills `stats`. `size` is sizeof(struct towpath_stats), so that later versions may add fields; what
 * the library does not know becomes zero. EINVAL, E2BIG: no size of this structure.
 */
int towpath_get_stats(struct towpath *instance, struct towpath_stats *stats, size_t size);

/* From a file of the kernel's to a socket; between a socket and a pipe of the kernel's. */
ssize_t towpath_sendfile(struct towpath *instance, int to, int from, off_t *offset,
			 size_t count);
ssize_t towpath_splice(struct towpath *instance, int from, int64_t *from_offset, int to,
		       int64_t *to_offset, size_t count, unsigned int flags);

int towpath_getsockname(struct towpath *instance, int fd, struct sockaddr *address,
			socklen_t *len);
int towpath_getpeername(struct towpath *instance, int fd, struct sockaddr *address,
			socklen_t *len);
int towpath_setsockopt(struct towpath *instance, int fd, int level, int name,
		       const void *value, socklen_t len);
int towpath_getsockopt(struct towpath *instance, int fd, int level, int name, void *value,
		       socklen_t *len);
int towpath_fcntl(struct towpath *instance, int fd, int command, int argument);
int towpath_ioctl(struct towpath *instance, int fd, unsigned long request, int *argument);

/* On descriptors of this instance only. */
int towpath_poll(struct towpath *instance, struct pollfd *entries, nfds_t count,
		 int timeout);
int towpath_epoll_create1(struct towpath *instance, int flags);
int towpath_epoll_ctl(struct towpath *instance, int set, int operation, int fd,
		      struct epoll_event *event);
int towpath_epoll_wait(struct towpath *instance, int set, struct epoll_event *events,
		       int max, int timeout);

/*
 * Event queues: one place to wait for sockets of instances, descriptors of the kernel, timers,
 * signals, ends of processes, changes of files and other threads. A queue belongs to no instance;
 * sockets of several may be in one.
 *
 * One thread at a time uses a queue; a call that finds another one in it fails with EBUSY. Any
 * thread may call towpath_queue_notify(). In the child of a fork all calls but
 * towpath_queue_close() fail with EPERM.
 */
struct towpath_queue;

/* How the kernel is asked. By default by io_uring where it is allowed, else by epoll. */
#define TOWPATH_QUEUE_EPOLL 1u
#define TOWPATH_QUEUE_IO_URING 2u

/* Makes a queue with one of the two, or 0. NULL with errno if it is not to be had. */
struct towpath_queue *towpath_queue_new(unsigned int back_end);
/*
 * Ends a queue and its operations; nobody may use it any more then, and all memory is the caller's. NULL is
 * nothing. EBUSY: another thread uses it, or memory of operations was not back within a second: the queue is
 * still there.
 */
int towpath_queue_close(struct towpath_queue *queue);
/* Which back end it has. */
int towpath_queue_back_end(struct towpath_queue *queue);
/*
 * A descriptor of the kernel that is readable while there are events, for another loop; it may be so a
 * moment longer. The caller closes it. Good as long as the queue is there.
 */
int towpath_queue_fd(struct towpath_queue *queue);

/* What is done to a registration. */
#define TOWPATH_ADD 1
#define TOWPATH_MODIFY 2
#define TOWPATH_REMOVE 3

/* What is registered. */
#define TOWPATH_SOURCE_FD 1
#define TOWPATH_SOURCE_TIMER 2
#define TOWPATH_SOURCE_USER 3
#define TOWPATH_SOURCE_SIGNAL 4
#define TOWPATH_SOURCE_CHILD 5
#define TOWPATH_SOURCE_FILE 6

/* it_value of a timer is a moment of CLOCK_MONOTONIC, not a time from now on. */
#define TOWPATH_ABSTIME 1u

/* As struct itimerspec, which programs in strict C11 do not have. */
struct towpath_times {
	struct timespec it_interval;
	struct timespec it_value;
};

/* One change of a queue's registrations. What a change does not need is zero. */
struct towpath_change {
	/* TOWPATH_ADD, TOWPATH_MODIFY (of descriptors and timers), TOWPATH_REMOVE. */
	int command;
	/* Filled in: 0, or why the change was not made. */
	int error;
	/* Names the registration, and no other ever (ESTALE once it is over). TOWPATH_ADD fills it in. */
	uint64_t id;
	/* TOWPATH_SOURCE_FD or another source; not needed by TOWPATH_REMOVE. */
	int source;
	/*
	 * Of a descriptor EPOLLIN, EPOLLOUT, and EPOLLET or EPOLLONESHOT; without those two it is told as
	 * long as it holds. Of a timer TOWPATH_ABSTIME.
	 */
	uint32_t events;
	/*
	 * The descriptor, signal or process. Of a descriptor of the kernel's the queue keeps a duplicate
	 * until the registration is removed; closing it is not enough.
	 */
	int ident;
	unsigned int reserved;
	/* Of a descriptor: the instance that it is one of, or NULL for the kernel's. */
	struct towpath *instance;
	/* Of a file or directory: its path. */
	const char *path;
	/* Of a timer: when, and how often then, or 0 for once. A modified one keeps its it_interval. */
	struct towpath_times timer;
	/* Comes with the events. */
	epoll_data_t data;
};

/*
 * Makes changes in order; one that fails does not keep the others from being made. Returns how many were
 * made; the others have an error. What holds already is told by the next wait.
 */
int towpath_queue_change_sized(struct towpath_queue *queue, struct towpath_change *changes, int count, size_t size);

static inline int towpath_queue_change(struct towpath_queue *queue, struct towpath_change *changes, int count)
{
	return towpath_queue_change_sized(queue, changes, count, sizeof(*changes));
}

/* What a queue does with sockets of instances and of the kernel, and with files of the kernel's. */
#define TOWPATH_CONNECT 1
#define TOWPATH_ACCEPT 2
#define TOWPATH_RECV 3
#define TOWPATH_SEND 4
#define TOWPATH_READ 5
#define TOWPATH_WRITE 6
#define TOWPATH_FSYNC 7
#define TOWPATH_FDATASYNC 8
#define TOWPATH_RECVMSG 9
#define TOWPATH_SENDMSG 10
#define TOWPATH_SENDFILE 11
#define TOWPATH_RECVFILE 12
#define TOWPATH_SPLICE 13
#define TOWPATH_RECV_MULTISHOT 14
#define TOWPATH_RECVMSG_LENT 15

/* Most bytes that TOWPATH_RECVFILE and TOWPATH_SPLICE can have left over. */
#define TOWPATH_REST_MAX (128 << 10)

/* What is moved between a stream and a file of the kernel's, or another stream. What is not needed is zero. */
struct towpath_transfer {
	/* The file; of TOWPATH_SPLICE the stream that the bytes are sent on. */
	int fd;
	unsigned int reserved;
	/* Of TOWPATH_SPLICE: the instance that this stream is one of, or NULL for the kernel's. Else NULL. */
	struct towpath *instance;
	/* Where in the file, and how many bytes: no more of a file than this; fewer if the source ends. */
	off_t offset;
	uint64_t count;
	/* TOWPATH_SENDFILE: what goes before and behind, which is copied by the call that submits it. */
	const void *header;
	size_t header_len;
	const void *trailer;
	size_t trailer_len;
	/* Others: where what was taken and has not arrived goes if it fails. It is the operation's until then. */
	void *rest;
	size_t rest_len;
};

/* What TOWPATH_RECVMSG_LENT receives. */
struct towpath_lent {
	/* As with towpath_recvmsg_lent(). */
	struct msghdr message;
	/* Filled in, first with 0: what towpath_return() is called with. */
	uint64_t token;
};

/* One operation. What it does not need is zero. */
struct towpath_operation {
	/* TOWPATH_CONNECT or another. */
	int operation;
	/* Filled in: 0, or why it was not begun. */
	int error;
	/* Filled in: names the operation, and no other ever. */
	uint64_t id;
	/* The descriptor, and the instance that it is one of; NULL for a file or a socket of the kernel's. */
	struct towpath *instance;
	int fd;
	/*
	 * TOWPATH_ACCEPT: SOCK_NONBLOCK, SOCK_CLOEXEC. TOWPATH_RECV: MSG_WAITALL. TOWPATH_RECVMSG: MSG_PEEK, MSG_TRUNC.
	 * TOWPATH_SEND: MSG_ZEROCOPY, to lend to the kernel, too, where it can be lent.
	 */
	int flags;
	/*
	 * TOWPATH_CONNECT: the address, and of operations that move a struct towpath_transfer, which are read by
	 * the call that submits them. TOWPATH_RECVMSG, TOWPATH_SENDMSG: a struct msghdr. TOWPATH_RECVMSG_LENT: a struct
	 * towpath_lent. Others: memory. That and
	 * the message, with all that it names, is the operation's until TOWPATH_DONE: nobody writes what is sent or
	 * written, nobody uses what is received or read into.
	 */
	void *buffer;
	size_t len;
	/* TOWPATH_READ, TOWPATH_WRITE: where in the file. */
	off_t offset;
	/* TOWPATH_RECV_MULTISHOT: whose buffers it fills. */
	int group;
	unsigned int reserved;
	/* The moment of CLOCK_MONOTONIC at which it is cancelled (ETIMEDOUT), or NULL. */
	const struct timespec *deadline;
	/* Comes with the events. */
	epoll_data_t data;
};

/*
 * These fill an operation: what they are not told is zero. `deadline` and `data` are the caller's to set afterwards.
 * `instance` is NULL for a socket of the kernel's. Flags are those of struct towpath_operation.
 */

static inline void towpath_prep_operation(struct towpath_operation *operation, int what, struct towpath *instance,
					  int fd)
{
	memset(operation, 0, sizeof(*operation));
	operation->operation = what;
	operation->instance = instance;
	operation->fd = fd;
}

static inline void towpath_prep_connect(struct towpath_operation *operation, struct towpath *instance, int fd,
					const struct sockaddr *address, socklen_t len)
{
	towpath_prep_operation(operation, TOWPATH_CONNECT, instance, fd);
	operation->buffer = (void *)(uintptr_t)address;
	operation->len = len;
}

/* One connection after the other. */
static inline void towpath_prep_accept(struct towpath_operation *operation, struct towpath *instance, int fd,
				       int flags)
{
	towpath_prep_operation(operation, TOWPATH_ACCEPT, instance, fd);
	operation->flags = flags;
}

static inline void towpath_prep_recv(struct towpath_operation *operation, struct towpath *instance, int fd,
				     void *buffer, size_t len, int flags)
{
	towpath_prep_operation(operation, TOWPATH_RECV, instance, fd);
	operation->buffer = buffer;
	operation->len = len;
	operation->flags = flags;
}

/* Again and again, into buffers of a group. */
static inline void towpath_prep_recv_multishot(struct towpath_operation *operation, struct towpath *instance,
					       int fd, int group)
{
	towpath_prep_operation(operation, TOWPATH_RECV_MULTISHOT, instance, fd);
	operation->group = group;
}

static inline void towpath_prep_recvmsg(struct towpath_operation *operation, struct towpath *instance, int fd,
					struct msghdr *message, int flags)
{
	towpath_prep_operation(operation, TOWPATH_RECVMSG, instance, fd);
	operation->buffer = message;
	operation->len = sizeof(*message);
	operation->flags = flags;
}

/* Without a copy. */
static inline void towpath_prep_recvmsg_lent(struct towpath_operation *operation, struct towpath *instance, int fd,
					     struct towpath_lent *lent)
{
	towpath_prep_operation(operation, TOWPATH_RECVMSG_LENT, instance, fd);
	operation->buffer = lent;
	operation->len = sizeof(*lent);
}

static inline void towpath_prep_send(struct towpath_operation *operation, struct towpath *instance, int fd,
				     const void *buffer, size_t len)
{
	towpath_prep_operation(operation, TOWPATH_SEND, instance, fd);
	operation->buffer = (void *)(uintptr_t)buffer;
	operation->len = len;
}

/* Lends to the kernel, too, where it can be lent; to instances each send lends. */
static inline void towpath_prep_send_zc(struct towpath_operation *operation, struct towpath *instance, int fd,
					const void *buffer, size_t len)
{
	towpath_prep_send(operation, instance, fd, buffer, len);
	operation->flags = MSG_ZEROCOPY;
}

static inline void towpath_prep_sendmsg(struct towpath_operation *operation, struct towpath *instance, int fd,
					const struct msghdr *message)
{
	towpath_prep_operation(operation, TOWPATH_SENDMSG, instance, fd);
	operation->buffer = (void *)(uintptr_t)message;
	operation->len = sizeof(*message);
}

/* On files of the kernel's. */
static inline void towpath_prep_read(struct towpath_operation *operation, int fd, void *buffer, size_t len,
				     off_t offset)
{
	towpath_prep_operation(operation, TOWPATH_READ, NULL, fd);
	operation->buffer = buffer;
	operation->len = len;
	operation->offset = offset;
}

static inline void towpath_prep_write(struct towpath_operation *operation, int fd, const void *buffer, size_t len,
				      off_t offset)
{
	towpath_prep_operation(operation, TOWPATH_WRITE, NULL, fd);
	operation->buffer = (void *)(uintptr_t)buffer;
	operation->len = len;
	operation->offset = offset;
}

static inline void towpath_prep_fsync(struct towpath_operation *operation, int fd)
{
	towpath_prep_operation(operation, TOWPATH_FSYNC, NULL, fd);
}

static inline void towpath_prep_fdatasync(struct towpath_operation *operation, int fd)
{
	towpath_prep_operation(operation, TOWPATH_FDATASYNC, NULL, fd);
}

/*
 * The following fill `transfer`, too, which is read by the call that submits them: `header`, `trailer` and `rest` are the
 * caller's to set afterwards.
 */
static inline void towpath_prep_transfer(struct towpath_operation *operation, int what, struct towpath *instance,
					 int fd, struct towpath_transfer *transfer)
{
	towpath_prep_operation(operation, what, instance, fd);
	memset(transfer, 0, sizeof(*transfer));
	operation->buffer = transfer;
	operation->len = sizeof(*transfer);
}

/* Sends `count` bytes of a file. */
static inline void towpath_prep_sendfile(struct towpath_operation *operation, struct towpath *instance, int fd,
					 struct towpath_transfer *transfer, int file, off_t offset, uint64_t count)
{
	towpath_prep_transfer(operation, TOWPATH_SENDFILE, instance, fd, transfer);
	transfer->fd = file;
	transfer->offset = offset;
	transfer->count = count;
}

/* Writes what is received to a file. */
static inline void towpath_prep_recvfile(struct towpath_operation *operation, struct towpath *instance, int fd,
					 struct towpath_transfer *transfer, int file, off_t offset, uint64_t count)
{
	towpath_prep_transfer(operation, TOWPATH_RECVFILE, instance, fd, transfer);
	transfer->fd = file;
	transfer->offset = offset;
	transfer->count = count;
}

/* Sends on the stream `to_fd` of `to` what is received. */
static inline void towpath_prep_splice(struct towpath_operation *operation, struct towpath *instance, int fd,
				       struct towpath_transfer *transfer, struct towpath *to, int to_fd,
				       uint64_t count)
{
	towpath_prep_transfer(operation, TOWPATH_SPLICE, instance, fd, transfer);
	transfer->fd = to_fd;
	transfer->instance = to;
	transfer->count = count;
}

/*
 * Begins operations in order, and returns how many were begun; the others have an error, and their memory is the
 * caller's. Each ends with one TOWPATH_DONE: only waits carry it on. TOWPATH_ACCEPT tells each connection and
 * TOWPATH_SEND that all was accepted by TOWPATH_PROGRESS before.
 */
int towpath_queue_submit_sized(struct towpath_queue *queue, struct towpath_operation *operations, int count,
			       size_t size);

static inline int towpath_queue_submit(struct towpath_queue *queue, struct towpath_operation *operations, int count)
{
	return towpath_queue_submit_sized(queue, operations, count, sizeof(*operations));
}

/* Asks for the end of an operation, which is told as ever: with ECANCELED, unless it did something before. */
int towpath_queue_cancel(struct towpath_queue *queue, uint64_t id);

/*
 * Lends a group of `count` buffers of `size` bytes each, one behind the other from `memory` on; its number, which is
 * no other's ever. TOWPATH_RECV_MULTISHOT fills one whenever there are bytes, and tells it by TOWPATH_PROGRESS: the
 * buffer is the caller's then, until it is given back. Without a buffer it tells TOWPATH_STARVED, once, and goes on
 * when there is one. The queue keeps the others until the group is removed, or itself is closed.
 */
int towpath_queue_add_group(struct towpath_queue *queue, void *memory, size_t size, int count);
/* Gives the buffer of this number back, the first of which is 0. EINVAL if it is not the caller's. */
int towpath_queue_give(struct towpath_queue *queue, int group, int buffer);
/* Ends a group: all its memory is the caller's. EBUSY while an operation may fill buffers of it. */
int towpath_queue_remove_group(struct towpath_queue *queue, int group);

/* What happened. */
#define TOWPATH_READY 1
#define TOWPATH_EXPIRED 2
#define TOWPATH_NOTIFIED 3
#define TOWPATH_SIGNALLED 4
#define TOWPATH_EXITED 5
#define TOWPATH_CHANGED 6
#define TOWPATH_PROGRESS 7
#define TOWPATH_DONE 8
#define TOWPATH_STARVED 9

/* In `flags`: the registration is over, and its id is stale. */
#define TOWPATH_OVER 1u
/* And with TOWPATH_DONE of a TOWPATH_SEND: some bytes were copied, or all. */
#define TOWPATH_COPIED 2u

/* What became of a file, or of one in a directory. */
#define TOWPATH_CHANGED_MODIFIED 0x01u
#define TOWPATH_CHANGED_ATTRIBUTES 0x02u
#define TOWPATH_CHANGED_WRITTEN 0x04u
#define TOWPATH_CHANGED_CREATED 0x08u
#define TOWPATH_CHANGED_DELETED 0x10u
#define TOWPATH_CHANGED_MOVED 0x20u
#define TOWPATH_CHANGED_REMOVED 0x40u
#define TOWPATH_CHANGED_MISSED 0x80u

struct towpath_event {
	/* Of which registration, and what that was added with. */
	uint64_t id;
	epoll_data_t data;
	/*
	 * TOWPATH_EXPIRED, TOWPATH_NOTIFIED: how often since it was last told. TOWPATH_SIGNALLED: the
	 * signal. TOWPATH_EXITED: the exit code or the signal. TOWPATH_PROGRESS: the descriptor of an accepted
	 * connection, the bytes that were accepted to be sent, or those in a buffer of a group. TOWPATH_DONE:
	 * bytes that were moved, 0 for others, or -1. Between a socket and another or a file it is the bytes also
	 * if not all were moved: then there is an error, too.
	 */
	int64_t result;
	/* TOWPATH_READY or another. */
	int what;
	/* Of an operation that failed, why; else 0. */
	int error;
	/*
	 * TOWPATH_READY: EPOLLIN and others. TOWPATH_SIGNALLED: the process that sent it, or 0.
	 * TOWPATH_EXITED: CLD_EXITED, CLD_KILLED, or 0 if it was waited for already or is no child.
	 * TOWPATH_CHANGED: TOWPATH_CHANGED_MODIFIED and others. TOWPATH_DONE: how many bytes are left over.
	 * TOWPATH_PROGRESS: the number of the buffer.
	 */
	uint32_t detail;
	/* TOWPATH_OVER, TOWPATH_COPIED. */
	uint32_t flags;
};

/*
 * Waits until there are at least `min` events, or `deadline`, a moment of CLOCK_MONOTONIC, has passed; NULL
 * is never. Fills in those that there are, `max` at most, and returns how many: 0 after the deadline. With a
 * `min` of 0 it does not sleep. Signals that are handled do not end it.
 */
int towpath_queue_wait_sized(struct towpath_queue *queue, struct towpath_event *events, int min, int max,
			     const struct timespec *deadline, size_t size);

static inline int towpath_queue_wait(struct towpath_queue *queue, struct towpath_event *events, int min, int max,
				     const struct timespec *deadline)
{
	return towpath_queue_wait_sized(queue, events, min, max, deadline, sizeof(*events));
}

/* Causes an event of a TOWPATH_SOURCE_USER, from any thread. */
int towpath_queue_notify(struct towpath_queue *queue, uint64_t id);

#ifdef __cplusplus
}
#endif

#endif
