/*
 * Zero-copy operations of event queues, on both back ends. Sends lend the program's memory, to the
 * kernel and to instances: acceptance and return are two events, and the second says whether bytes
 * were copied. They are cancelled, late, failed, closed under them, and queues end with memory
 * lent. Receives hand out bytes in place. The kernel finally copies bytes that stay on its host.
 */
#define _GNU_SOURCE
#include "scene.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <sys/wait.h>

/* More than sockets have room for. */
#define LARGE (8 << 20)
/* More than a peer accepts that does not read, and less than a socket sends in advance. */
#define AHEAD (200 << 10)

static char sent[LARGE], received[LARGE];

/* True if the kernel accepts loans and reports copies: io_uring of Linux 6.2. */
static int lends(void)
{
	struct utsname name;
	int major = 0, minor = 0;

	CHECK(uname(&name) == 0 && sscanf(name.release, "%d.%d", &major, &minor) == 2);
	return back_end == TOWPATH_QUEUE_IO_URING && (major > 6 || (major == 6 && minor >= 2));
}

/* A connection over loopback. The peer, the second end, accepts little before it reads. */
static void narrow(int ends[2])
{
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	socklen_t len = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), in = 32 << 10, out = 2 * AHEAD;

	CHECK(listener >= 0 && setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &in, sizeof(in)) == 0);
	CHECK(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
	ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(ends[0] >= 0 && setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &out, sizeof(out)) == 0);
	CHECK(connect(ends[0], (struct sockaddr *)&address, len) == 0);
	ends[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	CHECK(ends[1] >= 0 && close(listener) == 0);
}

static struct towpath_operation send_of(int fd, void *buffer, size_t len, int flags)
{
	struct towpath_operation operation;

	if (flags == MSG_ZEROCOPY)
		towpath_prep_send_zc(&operation, NULL, fd, buffer, len);
	else
		towpath_prep_send(&operation, NULL, fd, buffer, len), operation.flags = flags;
	return operation;
}

/* Checks that the next event is TOWPATH_PROGRESS with this result. */
static void accepted(struct towpath_queue *queue, uint64_t id, int64_t result)
{
	struct towpath_event event = next(queue);

	CHECK(event.id == id && event.what == TOWPATH_PROGRESS && !event.flags && !event.error);
	CHECK(event.result == result);
}

/* Reads `len` bytes from the kernel's socket and checks that they are the sent ones. */
static void drain(int fd, size_t len)
{
	for (size_t sum = 0; sum < len;) {
		ssize_t got = recv(fd, received + sum, len - sum, 0);

		CHECK(got > 0);
		sum += got;
	}
	CHECK(!memcmp(sent, received, len));
}

/* Runs `drain` in another process: lent memory comes back while a peer reads. */
static pid_t drain_beside(int fd, size_t len)
{
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		alarm(8 * PATIENCE_S);
		drain(fd, len);
		_exit(0);
	}
	return child;
}

static void joined(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void returns(void)
{
	struct towpath_queue *queue = towpath_queue_new(back_end);
	struct towpath_event event;
	int ends[2], local[2];
	uint64_t id;

	CHECK(queue);
	/* No bytes, few, many; with the request to lend, and without. */
	size_t lens[] = { 0, 1, LARGE };
	for (int i = 0; i < 6; i++) {
		size_t len = lens[i / 2];
		int flags = i % 2 ? MSG_ZEROCOPY : 0;

		narrow(ends);
		pid_t reader = drain_beside(ends[1], len);
		id = submit(queue, send_of(ends[0], len ? sent : NULL, len, flags));
		accepted(queue, id, len);
		over_with(queue, id, len, 0, len ? TOWPATH_COPIED : 0);
		joined(reader);
		CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
	}
	/* Lent memory is out until the peer accepts it, and the next send may start. */
	narrow(ends);
	id = submit(queue, send_of(ends[0], sent, AHEAD, MSG_ZEROCOPY));
	accepted(queue, id, AHEAD);
	if (lends()) {
		CHECK(now(queue, &event, 1) == 0 && remove_id(queue, id) == EBUSY);
		CHECK(towpath_queue_cancel(queue, id) == 0 && now(queue, &event, 1) == 0);
		uint64_t second = submit(queue, send_of(ends[0], sent, 10, 0));
		accepted(queue, second, 10);
		over_with(queue, second, 10, 0, TOWPATH_COPIED);
	}
	drain(ends[1], AHEAD);
	over_with(queue, id, AHEAD, 0, TOWPATH_COPIED);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
	/* A kind of socket that cannot lend. */
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, local) == 0);
	id = submit(queue, send_of(local[0], sent, 1000, MSG_ZEROCOPY));
	accepted(queue, id, 1000);
	over_with(queue, id, 1000, 0, TOWPATH_COPIED);
	drain(local[1], 1000);
	CHECK(close(local[0]) == 0 && close(local[1]) == 0 && towpath_queue_close(queue) == 0);
}

/* A send that is stopped in the middle: exactly the accepted bytes arrive. */
static void stopped(int flags, char *memory, size_t len)
{
	struct towpath_queue *queue = towpath_queue_new(back_end);
	struct towpath_event event;
	int ends[2];

	narrow(ends);
	CHECK(queue);
	uint64_t id = submit(queue, send_of(ends[0], memory, len, flags));
	CHECK(now(queue, &event, 1) == 0 && towpath_queue_cancel(queue, id) == 0);
	/* The memory comes back as the peer reads; then the stream ends. */
	int pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		size_t sum = 0;
		ssize_t got;

		alarm(8 * PATIENCE_S);
		CHECK(close(ends[0]) == 0 && towpath_queue_close(queue) == 0);
		while (sum < LARGE && (got = recv(ends[1], received + sum, LARGE - sum, 0)) > 0)
			sum += got;
		_exit(sum == 0 || sum >= LARGE || memcmp(received, memory, sum));
	}
	event = next(queue);
	CHECK(event.id == id && event.what == TOWPATH_PROGRESS && event.result > 0 && event.result < LARGE);
	over_with(queue, id, event.result, 0, TOWPATH_COPIED);
	CHECK(shutdown(ends[0], SHUT_WR) == 0);
	joined(pid);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0 && towpath_queue_close(queue) == 0);
}

static void fails(void)
{
	struct towpath_queue *queue = towpath_queue_new(back_end);
	struct timespec past = in_ns(-1);
	struct towpath_event event;
	int ends[2];

	CHECK(queue);
	stopped(MSG_ZEROCOPY, sent, LARGE);
	stopped(0, sent, LARGE);
	/* More than any peer accepts at once. */
	size_t huge = 1ull << 32;
	char *zeros = mmap(NULL, huge, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(zeros != MAP_FAILED);
	/* With huge pages the check of the memory is fast; without them it takes longer. */
	madvise(zeros, huge, MADV_HUGEPAGE);
	stopped(MSG_ZEROCOPY, zeros, huge);
	CHECK(munmap(zeros, huge) == 0);
	/* Late before the start: nothing is sent, unless all bytes were accepted at once. */
	narrow(ends);
	struct towpath_operation late = send_of(ends[0], sent, 9, MSG_ZEROCOPY);
	late.deadline = &past;
	uint64_t id = submit(queue, late);
	event = next(queue);
	if (event.what == TOWPATH_PROGRESS)
		over_with(queue, id, 9, 0, TOWPATH_COPIED);
	else
		CHECK(event.what == TOWPATH_DONE && event.error == ETIMEDOUT && event.result == -1);
	/* A socket that was shut down for sending. A signal would end this program. */
	CHECK(shutdown(ends[0], SHUT_WR) == 0);
	over_with(queue, submit(queue, send_of(ends[0], sent, AHEAD, MSG_ZEROCOPY)), -1, EPIPE, 0);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
	/*
	 * A descriptor that is closed, and a peer that leaves bytes unread: both events are
	 * reported.
	 */
	narrow(ends);
	id = submit(queue, send_of(ends[0], sent, LARGE, MSG_ZEROCOPY));
	CHECK(now(queue, &event, 1) == 0 && close(ends[0]) == 0);
	CHECK(write(ends[1], "unread", 6) == 6 && close(ends[1]) == 0);
	event = next(queue);
	CHECK(event.id == id && event.what == TOWPATH_PROGRESS && event.result > 0 && event.result < LARGE);
	int64_t before = event.result;
	event = next(queue);
	CHECK(event.id == id && event.what == TOWPATH_DONE && event.result == before && !event.error);
	/* Invalid operations. */
	char *unmapped = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(unmapped != MAP_FAILED && munmap(unmapped, 4096) == 0);
	narrow(ends);
	CHECK(no(queue, send_of(ends[0], unmapped, 1, MSG_ZEROCOPY)) == EFAULT);
	CHECK(no(queue, send_of(ends[0], NULL, 1, MSG_ZEROCOPY)) == EFAULT);
	CHECK(no(queue, send_of(ends[0], sent, -1, MSG_ZEROCOPY)) == EFAULT);
	CHECK(no(queue, send_of(ends[0], sent, 1, MSG_ZEROCOPY | MSG_OOB)) == EINVAL);
	CHECK(no(queue, send_of(-1, sent, 1, MSG_ZEROCOPY)) == EBADF);
	struct towpath_operation receives = send_of(ends[0], received, 1, MSG_ZEROCOPY);
	receives.operation = TOWPATH_RECV;
	CHECK(no(queue, receives) == EINVAL);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0 && towpath_queue_close(queue) == 0);
}

/* A queue with lent memory stays until the memory is back, even if descriptors are closed. */
static void ends_late(void)
{
	struct towpath_queue *queue = towpath_queue_new(back_end);
	int ends[2];

	CHECK(queue);
	narrow(ends);
	uint64_t id = submit(queue, send_of(ends[0], sent, AHEAD, MSG_ZEROCOPY));
	accepted(queue, id, AHEAD);
	CHECK(close(ends[0]) == 0);
	if (lends())
		CHECK(towpath_queue_close(queue) == -1 && errno == EBUSY);
	drain(ends[1], AHEAD);
	CHECK(towpath_queue_close(queue) == 0 && close(ends[1]) == 0);
}

static void of_instances(void)
{
	struct scene scene = begin_scene();
	struct towpath_operation sends = on_client(&scene, TOWPATH_SEND, sent, 100);
	struct towpath_event event;

	/* Instances always borrow, and copy what towpath_output() returns. */
	for (int i = 0; i < 2; i++) {
		sends.flags = i ? MSG_ZEROCOPY : 0;
		uint64_t id = submit(scene.queue, sends);
		accepted(scene.queue, id, 100);
		CHECK(now(scene.queue, &event, 1) == 0);
		settle(scene.a, scene.b);
		over_with(scene.queue, id, 100, 0, TOWPATH_COPIED);
		CHECK(towpath_read(scene.b, scene.server, received, LARGE) == 100 && !memcmp(sent, received, 100));
	}
	/* Cancelled when it was accepted: the memory comes back, copied, and is overwritten. */
	sends.len = LARGE;
	uint64_t id = submit(scene.queue, sends);
	CHECK(now(scene.queue, &event, 1) == 0 && towpath_queue_cancel(scene.queue, id) == 0);
	event = next(scene.queue);
	CHECK(event.id == id && event.what == TOWPATH_PROGRESS && event.result > 0 && event.result < LARGE);
	over_with(scene.queue, id, event.result, 0, TOWPATH_COPIED);
	memcpy(received, sent, event.result);
	memset(sent, 0, event.result);
	for (int64_t sum = 0; sum < event.result;) {
		char part[4096];

		settle(scene.a, scene.b);
		ssize_t len = towpath_read(scene.b, scene.server, part, sizeof(part));
		CHECK(len > 0 && !memcmp(part, received + sum, len));
		sum += len;
	}
	/* Nothing was lent: the socket was shut down. */
	CHECK(towpath_shutdown(scene.a, scene.client, SHUT_WR) == 0);
	over_with(scene.queue, submit(scene.queue, sends), -1, EPIPE, 0);
	end_scene(&scene);
}

static struct towpath_operation lent_of(struct scene *scene, struct towpath_lent *lent, struct iovec *pieces, int count)
{
	*lent = (struct towpath_lent) { .message = { .msg_iov = pieces, .msg_iovlen = count }, .token = 99 };
	struct towpath_operation operation;

	towpath_prep_recvmsg_lent(&operation, scene->b, scene->server, lent);
	return operation;
}

/* The other direction: received bytes stay in place until they are returned. */
static void receives(void)
{
	struct scene scene = begin_scene();
	struct iovec pieces[4];
	struct towpath_lent lent;
	struct towpath_operation gets = lent_of(&scene, &lent, pieces, 4), bad = gets;
	struct timespec past = in_ns(-1);
	struct towpath_event event;

	uint64_t id = submit(scene.queue, gets);
	CHECK(now(scene.queue, &event, 1) == 0 && lent.token == 0);
	CHECK(towpath_write(scene.a, scene.client, "where it lies", 13) == 13);
	settle(scene.a, scene.b);
	over(scene.queue, id, 13, 0);
	CHECK(lent.token && lent.message.msg_iovlen == 1 && pieces[0].iov_len == 13);
	CHECK(!memcmp(pieces[0].iov_base, "where it lies", 13));
	CHECK(towpath_return(scene.b, lent.token) == 0);
	CHECK(towpath_return(scene.b, lent.token) == -1 && errno == EINVAL);
	/* Cancelled, late: nothing is handed out, and nothing is lost. */
	gets = lent_of(&scene, &lent, pieces, 4);
	id = submit(scene.queue, gets);
	CHECK(towpath_queue_cancel(scene.queue, id) == 0);
	CHECK(towpath_write(scene.a, scene.client, "kept", 4) == 4);
	settle(scene.a, scene.b);
	over(scene.queue, id, -1, ECANCELED);
	CHECK(lent.token == 0);
	gets.deadline = &past;
	over(scene.queue, submit(scene.queue, gets), -1, ETIMEDOUT);
	gets.deadline = NULL;
	over(scene.queue, submit(scene.queue, gets), 4, 0);
	CHECK(!memcmp(pieces[0].iov_base, "kept", 4) && towpath_return(scene.b, lent.token) == 0);
	/* A datagram for which there is no room stays in the queue. */
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(53) };
	int from = towpath_socket(scene.a, AF_INET, SOCK_DGRAM, 0), to = towpath_socket(scene.b, AF_INET, SOCK_DGRAM, 0);
	CHECK(from >= 0 && to >= 0 && inet_pton(AF_INET, "192.0.2.2", &address.sin_addr) == 1);
	CHECK(towpath_bind(scene.b, to, (struct sockaddr *)&address, sizeof(address)) == 0);
	CHECK(towpath_sendto(scene.a, from, "datagram", 8, 0, (struct sockaddr *)&address, sizeof(address)) == 8);
	settle(scene.a, scene.b);
	gets = lent_of(&scene, &lent, pieces, 4);
	gets.fd = to;
	lent.message.msg_name = &address, lent.message.msg_namelen = -1;
	over(scene.queue, submit(scene.queue, gets), -1, EINVAL);
	for (int count = 0; count <= 4; count += 4) {
		gets = lent_of(&scene, &lent, pieces, count);
		gets.fd = to;
		lent.message.msg_name = &address, lent.message.msg_namelen = sizeof(address);
		over(scene.queue, submit(scene.queue, gets), count ? 8 : -1, count ? 0 : EMSGSIZE);
	}
	CHECK(address.sin_port != htons(53) && !memcmp(pieces[0].iov_base, "datagram", 8));
	/* It stays although its socket is closed. */
	CHECK(towpath_close(scene.b, to) == 0 && !memcmp(pieces[0].iov_base, "datagram", 8));
	CHECK(towpath_return(scene.b, lent.token) == 0);
	/* The end of the stream, and a socket that is closed under the operation. */
	gets = lent_of(&scene, &lent, pieces, 4);
	id = submit(scene.queue, gets);
	CHECK(towpath_shutdown(scene.a, scene.client, SHUT_WR) == 0);
	settle(scene.a, scene.b);
	over(scene.queue, id, 0, 0);
	CHECK(lent.token == 0 && lent.message.msg_iovlen == 0);
	gets = lent_of(&scene, &lent, pieces, 4);
	gets.instance = scene.a, gets.fd = scene.client;
	id = submit(scene.queue, gets);
	CHECK(now(scene.queue, &event, 1) == 0 && towpath_close(scene.a, scene.client) == 0);
	over(scene.queue, id, -1, ECANCELED);
	/* Invalid operations. */
	CHECK(no(scene.queue, gets) == EBADF);
	bad.instance = NULL, bad.fd = scene.kernel[0];
	CHECK(no(scene.queue, bad) == EOPNOTSUPP);
	bad = lent_of(&scene, &lent, pieces, 4), bad.len = sizeof(struct msghdr);
	CHECK(no(scene.queue, bad) == EINVAL);
	bad = lent_of(&scene, &lent, pieces, 4), bad.buffer = NULL;
	CHECK(no(scene.queue, bad) == EFAULT);
	bad = lent_of(&scene, &lent, pieces, 4), bad.flags = MSG_PEEK;
	CHECK(no(scene.queue, bad) == EINVAL);
	bad = lent_of(&scene, &lent, NULL, 4);
	over(scene.queue, submit(scene.queue, bad), -1, EFAULT);
	end_scene(&scene);
}

#define SOCKETS 64
#define EACH 100

/* If the program holds as much as it may, a receive waits until it returns some of that. */
static void waits_for_returns(void)
{
	static uint64_t tokens[SOCKETS * EACH];
	static char bytes[1400];
	struct scene scene = begin_scene();
	struct iovec pieces[4];
	struct towpath_lent lent;
	struct towpath_event event;
	size_t held = 0;
	int to = -1, last = 0;

	while (last != ENOBUFS) {
		struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(1000 + held % 60000) };
		int from = towpath_socket(scene.a, AF_INET, SOCK_DGRAM, 0);

		to = towpath_socket(scene.b, AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
		CHECK(from >= 0 && to >= 0 && inet_pton(AF_INET, "192.0.2.2", &address.sin_addr) == 1);
		CHECK(towpath_bind(scene.b, to, (struct sockaddr *)&address, sizeof(address)) == 0);
		for (int i = 0; i < EACH; i++) {
			CHECK(towpath_sendto(scene.a, from, bytes, sizeof(bytes), 0, (struct sockaddr *)&address, sizeof(address)) > 0);
			settle(scene.a, scene.b);
		}
		CHECK(towpath_close(scene.a, from) == 0);
		for (last = 0; !last; held += !last) {
			struct msghdr message = { .msg_iov = pieces, .msg_iovlen = 4 };

			CHECK(held < SOCKETS * EACH);
			last = towpath_recvmsg_lent(scene.b, to, &message, 0, &tokens[held]) < 0 ? errno : 0;
		}
		CHECK(last == EAGAIN || last == ENOBUFS);
	}
	struct towpath_operation gets = lent_of(&scene, &lent, pieces, 4);
	gets.fd = to;
	uint64_t id = submit(scene.queue, gets);
	CHECK(now(scene.queue, &event, 1) == 0);
	/* The operation ends while it waits: the datagram stays in the queue. */
	CHECK(towpath_queue_cancel(scene.queue, id) == 0);
	over(scene.queue, id, -1, ECANCELED);
	gets = lent_of(&scene, &lent, pieces, 4);
	gets.fd = to;
	id = submit(scene.queue, gets);
	CHECK(now(scene.queue, &event, 1) == 0 && towpath_return(scene.b, 1) == -1 && errno == EINVAL);
	CHECK(now(scene.queue, &event, 1) == 0);
	while (held > 0 && now(scene.queue, &event, 1) == 0)
		CHECK(towpath_return(scene.b, tokens[--held]) == 0);
	CHECK(event.id == id && event.what == TOWPATH_DONE && event.result == sizeof(bytes) && held > 0);
	CHECK(towpath_return(scene.b, lent.token) == 0);
	while (held > 0)
		CHECK(towpath_return(scene.b, tokens[--held]) == 0);
	end_scene(&scene);
}

static void cases(unsigned int which)
{
	back_end = which;
	for (size_t i = 0; i < LARGE; i++)
		sent[i] = i * 31 + i / 251;
	returns();
	fails();
	ends_late();
	of_instances();
	receives();
	waits_for_returns();
}

int main(void)
{
	alarm(8 * PATIENCE_S);
	return on_both(cases);
}
