/*
 * towpath: sockets on a TCP/IP stack in this process.
 *
 * Calls have the names, constants, structures and errors of POSIX and Linux, with the instance as
 * the first argument. On an error a call returns -1 (NULL where it returns a pointer) and sets
 * errno. A NULL instance, or a NULL pointer where memory is needed, fails with EFAULT. A descriptor
 * that does not belong to the instance fails with EBADF. No call raises SIGPIPE.
 *
 * Threads: any thread may make any call. An event queue is used by one thread at a time.
 *
 * Signals: a handler that interrupts a call of this library should make none. A call that it makes
 * while the interrupted one has the lock of an instance fails with EDEADLK. If the handler then
 * leaves with longjmp(), the lock stays taken: all later calls of that thread fail with EDEADLK,
 * and calls of other threads on the instance do not return.
 *
 * Memory: buffers belong to the caller before, during and after each call, with three exceptions.
 * Memory sent with MSG_ZEROCOPY on a socket with SO_ZEROCOPY is lent: it must stay readable until a
 * notice on the error queue (recvmsg with MSG_ERRQUEUE) returns it. Memory that
 * towpath_recvmsg_lent() hands out belongs to the instance. Memory of an event queue's operation
 * belongs to the operation until TOWPATH_DONE.
 *
 * Versions: later versions may append fields to the structures of this header. The program
 * therefore passes the size of each structure as it was compiled: in a field (struct
 * towpath_config), as an argument (towpath_get_stats()), in `len` of an operation (struct
 * towpath_transfer, struct towpath_lent) or, for arrays, through the functions whose names end in
 * _sized, where `size` is the size of one element. Inline functions pass it for programs in C and
 * C++. Fields that an older program does not know count as 0 and are not filled in. If a newer
 * program sets a field that the library does not know, that structure fails with E2BIG; otherwise
 * everything works, and the library fills in 0 for fields that it does not know. A size that no
 * version of the structure has fails with EINVAL, a size above 4096 with E2BIG. Structures within
 * other structures never change.
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

/* The version of this header as one number, which grows with each version. */
#define TOWPATH_MAKE_VERSION(major, minor, patch) ((unsigned int)(major) << 16 | (minor) << 8 | (patch))
#define TOWPATH_VERSION_MAJOR 0
#define TOWPATH_VERSION_MINOR 1
#define TOWPATH_VERSION_PATCH 0
#define TOWPATH_VERSION \
	TOWPATH_MAKE_VERSION(TOWPATH_VERSION_MAJOR, TOWPATH_VERSION_MINOR, TOWPATH_VERSION_PATCH)

/* Returns the version of the library in use, encoded like TOWPATH_VERSION. Cannot fail. */
unsigned int towpath_version(void);

/* An instance: a TCP/IP stack with its memory and its descriptors. */
struct towpath;

/*
 * Makes an instance whose packets the caller moves with towpath_input(), towpath_output() and
 * towpath_run_timers(). `addresses` lists its addresses as text, separated by spaces, each with its
 * prefix length ("192.0.2.1/24 2001:db8::1/64"). `mtu` is the size of the largest IP packet in
 * bytes. Both are read during the call only. The caller ends the instance with towpath_free().
 *
 * Returns NULL on errors: EINVAL (an address or the MTU is invalid), EFAULT.
 */
struct towpath *towpath_new(const char *addresses, int mtu);
/*
 * Waits until the peers have acknowledged all data written and the FIN of each socket that was
 * closed or shut down, or until nothing more can arrive, as after a reset. Closed sockets count,
 * too. `timeout` is in milliseconds; -1 waits without a limit. If the instance was made by
 * towpath_new(), other threads have to move its packets meanwhile.
 *
 * Returns 0, or -1 with ETIMEDOUT if data is left: `sending` and `unacknowledged_bytes` of
 * towpath_get_stats() report how much. The instance continues to send it.
 */
int towpath_finish(struct towpath *instance, int timeout);
/*
 * Closes all sockets and ends an instance, with its thread if it has one. No thread may use the
 * instance afterwards. Data written before is still sent, as the kernel does when a program exits:
 * the call waits as towpath_finish() does, for at most the `linger` of struct towpath_config
 * (default 5 seconds). Data that has not arrived by then is lost. An instance made by towpath_new()
 * is not waited for, because nothing could move its packets.
 *
 * NULL is a no-op. In the child of a fork, instances still belong to the parent: this call does
 * nothing there, and all other calls fail with EPERM.
 */
void towpath_free(struct towpath *instance);

/* Configuration of an attached instance. Zero in a field selects the default. */
struct towpath_config {
	/* sizeof(struct towpath_config), always. */
	size_t size;
	/* Addresses with prefix lengths, as for towpath_new(). Not optional. */
	const char *addresses;
	/*
	 * Next hops for destinations that are not on the link, as text: at most one of each family.
	 * NULL for none.
	 */
	const char *gateways;
	/* Bytes of packet memory; 64 MiB by default. */
	size_t memory;
	/*
	 * Size of the largest IP packet in bytes; default 1500. The program sets the MTU of the
	 * interface.
	 */
	unsigned int mtu;
	/* Link-layer address, unicast; random by default. */
	unsigned char mac[6];
	/* Must be zero. */
	unsigned char reserved[6];
	/*
	 * Bytes of memory that caches files for TOWPATH_SENDFILE and towpath_sendfile(); default
	 * 64 MiB.
	 */
	size_t file_cache;
	/* Milliseconds that towpath_free() waits for unsent data; default 5000, -1 for no wait. */
	int linger;
	/*
	 * 1: sockets begin with TOWPATH_SO_ZEROCOPY_AUTO, so that a program which sends with
	 * MSG_ZEROCOPY lends only where that costs less. Default 0.
	 */
	int zerocopy_auto;
};

/*
 * Makes an instance on the TAP interface `name` of this network namespace. Creates the interface if
 * it does not exist, and a thread in this process that drives the instance: calls block and time
 * out in real time. The thread blocks all signals. `name` and `config` are read during the call
 * only. The program itself brings the interface up and configures the kernel's side. The caller
 * ends the instance with towpath_free().
 *
 * Returns NULL on errors: EINVAL (the configuration or the name is invalid), E2BIG (a field is set
 * that this library does not know), ENODEV (there is no TAP device), EACCES (the device file may
 * not be opened), EPERM (the program may not use the interface), EBUSY (the name is in use),
 * EOPNOTSUPP (the device has no virtio-net header), EFAULT.
 */
struct towpath *towpath_attach(const char *name, const struct towpath_config *config);
/*
 * Makes an instance as towpath_attach() does, on an open file of /dev/net/tun that the caller has
 * attached with IFF_TAP | IFF_NO_PI | IFF_VNET_HDR. The instance uses a duplicate of `fd`; the file
 * becomes non-blocking. The caller may close `fd` after the call. Errors are the same as for
 * towpath_attach(), and EBADF.
 */
struct towpath *towpath_attach_fd(int fd, const struct towpath_config *config);

/*
 * Hands an IP packet to an instance made by towpath_new(), as if its device had received the
 * packet. The packet is copied. Returns 0, or -1: ENOBUFS (no packet memory), EOPNOTSUPP (the
 * instance has a device of its own).
 */
int towpath_input(struct towpath *instance, const void *packet, size_t len);
/*
 * Copies the next IP packet that the instance sends into `packet`, which has room for `len` bytes,
 * and truncates it to that. Returns its length, or 0 if there is none or if the instance has a
 * device of its own.
 */
ssize_t towpath_output(struct towpath *instance, void *packet, size_t len);
/*
 * Runs the timers that are due. Returns the milliseconds until the next timer, rounded up, or -1 if
 * there is none or if the instance has a device of its own.
 */
int towpath_run_timers(struct towpath *instance);

/*
 * The following functions do what the system calls of the same names do, with the same results and
 * errors, on sockets of the instance. Domains are AF_INET, AF_INET6 (SOCK_STREAM, SOCK_DGRAM,
 * SOCK_RAW) and AF_PACKET (SOCK_RAW, SOCK_DGRAM), with SOCK_NONBLOCK and SOCK_CLOEXEC. The
 * descriptors that they return are valid only in calls of the same instance.
 */
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
 * Closes a descriptor, whose number is free at once. Written data is still sent: the instance
 * continues with it until towpath_free(). With SO_LINGER and a time above 0 the call waits until
 * the peer has acknowledged all data and the FIN, or until the time is over, even if the descriptor
 * does not block. With a time of 0, or with received data that was not read, the connection is
 * reset and unsent data is lost. Calls that wait on the socket fail with EBADF. Returns 0, or -1
 * with EBADF.
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
 * Receives a message as towpath_recvmsg() does, without a copy. msg_iov has room for msg_iovlen
 * pieces: the call fills in the address and length of each piece received and sets msg_iovlen to
 * their number. The program may read the pieces but must not write to them. They stay valid until
 * towpath_return() is called with the token, even after the socket was closed, but not beyond
 * towpath_free(). The token is 0 if there is nothing to return. MSG_DONTWAIT is the only flag with
 * a meaning here.
 *
 * Returns the bytes received, or -1. ENOBUFS: pieces that were not returned fill the receive
 * buffer; calls that copy still work. EMSGSIZE: a datagram has more pieces than msg_iov has room
 * for; it stays in the queue. EOPNOTSUPP: a flag is not supported.
 *
 * On sockets of AF_PACKET with SOCK_RAW, and of AF_INET with SOCK_RAW, the first entry of msg_iov
 * names a buffer of the caller for headers, of at least TOWPATH_HEADERS_MAX bytes (EMSGSIZE).
 * Headers that lie outside the pieces are copied there, and the length of the entry is set to their
 * size.
 */
#define TOWPATH_HEADERS_MAX 256
ssize_t towpath_recvmsg_lent(struct towpath *instance, int fd, struct msghdr *message,
			     int flags, uint64_t *token);
/*
 * Returns pieces that towpath_recvmsg_lent() handed out. Any thread may call. Returns 0, or -1 with
 * EINVAL if the token is unknown.
 */
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
 * Socket option at SOL_SOCKET, an int: the term of loans in milliseconds. Lent memory comes back at
 * the latest that long after the call that lent it. The option applies to calls made after it is
 * set; 0, the default, sets no term. As a control message of towpath_sendmsg() it applies to that
 * call alone, unless it is 0. When the term ends, bytes still in use are copied, and the notice has
 * the code SO_EE_CODE_ZEROCOPY_COPIED.
 */
#define TOWPATH_SO_ZEROCOPY_TERM 0x7001
/*
 * Socket option at SOL_SOCKET, an int: the size in bytes of the parts in which memory comes back. A
 * call of more bytes on a stream is then divided: each part takes the next call number and has its
 * own notice, recall, term and share of the limits. Parts have this size, but the last one may be
 * smaller. A call that returns n bytes has taken as many numbers as parts began in them: n divided
 * by the size, rounded up. So a program that sends 1 GiB in one call may reuse the beginning while
 * the call, or the network, is still busy with the rest; another thread can read the notices while
 * the call blocks. At least 65536 (EINVAL); 0, the default, makes each call one part, as in Linux.
 */
#define TOWPATH_SO_ZEROCOPY_PART 0x7002
/*
 * Socket option at SOL_SOCKET, an int: with 1, calls with MSG_ZEROCOPY on a stream lend only if that
 * is expected to cost all threads of the process together less than a copy. The library decides by
 * the size of the call, by how the socket's earlier loans went, and by measuring both ways now and
 * then. A call that copies still takes a number; when it returns, its notice is there, with the
 * code SO_EE_CODE_ZEROCOPY_COPIED. So the program does nothing else than without the option. 0, the
 * default, lends always. Other sockets ignore it. Sockets that a listener accepts inherit it.
 */
#define TOWPATH_SO_ZEROCOPY_AUTO 0x7003
/*
 * Recalls the memory that the zero-copy calls numbered `first` to `last` of a socket have lent.
 * Notices report these calls as usual. Returns 0 if none of the memory is in use any more, or -1.
 * EAGAIN: the memory is being read right now. ENOMEM: there is no memory for a copy. In both cases
 * it comes back later, without another call.
 */
int towpath_recall(struct towpath *instance, int fd, uint32_t first, uint32_t last);
/*
 * Limits how much sockets may lend from now on. A call beyond a limit fails with ENOBUFS.
 *
 * `notices` limits the bytes of notices of each socket. A notice counts 768 bytes, from the call
 * that lends until the program reads it. The default is 131072, as net.core.optmem_max in Linux.
 *
 * `memory` limits the bytes that all sockets of the instance lend at a time. A call counts its
 * whole pages and two more until they come back. The default is SIZE_MAX, no limit. It corresponds
 * to RLIMIT_MEMLOCK in Linux, which the library does not check: lent memory is not locked here, and
 * can be swapped out.
 *
 * Returns 0.
 */
int towpath_limit_lent(struct towpath *instance, size_t notices, size_t memory);

/*
 * Statistics of an instance since it was made. Counters are bytes of payload unless the field says
 * otherwise. copied / carried is the number of copies per byte; hits / lent is the fraction of
 * zero-copy sends that were not copied.
 */
struct towpath_stats {
	/* Bytes passed between the program and the stack, in both directions. */
	uint64_t carried;
	/* Bytes copied in total; the fields copied_... give the reasons. */
	uint64_t copied;
	/* Bytes sent with MSG_ZEROCOPY, and (at least) how many of them were not copied. */
	uint64_t lent;
	uint64_t hits;
	/*
	 * Lent now: calls that no notice has reported yet, their bytes, and microseconds since the
	 * oldest.
	 */
	uint64_t lent_calls;
	uint64_t lent_bytes;
	uint64_t oldest_us;
	/* Count: loans that their term ended. */
	uint64_t terms_fired;
	/* Copied for readers that need contiguous bytes; copied to quote them in ICMP errors. */
	uint64_t copied_linearise;
	uint64_t copied_icmp_quote;
	/* Copied by calls that send and receive with a copy. */
	uint64_t copied_socket_send;
	uint64_t copied_socket_receive;
	/* Copied because a datagram had too many fragments; because lent memory came back early. */
	uint64_t copied_squeeze;
	uint64_t copied_recall;
	/*
	 * Copied to pack small pieces together; copied before checksums are computed in software.
	 */
	uint64_t copied_pack;
	uint64_t copied_checksum;
	/*
	 * Counts: ranges of memory that came back early, by a term or a recall; attempts for which
	 * there was no memory for the copy, which are repeated; packets dropped because the device
	 * is gone.
	 */
	uint64_t recalls;
	uint64_t recalls_starved;
	uint64_t dropped_link_gone;
	/* Bytes of files that TOWPATH_SENDFILE and towpath_sendfile() read into memory. */
	uint64_t copied_file;
	/*
	 * Bytes of memory that files take now. Counts of blocks: found in memory; read; read for
	 * one send only, because all memory was lent; evicted.
	 */
	uint64_t file_cache_bytes;
	uint64_t file_cache_hits;
	uint64_t file_cache_misses;
	uint64_t file_cache_private;
	uint64_t file_cache_evicted;
	/* Count: blocks read past the kernel's page cache (direct I/O), which is not a copy. */
	uint64_t file_cache_direct;
	/*
	 * Count: packets that the device rejected, such as packets whose lent memory was unmapped.
	 */
	uint64_t refused_by_device;
	/*
	 * Now: connections, open or closed by the program, whose peer has not acknowledged all data
	 * or the FIN; the unacknowledged bytes of these connections.
	 */
	uint64_t sending;
	uint64_t unacknowledged_bytes;
};
/*
 * Fills `stats`. `size` is sizeof(struct towpath_stats); fields that the library does not know are
 * set to 0. Returns 0, or -1: EINVAL (the size is 0 or no multiple of 8), E2BIG (the size is above
 * 4096), EFAULT.
 */
int towpath_get_stats(struct towpath *instance, struct towpath_stats *stats, size_t size);

/*
 * As sendfile(2), from a file of the kernel to a socket. `offset` is updated if it is not NULL. A
 * stream is lent more than 16 KiB of a regular file that was not changed in the last two seconds,
 * from memory that all sends share; this thread reads what is missing there. The rest is copied.
 */
ssize_t towpath_sendfile(struct towpath *instance, int to, int from, off_t *offset,
			 size_t count);
/*
 * As splice(2), between a socket of the instance and a pipe of the kernel, in either direction.
 * Both offsets must be NULL (ESPIPE). It does not wait for the pipe with SPLICE_F_NONBLOCK or if
 * the pipe does not block (EAGAIN).
 */
ssize_t towpath_splice(struct towpath *instance, int from, int64_t *from_offset, int to,
		       int64_t *to_offset, size_t count, unsigned int flags);

/*
 * The following functions do what the system calls of the same names do. An option that is not
 * supported fails with ENOPROTOOPT. Commands of fcntl are F_GETFL, F_SETFL, F_GETFD and F_SETFD;
 * requests of ioctl are FIONBIO, FIONREAD, SIOCATMARK, SIOCOUTQ and SIOCOUTQNSD.
 */
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

/*
 * As poll(2) and epoll(7), with EPOLLET and EPOLLONESHOT. Entries and sets may hold descriptors of
 * this instance only; a set cannot hold another set (EPERM).
 */
int towpath_poll(struct towpath *instance, struct pollfd *entries, nfds_t count,
		 int timeout);
int towpath_epoll_create1(struct towpath *instance, int flags);
int towpath_epoll_ctl(struct towpath *instance, int set, int operation, int fd,
		      struct epoll_event *event);
int towpath_epoll_wait(struct towpath *instance, int set, struct epoll_event *events,
		       int max, int timeout);

/*
 * An event queue: one place to wait for sockets of instances, descriptors of the kernel, timers,
 * signals, exits of processes, changes of files, and other threads. A queue belongs to no instance
 * and may hold sockets of several.
 *
 * One thread at a time uses a queue: a call made while another thread is in the queue fails with
 * EBUSY. Any thread may call towpath_queue_notify(). In the child of a fork all calls but
 * towpath_queue_close() fail with EPERM. A NULL queue fails with EFAULT.
 */
struct towpath_queue;

/* Back ends of a queue. By default it uses io_uring where that is allowed, else epoll. */
#define TOWPATH_QUEUE_EPOLL 1u
#define TOWPATH_QUEUE_IO_URING 2u

/*
 * Makes an empty queue with one of the two back ends, or with the default if `back_end` is 0.
 * Returns NULL on errors: EINVAL (no such back end), EPERM (io_uring is forbidden), ENOSYS (the
 * kernel has no suitable io_uring), EMFILE, ENFILE, ENOMEM.
 */
struct towpath_queue *towpath_queue_new(unsigned int back_end);
/*
 * Cancels the operations of a queue and ends it. All memory of operations and groups then belongs
 * to the caller, and no thread may use the queue any more. NULL is a no-op. In the child of a fork
 * it releases the child's copy only. Returns 0, or -1 with EBUSY: another thread uses the queue, or
 * memory of an operation did not come back within a second. The queue still exists then and may be
 * closed again.
 */
int towpath_queue_close(struct towpath_queue *queue);
/* Returns TOWPATH_QUEUE_EPOLL or TOWPATH_QUEUE_IO_URING, or -1. */
int towpath_queue_back_end(struct towpath_queue *queue);
/*
 * Returns a new descriptor of the kernel that is readable while there are events, and possibly a
 * moment longer, so that another event loop can wait for the queue. It is valid until the queue is
 * closed. The caller closes it. Returns -1 on errors: EMFILE and others.
 */
int towpath_queue_fd(struct towpath_queue *queue);

/* Commands of a change. */
#define TOWPATH_ADD 1
#define TOWPATH_MODIFY 2
#define TOWPATH_REMOVE 3

/* Sources of events. */
#define TOWPATH_SOURCE_FD 1
#define TOWPATH_SOURCE_TIMER 2
#define TOWPATH_SOURCE_USER 3
#define TOWPATH_SOURCE_SIGNAL 4
#define TOWPATH_SOURCE_CHILD 5
#define TOWPATH_SOURCE_FILE 6

/* In `events` of a timer: it_value is a time of CLOCK_MONOTONIC, not relative to now. */
#define TOWPATH_ABSTIME 1u

/* Like struct itimerspec, which is not declared for programs in strict C11. */
struct towpath_times {
	struct timespec it_interval;
	struct timespec it_value;
};

/* One change of a queue's registrations. Fields that a change does not need are zero. */
struct towpath_change {
	/* TOWPATH_ADD, TOWPATH_MODIFY (descriptors and timers) or TOWPATH_REMOVE. */
	int command;
	/* Filled in: 0, or an error number if the change was not made. */
	int error;
	/*
	 * Identifies the registration. TOWPATH_ADD fills it in. It is never reused: once the
	 * registration is over, it fails with ESTALE.
	 */
	uint64_t id;
	/* TOWPATH_SOURCE_FD or another source. TOWPATH_REMOVE does not need it. */
	int source;
	/*
	 * For a descriptor: EPOLLIN and EPOLLOUT, with EPOLLET or EPOLLONESHOT. Without either of
	 * these it is level-triggered. For a timer: TOWPATH_ABSTIME, or 0.
	 */
	uint32_t events;
	/*
	 * The descriptor, signal number or process ID. The queue keeps a duplicate of a kernel
	 * descriptor until the registration is removed: closing the descriptor does not end the
	 * registration.
	 */
	int ident;
	unsigned int reserved;
	/* For a descriptor: the instance that it belongs to, or NULL for the kernel. */
	struct towpath *instance;
	/* For a file or directory: its path. */
	const char *path;
	/*
	 * For a timer: first expiry, and the interval or 0 for a single expiry. When a timer is
	 * modified, it keeps its interval, and it_interval must be zero.
	 */
	struct towpath_times timer;
	/* Returned with each event of the registration. */
	epoll_data_t data;
};

/*
 * Makes changes in order; a failed change does not stop the others. The array belongs to the caller
 * before and after the call. A source that is already ready when it is added is reported by the
 * next wait. Returns the number of changes made; each failed one has its `error` set. Returns -1 if
 * no change was looked at: EFAULT, EINVAL, E2BIG, EBUSY, EPERM.
 */
int towpath_queue_change_sized(struct towpath_queue *queue, struct towpath_change *changes, int count, size_t size);

/* Calls towpath_queue_change_sized() with the size of struct towpath_change of this header. */
static inline int towpath_queue_change(struct towpath_queue *queue, struct towpath_change *changes, int count)
{
	return towpath_queue_change_sized(queue, changes, count, sizeof(*changes));
}

/* Operations of a queue: on sockets of instances, and on sockets and files of the kernel. */
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

/* Most bytes that TOWPATH_RECVFILE and TOWPATH_SPLICE can leave undelivered. */
#define TOWPATH_REST_MAX (128 << 10)

/*
 * Arguments of a transfer between a stream and a file of the kernel, or between two streams. Fields
 * that are not needed are zero.
 */
struct towpath_transfer {
	/* The file. TOWPATH_SPLICE: the stream to send on. */
	int fd;
	unsigned int reserved;
	/*
	 * TOWPATH_SPLICE: the instance that `fd` belongs to, or NULL for the kernel. Otherwise
	 * NULL.
	 */
	struct towpath *instance;
	/* Offset in the file, and the most bytes to move; fewer are moved if the source ends. */
	off_t offset;
	uint64_t count;
	/*
	 * TOWPATH_SENDFILE: bytes sent before and after the file. The submitting call copies them.
	 */
	const void *header;
	size_t header_len;
	const void *trailer;
	size_t trailer_len;
	/*
	 * Others: memory for bytes that were taken from the source but not delivered when the
	 * operation failed. It belongs to the operation until TOWPATH_DONE.
	 */
	void *rest;
	size_t rest_len;
};

/* Argument of TOWPATH_RECVMSG_LENT. */
struct towpath_lent {
	/* The message, as for towpath_recvmsg_lent(). */
	struct msghdr message;
	/* Filled in: 0 by the submitting call, later the token for towpath_return(). */
	uint64_t token;
};

/* One operation. Fields that it does not need are zero. */
struct towpath_operation {
	/* TOWPATH_CONNECT or another. */
	int operation;
	/* Filled in: 0, or an error number if the operation was not started. */
	int error;
	/* Filled in: identifies the operation. It is never reused. */
	uint64_t id;
	/*
	 * The descriptor, and the instance that it belongs to, or NULL for a file or socket of the
	 * kernel.
	 */
	struct towpath *instance;
	int fd;
	/*
	 * TOWPATH_ACCEPT: SOCK_NONBLOCK, SOCK_CLOEXEC. TOWPATH_RECV: MSG_WAITALL. TOWPATH_RECVMSG:
	 * MSG_PEEK, MSG_TRUNC. TOWPATH_SEND: MSG_ZEROCOPY, to lend to the kernel, too, where it
	 * accepts loans.
	 */
	int flags;
	/*
	 * TOWPATH_CONNECT: the address. Operations that move bytes: a struct towpath_transfer. The
	 * submitting call reads both. TOWPATH_RECVMSG, TOWPATH_SENDMSG: a struct msghdr.
	 * TOWPATH_RECVMSG_LENT: a struct towpath_lent. Others: a buffer.
	 *
	 * A message, all memory that it names, and a buffer belong to the operation until
	 * TOWPATH_DONE. Until then the program must not write to memory that is sent or written,
	 * and must not use memory that is received or read into.
	 */
	void *buffer;
	size_t len;
	/* TOWPATH_READ, TOWPATH_WRITE: offset in the file. */
	off_t offset;
	/* TOWPATH_RECV_MULTISHOT: the group whose buffers it fills. */
	int group;
	unsigned int reserved;
	/*
	 * Time of CLOCK_MONOTONIC at which the operation is cancelled (ETIMEDOUT), or NULL. The
	 * submitting call reads it.
	 */
	const struct timespec *deadline;
	/* Returned with each event of the operation. */
	epoll_data_t data;
};

/*
 * The following functions fill an operation and cannot fail; the submitting call reports invalid
 * arguments. Fields without an argument are set to zero. The caller may set `deadline` and `data`
 * afterwards. `instance` is NULL for a socket of the kernel. Flags are those of struct
 * towpath_operation.
 */

/* Fills an operation with its kind, instance and descriptor; the other functions use it. */
static inline void towpath_prep_operation(struct towpath_operation *operation, int what, struct towpath *instance,
					  int fd)
{
	memset(operation, 0, sizeof(*operation));
	operation->operation = what;
	operation->instance = instance;
	operation->fd = fd;
}

/* Connects a stream to an address. */
static inline void towpath_prep_connect(struct towpath_operation *operation, struct towpath *instance, int fd,
					const struct sockaddr *address, socklen_t len)
{
	towpath_prep_operation(operation, TOWPATH_CONNECT, instance, fd);
	operation->buffer = (void *)(uintptr_t)address;
	operation->len = len;
}

/* Accepts one connection after the other, until it is cancelled or fails. */
static inline void towpath_prep_accept(struct towpath_operation *operation, struct towpath *instance, int fd,
				       int flags)
{
	towpath_prep_operation(operation, TOWPATH_ACCEPT, instance, fd);
	operation->flags = flags;
}

/* Receives into a buffer. */
static inline void towpath_prep_recv(struct towpath_operation *operation, struct towpath *instance, int fd,
				     void *buffer, size_t len, int flags)
{
	towpath_prep_operation(operation, TOWPATH_RECV, instance, fd);
	operation->buffer = buffer;
	operation->len = len;
	operation->flags = flags;
}

/* Receives repeatedly, into buffers of a group. */
static inline void towpath_prep_recv_multishot(struct towpath_operation *operation, struct towpath *instance,
					       int fd, int group)
{
	towpath_prep_operation(operation, TOWPATH_RECV_MULTISHOT, instance, fd);
	operation->group = group;
}

/* Receives one message on a datagram socket. */
static inline void towpath_prep_recvmsg(struct towpath_operation *operation, struct towpath *instance, int fd,
					struct msghdr *message, int flags)
{
	towpath_prep_operation(operation, TOWPATH_RECVMSG, instance, fd);
	operation->buffer = message;
	operation->len = sizeof(*message);
	operation->flags = flags;
}

/* Receives without a copy, on a socket of an instance. */
static inline void towpath_prep_recvmsg_lent(struct towpath_operation *operation, struct towpath *instance, int fd,
					     struct towpath_lent *lent)
{
	towpath_prep_operation(operation, TOWPATH_RECVMSG_LENT, instance, fd);
	operation->buffer = lent;
	operation->len = sizeof(*lent);
}

/* Sends all of a buffer. An instance borrows the buffer; the kernel copies it. */
static inline void towpath_prep_send(struct towpath_operation *operation, struct towpath *instance, int fd,
				     const void *buffer, size_t len)
{
	towpath_prep_operation(operation, TOWPATH_SEND, instance, fd);
	operation->buffer = (void *)(uintptr_t)buffer;
	operation->len = len;
}

/*
 * Sends all of a buffer, and lends it to the kernel, too, where possible. Instances always borrow.
 */
static inline void towpath_prep_send_zc(struct towpath_operation *operation, struct towpath *instance, int fd,
					const void *buffer, size_t len)
{
	towpath_prep_send(operation, instance, fd, buffer, len);
	operation->flags = MSG_ZEROCOPY;
}

/* Sends one message on a datagram socket, with a copy. */
static inline void towpath_prep_sendmsg(struct towpath_operation *operation, struct towpath *instance, int fd,
					const struct msghdr *message)
{
	towpath_prep_operation(operation, TOWPATH_SENDMSG, instance, fd);
	operation->buffer = (void *)(uintptr_t)message;
	operation->len = sizeof(*message);
}

/* Reads from a file of the kernel at an offset. */
static inline void towpath_prep_read(struct towpath_operation *operation, int fd, void *buffer, size_t len,
				     off_t offset)
{
	towpath_prep_operation(operation, TOWPATH_READ, NULL, fd);
	operation->buffer = buffer;
	operation->len = len;
	operation->offset = offset;
}

/* Writes to a file of the kernel at an offset. */
static inline void towpath_prep_write(struct towpath_operation *operation, int fd, const void *buffer, size_t len,
				      off_t offset)
{
	towpath_prep_operation(operation, TOWPATH_WRITE, NULL, fd);
	operation->buffer = (void *)(uintptr_t)buffer;
	operation->len = len;
	operation->offset = offset;
}

/* Flushes a file of the kernel to disk, as fsync(2). */
static inline void towpath_prep_fsync(struct towpath_operation *operation, int fd)
{
	towpath_prep_operation(operation, TOWPATH_FSYNC, NULL, fd);
}

/* Flushes the data of a file of the kernel to disk, as fdatasync(2). */
static inline void towpath_prep_fdatasync(struct towpath_operation *operation, int fd)
{
	towpath_prep_operation(operation, TOWPATH_FDATASYNC, NULL, fd);
}

/*
 * The following functions also fill `transfer`, which the submitting call reads: it has to exist
 * until then. The caller may set `header`, `trailer` and `rest` afterwards. This one is used by the
 * others.
 */
static inline void towpath_prep_transfer(struct towpath_operation *operation, int what, struct towpath *instance,
					 int fd, struct towpath_transfer *transfer)
{
	towpath_prep_operation(operation, what, instance, fd);
	memset(transfer, 0, sizeof(*transfer));
	operation->buffer = transfer;
	operation->len = sizeof(*transfer);
}

/* Sends `count` bytes of a file, from `offset` on. */
static inline void towpath_prep_sendfile(struct towpath_operation *operation, struct towpath *instance, int fd,
					 struct towpath_transfer *transfer, int file, off_t offset, uint64_t count)
{
	towpath_prep_transfer(operation, TOWPATH_SENDFILE, instance, fd, transfer);
	transfer->fd = file;
	transfer->offset = offset;
	transfer->count = count;
}

/* Writes up to `count` received bytes to a file, from `offset` on. */
static inline void towpath_prep_recvfile(struct towpath_operation *operation, struct towpath *instance, int fd,
					 struct towpath_transfer *transfer, int file, off_t offset, uint64_t count)
{
	towpath_prep_transfer(operation, TOWPATH_RECVFILE, instance, fd, transfer);
	transfer->fd = file;
	transfer->offset = offset;
	transfer->count = count;
}

/*
 * Sends up to `count` received bytes on the stream `to_fd` of the instance `to`, or of the kernel
 * if `to` is NULL. What an instance received is not copied, except short parts of large memory.
 */
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
 * Starts operations in order; a failed one does not stop the others. Returns the number of
 * operations started; each other one has its `error` set, and its memory belongs to the caller.
 * Returns -1 if no operation was looked at: EFAULT, EINVAL, E2BIG, EBUSY, EPERM.
 *
 * Each operation that was started ends with one TOWPATH_DONE. Operations on sockets advance only
 * while a thread waits on the queue. Before the end, TOWPATH_PROGRESS reports each connection of a
 * TOWPATH_ACCEPT, and that the socket has accepted all bytes of a TOWPATH_SEND.
 */
int towpath_queue_submit_sized(struct towpath_queue *queue, struct towpath_operation *operations, int count,
			       size_t size);

/* Calls towpath_queue_submit_sized() with the size of struct towpath_operation of this header. */
static inline int towpath_queue_submit(struct towpath_queue *queue, struct towpath_operation *operations, int count)
{
	return towpath_queue_submit_sized(queue, operations, count, sizeof(*operations));
}

/*
 * Cancels an operation. TOWPATH_DONE still reports its end: with ECANCELED, unless the operation
 * had a result before. Returns 0, or -1: ESTALE (the operation is over or never existed), EBUSY,
 * EPERM.
 */
int towpath_queue_cancel(struct towpath_queue *queue, uint64_t id);

/*
 * Lends a group of `count` contiguous buffers of `size` bytes each, starting at `memory`.
 * TOWPATH_RECV_MULTISHOT fills a free buffer whenever there are bytes and reports it with
 * TOWPATH_PROGRESS: the buffer then belongs to the caller until towpath_queue_give(). If no buffer
 * is free, TOWPATH_STARVED reports that once, and the receive continues when one is free. The queue
 * keeps free buffers until the group is removed or the queue is closed.
 *
 * Returns the number of the group, which is never reused, or -1: EINVAL (no buffers, or an invalid
 * size), ENOSPC (too many groups or buffers), EFAULT, EBUSY, EPERM.
 */
int towpath_queue_add_group(struct towpath_queue *queue, void *memory, size_t size, int count);
/*
 * Returns a buffer to its group; buffers are numbered from 0. Returns 0, or -1: EINVAL (the buffer
 * does not exist or does not belong to the caller), ESTALE (no such group), EBUSY, EPERM.
 */
int towpath_queue_give(struct towpath_queue *queue, int group, int buffer);
/*
 * Removes a group: all its memory belongs to the caller again. Returns 0, or -1: EBUSY (an
 * operation still uses the group, or another thread the queue), ESTALE, EPERM.
 */
int towpath_queue_remove_group(struct towpath_queue *queue, int group);

/* Kinds of events: `what`. */
#define TOWPATH_READY 1
#define TOWPATH_EXPIRED 2
#define TOWPATH_NOTIFIED 3
#define TOWPATH_SIGNALLED 4
#define TOWPATH_EXITED 5
#define TOWPATH_CHANGED 6
#define TOWPATH_PROGRESS 7
#define TOWPATH_DONE 8
#define TOWPATH_STARVED 9

/* In `flags`: the registration or operation is over, and its id is stale. */
#define TOWPATH_OVER 1u
/* In `flags` of TOWPATH_DONE for a TOWPATH_SEND: some or all bytes were copied. */
#define TOWPATH_COPIED 2u

/* In `detail` of TOWPATH_CHANGED: what happened to a file, or to a file in a directory. */
#define TOWPATH_CHANGED_MODIFIED 0x01u
#define TOWPATH_CHANGED_ATTRIBUTES 0x02u
#define TOWPATH_CHANGED_WRITTEN 0x04u
#define TOWPATH_CHANGED_CREATED 0x08u
#define TOWPATH_CHANGED_DELETED 0x10u
#define TOWPATH_CHANGED_MOVED 0x20u
#define TOWPATH_CHANGED_REMOVED 0x40u
#define TOWPATH_CHANGED_MISSED 0x80u

/* One event of a queue. */
struct towpath_event {
	/* The registration or operation, and the `data` that it was added with. */
	uint64_t id;
	epoll_data_t data;
	/*
	 * TOWPATH_EXPIRED, TOWPATH_NOTIFIED: how often, since the last report. TOWPATH_SIGNALLED:
	 * the signal. TOWPATH_EXITED: the exit code or the signal. TOWPATH_PROGRESS: the descriptor
	 * of an accepted connection, the bytes that the socket accepted for sending, or the bytes
	 * in a buffer of a group. TOWPATH_DONE: bytes moved, 0 for operations that move none, or -1
	 * on an error. A transfer reports the bytes that it delivered even if it failed; `error` is
	 * set, too, then.
	 */
	int64_t result;
	/* TOWPATH_READY or another. */
	int what;
	/* TOWPATH_DONE: the error number if the operation failed, else 0. */
	int error;
	/*
	 * TOWPATH_READY: EPOLLIN and others. TOWPATH_SIGNALLED: the process that sent the signal,
	 * or 0. TOWPATH_EXITED: CLD_EXITED, CLD_KILLED, or 0 if the process is not a child or was
	 * waited for already. TOWPATH_CHANGED: TOWPATH_CHANGED_MODIFIED and others. TOWPATH_DONE:
	 * bytes taken from the source but not delivered. TOWPATH_PROGRESS: the number of the
	 * buffer.
	 */
	uint32_t detail;
	/* TOWPATH_OVER, TOWPATH_COPIED. */
	uint32_t flags;
};

/*
 * Waits for at least `min` events or until `deadline`, a time of CLOCK_MONOTONIC; NULL sets no
 * deadline. With a `min` of 0 it does not sleep. Signals with a handler do not interrupt it. Fills
 * in up to `max` events and returns their number, 0 if there are none; further events are reported
 * by the next wait. Returns -1 on errors: EFAULT, EINVAL (`min` is negative or above `max`, `max`
 * is not above 0, or the deadline is invalid), E2BIG, EBUSY, EPERM.
 */
int towpath_queue_wait_sized(struct towpath_queue *queue, struct towpath_event *events, int min, int max,
			     const struct timespec *deadline, size_t size);

/* Calls towpath_queue_wait_sized() with the size of struct towpath_event of this header. */
static inline int towpath_queue_wait(struct towpath_queue *queue, struct towpath_event *events, int min, int max,
				     const struct timespec *deadline)
{
	return towpath_queue_wait_sized(queue, events, min, max, deadline, sizeof(*events));
}

/*
 * Triggers a TOWPATH_SOURCE_USER. Any thread may call, also during a wait; a signal handler must
 * not. Returns 0, or -1: ESTALE (the registration is over or is no such source), EPERM, EFAULT.
 */
int towpath_queue_notify(struct towpath_queue *queue, uint64_t id);

#ifdef __cplusplus
}
#endif

#endif
