/*
 * Operations of event queues on sockets of the kernel, on both back ends, over loopback: streams,
 * datagrams of the kernel and of instances, files that are sent and received, streams that are
 * spliced; each interrupted; and errors.
 */
#define _GNU_SOURCE
#include "queue.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <unistd.h>

_Static_assert(sizeof(struct towpath_transfer) == 80, "as the library has it");

/* More than sockets' buffers have room for. */
#define LARGE (8 << 20)

static unsigned int back_end;
static char sent[LARGE], received[LARGE];

static struct towpath_queue *begin_queue(void)
{
	struct towpath_queue *queue = towpath_queue_new(back_end);

	CHECK(queue);
	for (size_t i = 0; i < LARGE; i++)
		sent[i] = i * 31 + i / 251;
	memset(received, 0, LARGE);
	return queue;
}

static struct towpath_operation of(int operation, int fd, void *buffer, size_t len)
{
	return (struct towpath_operation) { .operation = operation, .fd = fd, .buffer = buffer, .len = len };
}

static int flag(int fd, int get, int bit)
{
	int flags = fcntl(fd, get);

	CHECK(flags >= 0);
	return flags & bit;
}

/* A listener on loopback, and its address. */
static int listens(struct sockaddr_in *address)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t len = sizeof(*address);

	*address = (struct sockaddr_in) { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	CHECK(fd >= 0 && bind(fd, (struct sockaddr *)address, len) == 0 && listen(fd, 8) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)address, &len) == 0);
	return fd;
}

/* A connection over loopback, which buffers much less than LARGE. */
static void connection(int ends[2])
{
	struct sockaddr_in address;
	int listener = listens(&address), bytes = 1 << 17;

	ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)) == 0);
	CHECK(setsockopt(ends[0], SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)) == 0);
	CHECK(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)) == 0);
	CHECK(connect(ends[0], (struct sockaddr *)&address, sizeof(address)) == 0);
	ends[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	CHECK(ends[1] >= 0 && close(listener) == 0);
}

static void close_both(int ends[2])
{
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
}

/* Receives `len` bytes into `received`, with operations. */
static void drain(struct towpath_queue *queue, int fd, size_t len)
{
	struct towpath_operation all = of(TOWPATH_RECV, fd, received, len);

	all.flags = MSG_WAITALL;
	over(queue, submit(queue, all), len, 0);
}

static void connects(void)
{
	struct towpath_queue *queue = begin_queue();
	struct sockaddr_in address;
	int listener = listens(&address), ends[2];
	struct towpath_operation accepts = of(TOWPATH_ACCEPT, listener, NULL, 0);
	struct towpath_event events[2];

	accepts.flags = SOCK_NONBLOCK;
	uint64_t accepting = submit(queue, accepts);
	for (int nonblocking = 0; nonblocking < 2; nonblocking++) {
		ends[0] = socket(AF_INET, SOCK_STREAM | (nonblocking ? SOCK_NONBLOCK : 0), 0);
		struct towpath_operation to = of(TOWPATH_CONNECT, ends[0], &address, sizeof(address));

		CHECK(ends[0] >= 0);
		uint64_t connecting = submit(queue, to);
		events[0] = next(queue), events[1] = next(queue);
		int first = events[0].id == accepting ? 0 : 1;
		CHECK(events[first].id == accepting && events[first].what == TOWPATH_PROGRESS);
		CHECK(events[1 - first].id == connecting && events[1 - first].what == TOWPATH_DONE);
		CHECK(events[1 - first].result == 0 && !events[1 - first].error);
		ends[1] = events[first].result;
		CHECK(!flag(ends[0], F_GETFL, O_NONBLOCK) == !nonblocking);
		CHECK(flag(ends[1], F_GETFL, O_NONBLOCK) && !flag(ends[1], F_GETFD, FD_CLOEXEC));
		CHECK(no(queue, to) == EISCONN);
		CHECK(write(ends[0], "x", 1) == 1);
		drain(queue, ends[1], 1);
		close_both(ends);
	}
	CHECK(towpath_queue_cancel(queue, accepting) == 0);
	over(queue, accepting, -1, ECANCELED);
	accepts.flags = SOCK_CLOEXEC;
	accepting = submit(queue, accepts);
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(ends[0], (struct sockaddr *)&address, sizeof(address)) == 0);
	events[0] = next(queue);
	CHECK(events[0].id == accepting && events[0].result >= 0);
	ends[1] = events[0].result;
	CHECK(!flag(ends[1], F_GETFL, O_NONBLOCK) && flag(ends[1], F_GETFD, FD_CLOEXEC));
	close_both(ends);
	/* A queue that ends with connections that were not reported. */
	for (int i = 0; i < 3; i++) {
		ends[0] = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(connect(ends[0], (struct sockaddr *)&address, sizeof(address)) == 0);
		CHECK(close(ends[0]) == 0);
	}
	CHECK(now(queue, events, 1) <= 1 && towpath_queue_close(queue) == 0);
	/* A port that no longer has a listener. */
	queue = begin_queue();
	CHECK(close(listener) == 0);
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	over(queue, submit(queue, of(TOWPATH_CONNECT, ends[0], &address, sizeof(address))), -1, ECONNREFUSED);
	CHECK(!flag(ends[0], F_GETFL, O_NONBLOCK) && close(ends[0]) == 0);
	CHECK(towpath_queue_close(queue) == 0);
}

static void streams(void)
{
	struct towpath_queue *queue = begin_queue();
	struct towpath_event event;
	struct timespec soon = in_ns(5000000);
	int ends[2];
	char bytes[64] = "";

	connection(ends);
	/* As many bytes as there are, into the program's memory; or the whole buffer. */
	uint64_t id = submit(queue, of(TOWPATH_RECV, ends[1], bytes, sizeof(bytes)));
	CHECK(now(queue, &event, 1) == 0 && remove_id(queue, id) == EBUSY);
	CHECK(write(ends[0], "hello", 5) == 5);
	over(queue, id, 5, 0);
	CHECK(!memcmp(bytes, "hello", 6) && !flag(ends[1], F_GETFL, O_NONBLOCK));
	struct towpath_operation all = of(TOWPATH_RECV, ends[1], bytes, 10);
	all.flags = MSG_WAITALL;
	id = submit(queue, all);
	CHECK(write(ends[0], "01234", 5) == 5 && now(queue, &event, 1) == 0);
	CHECK(write(ends[0], "56789", 5) == 5);
	over(queue, id, 10, 0);
	CHECK(!memcmp(bytes, "0123456789", 10));
	over(queue, submit(queue, of(TOWPATH_RECV, ends[1], NULL, 0)), 0, 0);
	/* Cancelled and late: no byte is lost, and received bytes are reported. */
	id = submit(queue, of(TOWPATH_RECV, ends[1], bytes, 64));
	CHECK(towpath_queue_cancel(queue, id) == 0);
	over(queue, id, -1, ECANCELED);
	CHECK(write(ends[0], "kept", 4) == 4);
	over(queue, submit(queue, of(TOWPATH_RECV, ends[1], bytes, 64)), 4, 0);
	all.deadline = &soon;
	over(queue, submit(queue, all), -1, ETIMEDOUT);
	struct pollfd there = { .fd = ends[1], .events = POLLIN };
	CHECK(write(ends[0], "part", 4) == 4 && poll(&there, 1, PATIENCE_S * 1000) == 1);
	soon = in_ns(5000000);
	over(queue, submit(queue, all), 4, 0);
	/* All bytes of a large send, while they are received: accepted and back. */
	uint64_t sends = submit(queue, of(TOWPATH_SEND, ends[0], sent, LARGE));
	all = of(TOWPATH_RECV, ends[1], received, LARGE), all.flags = MSG_WAITALL;
	uint64_t receives = submit(queue, all);
	int step = 0;
	for (int i = 0; i < 3; i++) {
		event = next(queue);
		CHECK(event.result == LARGE && !event.error && (event.id == sends || event.id == receives));
		if (event.id == sends)
			CHECK(event.what == (step++ ? TOWPATH_DONE : TOWPATH_PROGRESS));
	}
	CHECK(step == 2 && !memcmp(sent, received, LARGE));
	/* Cancelled when some bytes were sent. */
	sends = submit(queue, of(TOWPATH_SEND, ends[0], sent, LARGE));
	CHECK(now(queue, &event, 1) == 0 && towpath_queue_cancel(queue, sends) == 0);
	event = next(queue);
	CHECK(event.id == sends && event.what == TOWPATH_PROGRESS && event.result > 0 && event.result < LARGE);
	over_with(queue, sends, event.result, 0, TOWPATH_COPIED);
	drain(queue, ends[1], event.result);
	CHECK(!memcmp(sent, received, event.result));
	sends = submit(queue, of(TOWPATH_SEND, ends[0], NULL, 0));
	event = next(queue);
	CHECK(event.id == sends && event.what == TOWPATH_PROGRESS && event.result == 0);
	over(queue, sends, 0, 0);
	/*
	 * A descriptor that is closed meanwhile: the queue has a duplicate. The end of the stream,
	 * and a peer that is gone.
	 */
	id = submit(queue, of(TOWPATH_RECV, ends[1], bytes, 64));
	CHECK(now(queue, &event, 1) == 0 && close(ends[1]) == 0 && write(ends[0], "late", 4) == 4);
	over(queue, id, 4, 0);
	CHECK(close(ends[0]) == 0);
	connection(ends);
	id = submit(queue, of(TOWPATH_RECV, ends[1], bytes, 64));
	CHECK(shutdown(ends[0], SHUT_WR) == 0);
	over(queue, id, 0, 0);
	CHECK(shutdown(ends[1], SHUT_WR) == 0);
	over(queue, submit(queue, of(TOWPATH_SEND, ends[1], bytes, 1)), -1, EPIPE);
	id = submit(queue, of(TOWPATH_RECV, ends[0], bytes, 64));
	over(queue, id, 0, 0);
	close_both(ends);
	/* A queue that ends with operations in progress. */
	connection(ends);
	submit(queue, of(TOWPATH_RECV, ends[1], bytes, 64));
	submit(queue, of(TOWPATH_SEND, ends[0], sent, LARGE));
	submit(queue, of(TOWPATH_SEND, ends[0], sent, LARGE));
	CHECK(next(queue).what == TOWPATH_DONE && towpath_queue_close(queue) == 0);
	close_both(ends);
}

/*
 * One message from `from` to `to`, of an instance or of the kernel, with operations on both sides.
 */
static void messages(struct towpath *a, struct towpath *b, int from, int to, struct sockaddr_in address)
{
	struct towpath_queue *queue = begin_queue();
	char in[64] = "", out[] = "a message";
	struct sockaddr_in source;
	struct iovec into = { in, sizeof(in) }, bytes[] = { { out, 2 }, { out + 2, 7 } };
	struct msghdr get = {
		.msg_name = &source, .msg_namelen = sizeof(source), .msg_iov = &into, .msg_iovlen = 1,
	};
	struct msghdr put = {
		.msg_name = &address, .msg_namelen = sizeof(address), .msg_iov = bytes, .msg_iovlen = 2,
	};
	struct towpath_operation receives, sends;

	towpath_prep_recvmsg(&receives, NULL, to, &get, 0);
	towpath_prep_sendmsg(&sends, NULL, from, &put);
	struct timespec soon = in_ns(5000000);
	struct towpath_event event;

	receives.instance = b, sends.instance = a;
	uint64_t id = submit(queue, receives);
	CHECK(now(queue, &event, 1) == 0);
	over(queue, submit(queue, sends), 9, 0);
	if (a)
		settle(a, b);
	over(queue, id, 9, 0);
	CHECK(!memcmp(in, "a message", 10) && get.msg_namelen == sizeof(source) && !get.msg_flags);
	CHECK(source.sin_family == AF_INET && source.sin_port != 0);
	/* A small buffer reports truncation, and the flags are those of the call. */
	over(queue, submit(queue, sends), 9, 0);
	if (a)
		settle(a, b);
	into.iov_len = 4, get.msg_namelen = sizeof(source);
	receives.flags = MSG_PEEK | MSG_TRUNC;
	over(queue, submit(queue, receives), 9, 0);
	receives.flags = 0;
	over(queue, submit(queue, receives), 4, 0);
	CHECK(get.msg_flags == MSG_TRUNC && !memcmp(in, "a message", 10));
	/* A message without bytes. */
	put.msg_iovlen = 0;
	over(queue, submit(queue, sends), 0, 0);
	if (a)
		settle(a, b);
	over(queue, submit(queue, receives), 0, 0);
	/* Cancelled, late, closed in progress; and too large. */
	id = submit(queue, receives);
	CHECK(now(queue, &event, 1) == 0 && towpath_queue_cancel(queue, id) == 0);
	over(queue, id, -1, ECANCELED);
	receives.deadline = &soon;
	over(queue, submit(queue, receives), -1, ETIMEDOUT);
	receives.deadline = NULL;
	bytes[0] = (struct iovec) { sent, 1 << 17 }, put.msg_iovlen = 1;
	over(queue, submit(queue, sends), -1, EMSGSIZE);
	/* Invalid operations. */
	struct towpath_operation bad = receives;
	bad.len = 1;
	CHECK(no(queue, bad) == EINVAL);
	bad = receives, bad.buffer = NULL;
	CHECK(no(queue, bad) == EFAULT);
	bad = receives, bad.flags = MSG_OOB;
	CHECK(no(queue, bad) == EINVAL);
	bad = sends, bad.flags = MSG_PEEK;
	CHECK(no(queue, bad) == EINVAL);
	bad = receives, bad.operation = TOWPATH_RECV, bad.buffer = in;
	CHECK(no(queue, bad) == EOPNOTSUPP);
	bytes[0] = (struct iovec) { NULL, 9 };
	over(queue, submit(queue, sends), -1, EFAULT);
	submit(queue, receives);
	CHECK(now(queue, &event, 1) == 0 && towpath_queue_close(queue) == 0);
}

static void datagrams(void)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	socklen_t len = sizeof(address);
	int to = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), from = socket(AF_INET, SOCK_DGRAM, 0);
	struct msghdr message = { 0 };

	CHECK(to >= 0 && from >= 0 && bind(to, (struct sockaddr *)&address, len) == 0);
	CHECK(getsockname(to, (struct sockaddr *)&address, &len) == 0);
	messages(NULL, NULL, from, to, address);
	CHECK(close(to) == 0 && close(from) == 0);

	struct towpath *a = towpath_new("192.0.2.1/24", 1500), *b = towpath_new("192.0.2.2/24", 1500);
	CHECK(a && b && inet_pton(AF_INET, "192.0.2.2", &address.sin_addr) == 1);
	address.sin_port = htons(53);
	from = towpath_socket(a, AF_INET, SOCK_DGRAM, 0), to = towpath_socket(b, AF_INET, SOCK_DGRAM, 0);
	CHECK(from >= 0 && to >= 0 && towpath_bind(b, to, (struct sockaddr *)&address, len) == 0);
	messages(a, b, from, to, address);
	/* A socket that is closed under an operation, and a stream. */
	struct towpath_queue *queue = begin_queue();
	struct towpath_event event;
	struct towpath_operation receives = of(TOWPATH_RECVMSG, to, &message, sizeof(message));
	receives.instance = b;
	uint64_t id = submit(queue, receives);
	CHECK(now(queue, &event, 1) == 0 && towpath_close(b, to) == 0);
	over(queue, id, -1, ECANCELED);
	CHECK(no(queue, receives) == EBADF);
	receives.fd = towpath_socket(b, AF_INET, SOCK_STREAM, 0);
	CHECK(no(queue, receives) == EOPNOTSUPP);
	CHECK(towpath_queue_close(queue) == 0);
	towpath_free(a);
	towpath_free(b);
}

/* A file with the first bytes of `sent`. */
static int file_of(size_t len)
{
	char name[] = "/tmp/towpath-kernel-XXXXXX";
	int file = mkstemp(name);

	CHECK(file >= 0 && unlink(name) == 0 && write(file, sent, len) == (ssize_t)len);
	return file;
}

static void files(void)
{
	struct towpath_queue *queue = begin_queue();
	int ends[2], file = file_of(LARGE / 2), small = file_of(100), into = file_of(0);
	struct towpath_transfer move = {
		.fd = file, .offset = 3, .count = LARGE / 4,
		.header = "head", .header_len = 4, .trailer = "tail", .trailer_len = 4,
	};
	struct towpath_event event;

	connection(ends);
	/* With header and trailer, large and small. */
	struct towpath_operation sends = of(TOWPATH_SENDFILE, ends[0], &move, sizeof(move));
	struct towpath_operation all = of(TOWPATH_RECV, ends[1], received, LARGE / 4 + 8);
	all.flags = MSG_WAITALL;
	uint64_t sending = submit(queue, sends), receiving = submit(queue, all);
	for (int i = 0; i < 2; i++) {
		event = next(queue);
		CHECK((event.id == sending || event.id == receiving) && event.what == TOWPATH_DONE);
		CHECK(event.result == LARGE / 4 + 8 && !event.error);
	}
	CHECK(!memcmp(received, "head", 4) && !memcmp(received + 4, sent + 3, LARGE / 4));
	CHECK(!memcmp(received + LARGE / 4 + 4, "tail", 4));
	move.fd = small, move.offset = 0, move.count = 100;
	over(queue, submit(queue, sends), 108, 0);
	drain(queue, ends[1], 108);
	CHECK(!memcmp(received + 4, sent, 100));
	/*
	 * A file that ends early: its bytes are sent without the trailer; result and error are both
	 * set.
	 */
	move.offset = 50;
	over(queue, submit(queue, sends), 54, ENODATA);
	drain(queue, ends[1], 54);
	/* Into a file: as many bytes as requested, or as are received. */
	struct towpath_transfer store;
	struct towpath_operation gets;
	towpath_prep_recvfile(&gets, NULL, ends[1], &store, into, 1000, 300);
	CHECK(write(ends[0], sent, 400) == 400);
	CHECK(over(queue, submit(queue, gets), 300, 0) == 0);
	CHECK(pread(into, received, 2000, 1000) == 300 && !memcmp(received, sent, 300));
	drain(queue, ends[1], 100);
	CHECK(!memcmp(received, sent + 300, 100));
	/* A file that accepts nothing: received bytes are handed back. */
	char rest[64] = "";
	store.fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	store.rest = rest, store.rest_len = 3;
	CHECK(store.fd >= 0 && write(ends[0], "lost?", 5) == 5);
	CHECK(over(queue, submit(queue, gets), 0, EBADF) == 5 && !memcmp(rest, "los", 4));
	/* From one connection to the next. */
	int other[2];
	connection(other);
	struct towpath_transfer joins;
	struct towpath_operation splice;
	towpath_prep_splice(&splice, NULL, ends[1], &joins, NULL, other[0], LARGE);
	joins.rest = rest, joins.rest_len = 64;
	uint64_t ids[] = {
		submit(queue, splice), submit(queue, of(TOWPATH_SEND, ends[0], sent, LARGE)), 0,
	};
	all = of(TOWPATH_RECV, other[1], received, LARGE), all.flags = MSG_WAITALL;
	ids[2] = submit(queue, all);
	for (int i = 0; i < 4; i++) {
		event = next(queue);
		CHECK(event.id == ids[0] || event.id == ids[1] || event.id == ids[2]);
		CHECK(event.result == LARGE && !event.error && !event.detail);
	}
	CHECK(!memcmp(received, sent, LARGE));
	uint64_t id = submit(queue, splice);
	CHECK(now(queue, &event, 1) == 0 && towpath_queue_cancel(queue, id) == 0);
	CHECK(over(queue, id, 0, ECANCELED) == 0);
	/* A peer that is gone: bytes that were taken are handed back. */
	CHECK(shutdown(other[0], SHUT_WR) == 0 && write(ends[0], "back", 4) == 4);
	CHECK(over(queue, submit(queue, splice), 0, EPIPE) == 4 && !memcmp(rest, "back", 4));
	/* The end of the source is not an error. */
	CHECK(shutdown(ends[0], SHUT_WR) == 0);
	over(queue, submit(queue, gets), 0, 0);
	close_both(other);
	close_both(ends);
	CHECK(close(file) == 0 && close(small) == 0 && close(into) == 0 && close(store.fd) == 0);
	CHECK(towpath_queue_close(queue) == 0);
}

/* Buffers of 4 GiB work like others: available bytes are stored at their beginning. */
static void huge(void)
{
	struct towpath_queue *queue = begin_queue();
	size_t len = 1ull << 32;
	char *room = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int ends[2], file = file_of(100);

	connection(ends);
	CHECK(room != MAP_FAILED && write(ends[0], sent, 1000) == 1000);
	over(queue, submit(queue, of(TOWPATH_RECV, ends[1], room, len)), 1000, 0);
	CHECK(!memcmp(room, sent, 1000));
	over(queue, submit(queue, of(TOWPATH_READ, file, room, len)), 100, 0);
	/* The whole buffer, until the stream ends. */
	struct towpath_operation all = of(TOWPATH_RECV, ends[1], room, len);
	all.flags = MSG_WAITALL;
	uint64_t id = submit(queue, all);
	CHECK(write(ends[0], sent + 1000, 2000) == 2000 && shutdown(ends[0], SHUT_WR) == 0);
	over(queue, id, 2000, 0);
	CHECK(!memcmp(room, sent + 1000, 2000));
	/* A read of a range larger than any memory ends at the end of the file. */
	struct towpath_transfer move = { .fd = file, .count = 1ull << 40 };
	over(queue, submit(queue, of(TOWPATH_SENDFILE, ends[1], &move, sizeof(move))), 100, ENODATA);
	close_both(ends);
	CHECK(munmap(room, len) == 0 && close(file) == 0 && towpath_queue_close(queue) == 0);
}

static void wrong(void)
{
	struct towpath_queue *queue = begin_queue();
	int ends[2], pipes[2], local = socket(AF_UNIX, SOCK_STREAM, 0), file = file_of(10);
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct towpath_transfer move = { .fd = file, .count = 5 };
	char byte = 0;

	connection(ends);
	CHECK(local >= 0 && pipe(pipes) == 0);
	CHECK(no(queue, of(TOWPATH_RECV, -1, &byte, 1)) == EBADF);
	CHECK(no(queue, of(TOWPATH_RECV, 1 << 20, &byte, 1)) == EBADF);
	CHECK(no(queue, of(TOWPATH_RECV, pipes[0], &byte, 1)) == ENOTSOCK);
	CHECK(no(queue, of(TOWPATH_RECV, ends[0], NULL, 1)) == EFAULT);
	CHECK(no(queue, of(TOWPATH_SEND, ends[0], NULL, 1)) == EFAULT);
	CHECK(no(queue, of(99, ends[0], &byte, 1)) == EINVAL);
	CHECK(no(queue, of(TOWPATH_SENDMSG, ends[0], &byte, sizeof(struct msghdr))) == EOPNOTSUPP);
	CHECK(no(queue, of(TOWPATH_CONNECT, local, &address, sizeof(address))) == EAFNOSUPPORT);
	CHECK(no(queue, of(TOWPATH_CONNECT, ends[0], &address, 3)) == EINVAL);
	over(queue, submit(queue, of(TOWPATH_ACCEPT, ends[0], NULL, 0)), -1, EINVAL);
	struct towpath_operation moves = of(TOWPATH_SENDFILE, ends[0], &move, sizeof(move));
	struct towpath_operation bad = moves;
	bad.len = 8;
	CHECK(no(queue, bad) == EINVAL);
	bad = moves, bad.buffer = NULL;
	CHECK(no(queue, bad) == EFAULT);
	bad = moves, bad.flags = 1;
	CHECK(no(queue, bad) == EINVAL);
	move.fd = -1;
	CHECK(no(queue, moves) == EBADF);
	move.fd = pipes[0];
	CHECK(no(queue, moves) == ESPIPE);
	move.fd = file, move.offset = -1;
	CHECK(no(queue, moves) == EINVAL);
	move.offset = 1, move.count = INT64_MAX;
	CHECK(no(queue, moves) == EINVAL);
	move.count = UINT64_MAX;
	CHECK(no(queue, moves) == EINVAL);
	move.offset = 0, move.count = 5, move.header_len = 3;
	CHECK(no(queue, moves) == EFAULT);
	move.header = &byte, move.header_len = 1, moves.operation = TOWPATH_RECVFILE;
	CHECK(no(queue, moves) == EINVAL);
	move.header_len = 0, move.reserved = 1;
	CHECK(no(queue, moves) == EINVAL);
	move.reserved = 0, move.rest_len = 1;
	CHECK(no(queue, moves) == EFAULT);
	moves.operation = TOWPATH_SENDFILE, move.rest = &byte;
	CHECK(no(queue, moves) == EINVAL);
	moves.operation = TOWPATH_SPLICE, move.rest_len = 0;
	CHECK(no(queue, moves) == ENOTSOCK);
	move.offset = 1, move.fd = ends[1];
	CHECK(no(queue, moves) == EINVAL);
	close_both(ends);
	close_both(pipes);
	CHECK(close(local) == 0 && close(file) == 0 && towpath_queue_close(queue) == 0);
}

/* How an operation ends: the last two are deadlines, in the past and in the near future. */
enum { CANCEL, CLOSE, PAST, SOON, WAYS };

/* Descriptors on which operations wait, and what belongs to them. */
enum { NEAR, FAR, SINK, BEYOND, QUIET, FULL, FILLER, IDLE, STORE, DESCRIPTORS };

/* A listener that does not answer, because its backlog is full, and its address. */
static void fill(int fds[DESCRIPTORS], struct sockaddr_in *address)
{
	fds[FULL] = listens(address), fds[FILLER] = socket(AF_INET, SOCK_STREAM, 0);
	struct pollfd there = { .fd = fds[FULL], .events = POLLIN };

	CHECK(listen(fds[FULL], 0) == 0 && fds[FILLER] >= 0);
	CHECK(connect(fds[FILLER], (struct sockaddr *)address, sizeof(*address)) == 0);
	CHECK(poll(&there, 1, PATIENCE_S * 1000) == 1);
}

/* Checks that a connection attempt continues, and that its descriptor is unchanged. */
static void goes_on(int fd)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);

	CHECK(!flag(fd, F_GETFL, O_NONBLOCK));
	CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0);
	CHECK(info.tcpi_state == TCP_SYN_SENT);
}

/*
 * Receives until the end of the stream. Returns the number of bytes. A ring that was just closed
 * may interrupt single calls, even with MSG_WAITALL.
 */
static int64_t all_of(int fd)
{
	ssize_t len;
	int64_t sum = 0;

	while ((len = recv(fd, received + sum, LARGE - sum, 0)) > 0)
		sum += len;
	CHECK(len == 0);
	return sum;
}

/* Ends one operation in one way: it ends once, with the reason, and does not take later bytes. */
static void cut_short(int operation, int own, int other, int way)
{
	struct towpath_queue *queue = begin_queue();
	struct timespec at = in_ns(way == PAST ? -1 : 5000000);
	struct sockaddr_in address;
	int is_late = way == PAST || way == SOON, is_sent = operation == TOWPATH_SENDFILE;
	int fds[DESCRIPTORS];
	char *rest = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct towpath_event event;

	connection(&fds[NEAR]);
	connection(&fds[SINK]);
	fds[QUIET] = listens(&address);
	fill(fds, &address);
	fds[IDLE] = socket(AF_INET, SOCK_STREAM, 0), fds[STORE] = file_of(LARGE / 2);
	CHECK(rest != MAP_FAILED && fds[IDLE] >= 0);
	struct towpath_transfer move = { .fd = fds[other], .count = LARGE / 2 };
	if (!is_sent)
		move.rest = rest, move.rest_len = 4096;
	struct towpath_operation cut = of(operation, fds[own], &move, sizeof(move));
	if (operation == TOWPATH_CONNECT)
		cut.buffer = &address, cut.len = sizeof(address);
	if (operation == TOWPATH_ACCEPT)
		cut.buffer = NULL, cut.len = 0;
	if (is_late)
		cut.deadline = &at;
	uint64_t id = submit(queue, cut);
	CHECK(is_late || now(queue, &event, 1) == 0);
	/* The queue has a duplicate, so only a cancel ends the operation. */
	if (way == CLOSE)
		CHECK(close(fds[own]) == 0 && now(queue, &event, 1) == 0);
	CHECK(is_late || towpath_queue_cancel(queue, id) == 0);
	event = next(queue);
	CHECK(event.id == id && event.what == TOWPATH_DONE && event.flags == TOWPATH_OVER);
	CHECK(event.error == (is_late ? ETIMEDOUT : ECANCELED) && event.detail == 0);
	int64_t arrived = is_sent ? event.result : 0;
	CHECK(event.result == (cut.buffer == &move ? arrived : -1));
	CHECK(arrived >= 0 && arrived < LARGE / 2 && (arrived > 0 || !is_sent || is_late));
	CHECK(towpath_queue_cancel(queue, id) == -1 && errno == ESTALE);
	CHECK(mprotect(rest, 4096, PROT_NONE) == 0);
	if (operation == TOWPATH_CONNECT && way == CANCEL)
		goes_on(fds[IDLE]);
	if (!is_sent)
		CHECK(write(fds[NEAR], sent, arrived = 4) == 4);
	CHECK(now(queue, &event, 1) == 0 && towpath_queue_close(queue) == 0);
	if (own != FAR || way != CLOSE) {
		CHECK((own == NEAR && way == CLOSE) || shutdown(fds[NEAR], SHUT_WR) == 0);
		CHECK(all_of(fds[FAR]) == arrived);
		CHECK(!memcmp(received, sent, arrived));
	}
	CHECK(lseek(fds[STORE], 0, SEEK_END) == LARGE / 2 && munmap(rest, 4096) == 0);
	for (int i = 0; i < DESCRIPTORS; i++)
		CHECK((i == own && way == CLOSE) || close(fds[i]) == 0);
}

static void waiting(void)
{
	static const int waiting[][3] = {
		{ TOWPATH_CONNECT, IDLE, STORE }, { TOWPATH_ACCEPT, QUIET, STORE },
		{ TOWPATH_SENDFILE, NEAR, STORE }, { TOWPATH_RECVFILE, FAR, STORE },
		{ TOWPATH_SPLICE, FAR, SINK },
	};

	for (size_t i = 0; i < sizeof(waiting) / sizeof(waiting[0]); i++) {
		for (int way = 0; way < WAYS; way++)
			cut_short(waiting[i][0], waiting[i][1], waiting[i][2], way);
	}
}

static void cases(unsigned int which)
{
	back_end = which;
	connects();
	streams();
	datagrams();
	files();
	huge();
	wrong();
	waiting();
}

int main(void)
{
	alarm(8 * PATIENCE_S);
	return on_both(cases);
}
