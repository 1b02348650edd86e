/*
 * An instance on a TAP device talks to the kernel's TCP, in real time: every scene runs over IPv4
 * and IPv6, once with the kernel as the server and once with the instance.
 *
 * Runs in its own network namespace. Exit code 77: not possible on this machine.
 */
#define _GNU_SOURCE
#include "tap.h"

#include <dirent.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <linux/if_tun.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

/* Longest run time of this program, in seconds. */
#define PATIENCE 300
#define TRANSFER_BYTES (16 << 20)
#define MANY 200

static int listen_at(struct end *end, int domain, int port)
{
	union address at;
	socklen_t len = address_of(end, domain, port, &at);
	int one = 1, fd = CALL(end, socket, domain, SOCK_STREAM, 0);

	CHECK(fd >= 0);
	CHECK(CALL(end, setsockopt, fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
	CHECK(CALL(end, bind, fd, &at.any, len) == 0);
	CHECK(CALL(end, listen, fd, MANY) == 0);
	return fd;
}

static int connect_to(struct scene *scene, int port, int flags)
{
	union address at;
	socklen_t len = address_of(scene->server, scene->domain, port, &at);
	int fd = CALL(scene->client, socket, scene->domain, SOCK_STREAM | flags, 0);

	CHECK(fd >= 0);
	if (CALL(scene->client, connect, fd, &at.any, len) == 0 || errno == EINPROGRESS)
		return fd;
	int error = errno;
	CHECK(CALL(scene->client, close, fd) == 0);
	errno = error;
	return -1;
}

/* The bytes of one direction of a transfer: from a generator with this seed. */
struct flow {
	struct end *end;
	int fd;
	uint64_t seed;
};

static uint64_t next(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return *seed >> 32;
}

static void *send_all(void *argument)
{
	struct flow *flow = argument;
	static __thread unsigned char bytes[50000];
	size_t sent = 0;

	while (sent < TRANSFER_BYTES) {
		size_t len = sizeof(bytes), done = 0;

		if (len > TRANSFER_BYTES - sent)
			len = TRANSFER_BYTES - sent;
		for (size_t i = 0; i < len; i++)
			bytes[i] = next(&flow->seed);
		while (done < len) {
			ssize_t count = CALL(flow->end, send, flow->fd, bytes + done, len - done,
					     MSG_NOSIGNAL);
			CHECK(count > 0);
			done += count;
		}
		sent += len;
	}
	CHECK(CALL(flow->end, shutdown, flow->fd, SHUT_WR) == 0);
	return NULL;
}

static void receive_all(struct flow *flow)
{
	static __thread unsigned char bytes[70000];
	size_t received = 0;
	ssize_t count;

	while ((count = CALL(flow->end, read, flow->fd, bytes, sizeof(bytes))) > 0) {
		for (ssize_t i = 0; i < count; i++)
			CHECK(bytes[i] == (unsigned char)next(&flow->seed));
		received += count;
	}
	CHECK(count == 0 && received == TRANSFER_BYTES);
}

/* Sends and receives at once; each direction ends separately. */
static void exchange(struct end *end, int fd, uint64_t own, uint64_t other)
{
	struct flow out = { end, fd, own }, in = { end, fd, other };
	pthread_t sender;

	CHECK(pthread_create(&sender, NULL, send_all, &out) == 0);
	receive_all(&in);
	CHECK(pthread_join(sender, NULL) == 0);
	CHECK(CALL(end, close, fd) == 0);
}

struct served {
	struct scene *scene;
	int listener;
};

static void *serve_transfer(void *argument)
{
	struct served *served = argument;
	union address peer;
	socklen_t len = sizeof(peer);
	int fd = CALL(served->scene->server, accept, served->listener, &peer.any, &len);

	CHECK(fd >= 0 && peer.any.sa_family == served->scene->domain);
	exchange(served->scene->server, fd, 1, 2);
	return NULL;
}

static void transfer(struct scene *scene)
{
	struct served served = { scene, listen_at(scene->server, scene->domain, 80) };
	pthread_t server;

	CHECK(pthread_create(&server, NULL, serve_transfer, &served) == 0);
	int fd = connect_to(scene, 80, 0);
	CHECK(fd >= 0);
	exchange(scene->client, fd, 2, 1);
	CHECK(pthread_join(server, NULL) == 0);
	CHECK(CALL(scene->server, close, served.listener) == 0);
}

/* Buffers that are lent in turn. */
#define LENT 16
#define LENT_BYTES 100000

struct lender {
	struct end *end;
	int fd;
	/* Calls made, and calls whose memory has come back. */
	uint32_t called, returned;
	/* Copies are allowed. */
	int may_copy;
	/* Term of each call, in milliseconds; 0 selects that of the socket. */
	int term;
};

/* Reads notices, each a range of calls in order, until `wanted` calls have come back. */
static void wait_for(struct lender *lender, uint32_t wanted)
{
	while (lender->returned < wanted) {
		char control[128];
		struct msghdr message = { .msg_control = control, .msg_controllen = sizeof(control) };
		struct pollfd polled = { .fd = lender->fd };

		/* No timeout: poll checks at its end, and so would not detect a missing wake-up. */
		CHECK(CALL(lender->end, poll, &polled, 1, -1) == 1 && polled.revents & POLLERR);
		CHECK(CALL(lender->end, recvmsg, lender->fd, &message, MSG_ERRQUEUE) == 0);
		struct cmsghdr *header = CMSG_FIRSTHDR(&message);
		CHECK(header && header->cmsg_level == (header->cmsg_type == IP_RECVERR ? SOL_IP : SOL_IPV6));
		struct sock_extended_err notice;
		memcpy(&notice, CMSG_DATA(header), sizeof(notice));
		CHECK(notice.ee_origin == SO_EE_ORIGIN_ZEROCOPY && notice.ee_errno == 0);
		CHECK(notice.ee_info == lender->returned && notice.ee_data < lender->called);
		/* The instance has copied nothing; the kernel copies for a TAP device. */
		CHECK(!lender->end->towpath || lender->may_copy || notice.ee_code == 0);
		lender->returned = notice.ee_data + 1;
	}
}

/* Lends all that it sends, and overwrites each buffer as soon as it is back. */
static void *lend_all(void *argument)
{
	struct flow *flow = argument;
	struct lender lender = { .end = flow->end, .fd = flow->fd };
	static __thread unsigned char buffers[LENT][LENT_BYTES];
	uint32_t last[LENT] = { 0 };
	size_t sent = 0;
	int one = 1;

	CHECK(CALL(flow->end, setsockopt, flow->fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)) == 0);
	for (int turn = 0; sent < TRANSFER_BYTES; turn = (turn + 1) % LENT) {
		size_t done = 0, len = sizeof(buffers[turn]);

		if (len > TRANSFER_BYTES - sent)
			len = TRANSFER_BYTES - sent;
		wait_for(&lender, last[turn]);
		memset(buffers[turn], 0x55, sizeof(buffers[turn]));
		for (size_t i = 0; i < len; i++)
			buffers[turn][i] = next(&flow->seed);
		while (done < len) {
			ssize_t count = CALL(flow->end, send, flow->fd, buffers[turn] + done,
					     len - done, MSG_NOSIGNAL | MSG_ZEROCOPY);
			CHECK(count > 0);
			lender.called++;
			done += count;
		}
		last[turn] = lender.called;
		sent += len;
	}
	wait_for(&lender, lender.called);
	CHECK(CALL(flow->end, shutdown, flow->fd, SHUT_WR) == 0);
	return NULL;
}

static void *serve_lending(void *argument)
{
	struct served *served = argument;
	struct flow in = { served->scene->server, -1, 3 };

	in.fd = CALL(in.end, accept, served->listener, NULL, NULL);
	CHECK(in.fd >= 0);
	receive_all(&in);
	CHECK(CALL(in.end, close, in.fd) == 0);
	return NULL;
}

static void lending(struct scene *scene)
{
	struct served served = { scene, listen_at(scene->server, scene->domain, 85) };
	struct flow out = { scene->client, -1, 3 };
	pthread_t server;

	CHECK(pthread_create(&server, NULL, serve_lending, &served) == 0);
	out.fd = connect_to(scene, 85, 0);
	CHECK(out.fd >= 0);
	lend_all(&out);
	CHECK(pthread_join(server, NULL) == 0);
	CHECK(CALL(scene->client, close, out.fd) == 0);
	CHECK(CALL(scene->server, close, served.listener) == 0);
}

static ssize_t lend_some(struct lender *lender, void *bytes, size_t len)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec piece = { bytes, len };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof(control) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = TOWPATH_SO_ZEROCOPY_TERM;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &lender->term, sizeof(int));
	if (lender->term == 0)
		message.msg_controllen = 0;
	return CALL(lender->end, sendmsg, lender->fd, &message, MSG_DONTWAIT | MSG_ZEROCOPY);
}

/* Lends more than the peer accepts without reading. Returns the number of bytes. */
static size_t lend_too_much(struct lender *lender, unsigned char *bytes, size_t len, uint64_t seed)
{
	size_t sent = 0;
	ssize_t count;

	for (size_t i = 0; i < len; i++)
		bytes[i] = next(&seed);
	while (sent < len && (count = lend_some(lender, bytes + sent, len - sent)) > 0) {
		lender->called++;
		sent += count;
	}
	CHECK(sent > 0 && (sent == len || errno == EAGAIN));
	return sent;
}

/* Calls whose memory is out. */
static uint64_t lent_calls(struct towpath *stack)
{
	struct towpath_stats stats;

	CHECK(towpath_get_stats(stack, &stats, sizeof(stats)) == 0);
	return stats.lent_calls;
}

/* A connection that its own side ends returns what is lent, without a copy. */
static void disconnects(struct scene *scene)
{
	static unsigned char bytes[4 << 20];
	const struct sockaddr nobody = { .sa_family = AF_UNSPEC };
	struct lender lender = { .end = scene->client };
	int one = 1, buffer = 1 << 20, listener = listen_at(scene->server, scene->domain, 88);
	struct towpath *stack = scene->client->towpath;

	lender.fd = connect_to(scene, 88, 0);
	int accepted = CALL(scene->server, accept, listener, NULL, NULL);
	CHECK(lender.fd >= 0 && accepted >= 0);
	CHECK(towpath_setsockopt(stack, lender.fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)) == 0);
	CHECK(towpath_setsockopt(stack, lender.fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer)) == 0);
	lend_too_much(&lender, bytes, sizeof(bytes), 5);
	CHECK(lent_calls(stack) > 0);
	CHECK(towpath_connect(stack, lender.fd, &nobody, sizeof(nobody)) == 0);
	wait_for(&lender, lender.called);
	CHECK(lent_calls(stack) == 0);
	CHECK(CALL(scene->client, close, lender.fd) == 0);
	CHECK(CALL(scene->server, close, accepted) == 0);
	CHECK(CALL(scene->server, close, listener) == 0);
}

/*
 * A peer that never reads does not keep memory: it comes back by the socket's term, then by a
 * recall, then by the terms of calls, and is overwritten at once. When the peer finally reads, it
 * gets the bytes that were sent.
 */
static void terms(struct scene *scene)
{
	static unsigned char bytes[4 << 20], got[1 << 16];
	struct lender lender = { .end = scene->client, .may_copy = 1 };
	int one = 1, term = 50, buffer = 1 << 20, listener = listen_at(scene->server, scene->domain, 86);
	socklen_t len = sizeof(term);

	lender.fd = connect_to(scene, 86, 0);
	int accepted = CALL(scene->server, accept, listener, NULL, NULL);
	CHECK(lender.fd >= 0 && accepted >= 0);
	struct towpath *stack = scene->client->towpath;
	CHECK(towpath_setsockopt(stack, lender.fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)) == 0);
	CHECK(towpath_setsockopt(stack, lender.fd, SOL_SOCKET, SO_SNDBUF, &buffer,
				 sizeof(buffer)) == 0);
	for (int round = 0; round < 3; round++, term = 0) {
		lender.term = round == 2 ? 50 : 0;
		CHECK(towpath_setsockopt(stack, lender.fd, SOL_SOCKET, TOWPATH_SO_ZEROCOPY_TERM, &term,
					 sizeof(term)) == 0);
		int told = -1;
		CHECK(towpath_getsockopt(stack, lender.fd, SOL_SOCKET, TOWPATH_SO_ZEROCOPY_TERM, &told,
					 &len) == 0 && told == term);
		uint32_t first = lender.called;
		size_t sent = lend_too_much(&lender, bytes, sizeof(bytes), 7 + round);
		/* The device completes checksums: what the peer has not accepted stays lent. */
		if (round == 1)
			CHECK(lent_calls(stack) > 0);
		if (round == 1)
			CHECK(towpath_recall(stack, lender.fd, first, lender.called - 1) == 0 ||
			      errno == EAGAIN);
		wait_for(&lender, lender.called);
		memset(bytes, 0x55, sizeof(bytes));
		uint64_t seed = 7 + round;
		while (sent > 0) {
			ssize_t count = CALL(scene->server, read, accepted, got,
					     sent < sizeof(got) ? sent : sizeof(got));
			CHECK(count > 0);
			for (ssize_t i = 0; i < count; i++)
				CHECK(got[i] == (unsigned char)next(&seed));
			sent -= count;
		}
	}
	term = -1;
	CHECK(towpath_setsockopt(stack, lender.fd, SOL_SOCKET, TOWPATH_SO_ZEROCOPY_TERM, &term,
				 sizeof(term)) == -1 && errno == EINVAL);
	CHECK(towpath_recall(stack, lender.fd, 0, UINT32_MAX) == 0);
	struct towpath_stats stats;
	CHECK(towpath_get_stats(stack, &stats, sizeof(stats)) == 0);
	CHECK(stats.terms_fired > 0 && stats.copied_recall > 0 && stats.lent_calls == 0);
	CHECK(stats.hits > 0 && stats.hits < stats.lent);
	CHECK(towpath_recall(stack, -1, 0, 0) == -1 && errno == EBADF);
	CHECK(CALL(scene->client, close, lender.fd) == 0);
	CHECK(CALL(scene->server, close, accepted) == 0);
	CHECK(CALL(scene->server, close, listener) == 0);
}

/* A child's writes to its copy of lent memory do not affect the parent. */
static void lent_across_fork(struct scene *scene)
{
	static unsigned char bytes[1 << 20], got[1 << 16];
	struct lender lender = { .end = scene->client, .may_copy = 1 };
	int one = 1, status, listener = listen_at(scene->server, scene->domain, 98);
	uint64_t seed = 9;

	lender.fd = connect_to(scene, 98, 0);
	int accepted = CALL(scene->server, accept, listener, NULL, NULL);
	CHECK(lender.fd >= 0 && accepted >= 0);
	CHECK(CALL(lender.end, setsockopt, lender.fd, SOL_SOCKET, SO_ZEROCOPY, &one,
		   sizeof(one)) == 0);
	size_t sent = lend_too_much(&lender, bytes, sizeof(bytes), seed);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		memset(bytes, 0x55, sizeof(bytes));
		_exit(bytes[0] != 0x55);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	while (sent > 0) {
		ssize_t count = CALL(scene->server, read, accepted, got,
				     sent < sizeof(got) ? sent : sizeof(got));
		CHECK(count > 0);
		for (ssize_t i = 0; i < count; i++)
			CHECK(got[i] == (unsigned char)next(&seed));
		sent -= count;
	}
	wait_for(&lender, lender.called);
	CHECK(CALL(scene->client, close, lender.fd) == 0);
	CHECK(CALL(scene->server, close, accepted) == 0);
	CHECK(CALL(scene->server, close, listener) == 0);
}

/* A client that has shut down its sending side still gets an answer. */
static void half_close(struct scene *scene)
{
	int listener = listen_at(scene->server, scene->domain, 81);
	int fd = connect_to(scene, 81, 0);
	char bytes[8];

	CHECK(fd >= 0);
	int accepted = CALL(scene->server, accept, listener, NULL, NULL);
	CHECK(accepted >= 0);
	CHECK(CALL(scene->client, write, fd, "ask", 3) == 3);
	CHECK(CALL(scene->client, shutdown, fd, SHUT_WR) == 0);
	CHECK(CALL(scene->server, recv, accepted, bytes, 3, MSG_WAITALL) == 3);
	CHECK(CALL(scene->server, read, accepted, bytes, sizeof(bytes)) == 0);
	CHECK(CALL(scene->server, write, accepted, "answer", 6) == 6);
	CHECK(CALL(scene->client, recv, fd, bytes, 6, MSG_WAITALL) == 6);
	CHECK(memcmp(bytes, "answer", 6) == 0);
	CHECK(CALL(scene->server, close, accepted) == 0);
	CHECK(CALL(scene->client, read, fd, bytes, sizeof(bytes)) == 0);
	CHECK(CALL(scene->client, close, fd) == 0);
	CHECK(CALL(scene->server, close, listener) == 0);
}

/* Closes both ends with a reset, after which nothing is lent. */
static void close_at_once(struct scene *scene, int fd, int accepted, int listener)
{
	struct linger linger = { .l_onoff = 1 };

	CHECK(CALL(scene->client, setsockopt, fd, SOL_SOCKET, SO_LINGER, &linger,
		   sizeof(linger)) == 0);
	CHECK(CALL(scene->client, close, fd) == 0);
	CHECK(CALL(scene->server, close, accepted) == 0);
	CHECK(CALL(scene->server, close, listener) == 0);
}

/*
 * Invalid input of a send, lent or not: more ranges than IOV_MAX, a negative length, no memory at
 * an address, pages that cannot be read, and more bytes than one call may have, in one range and in
 * the sum of several: further bytes are not even accessed.
 */
static void wrong_ranges(struct scene *scene)
{
	enum { MOST = 1024 };
	static struct iovec pieces[MOST + 1];
	static char byte[MOST], got[MOST];
	const size_t huge = 5ul << 30, call_max = 0x7ffff000;
	/* Prevents a warning of the compiler about the negative length. */
	volatile int negative = -1;
	struct lender lender = { .end = scene->client };
	struct msghdr message = { .msg_iov = pieces };
	int one = 1, listener = listen_at(scene->server, scene->domain, 99);
	char *big = mmap(NULL, huge, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	/* The kernel chooses no address here for another mapping, as it begins far above. */
	char *gone = mmap((void *)(1ul << 45), 1 << 16, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	CHECK(big != MAP_FAILED && gone == (void *)(1ul << 45) && munmap(gone, 1 << 15) == 0);
	int fd = lender.fd = connect_to(scene, 99, 0);
	int accepted = CALL(scene->server, accept, listener, NULL, NULL);
	CHECK(fd >= 0 && accepted >= 0);
	CHECK(CALL(scene->client, setsockopt, fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)) == 0);
	for (int lends = 0; lends < 2; lends++) {
		int flags = MSG_DONTWAIT | (lends ? MSG_ZEROCOPY : 0);

		for (int i = 0; i <= MOST; i++)
			pieces[i] = (struct iovec) { byte + i % MOST, 1 };
		message.msg_iovlen = MOST + 1;
		CHECK(CALL(scene->client, sendmsg, fd, &message, flags) == -1 && errno == EMSGSIZE);
		message.msg_iovlen = SIZE_MAX;
		CHECK(CALL(scene->client, sendmsg, fd, &message, flags) == -1 && errno == EMSGSIZE);
		CHECK(CALL(scene->client, recvmsg, fd, &message, flags) == -1 && errno == EMSGSIZE);
		CHECK(CALL(scene->client, writev, fd, pieces, MOST + 1) == -1 && errno == EINVAL);
		CHECK(CALL(scene->client, writev, fd, pieces, negative) == -1 && errno == EINVAL);
		message.msg_iovlen = MOST;
		CHECK(CALL(scene->client, sendmsg, fd, &message, flags) == MOST);
		lender.called += lends;
		CHECK(CALL(scene->server, recv, accepted, got, MOST, MSG_WAITALL) == MOST);
		message.msg_iovlen = 2;
		pieces[1].iov_len = SIZE_MAX;
		CHECK(CALL(scene->client, sendmsg, fd, &message, flags) == -1 && errno == EINVAL);
		CHECK(CALL(scene->client, send, fd, NULL, 1, flags) == -1 && errno == EFAULT);
	}
	for (int at = 0; at < 1 << 16; at += 1 << 15) {
		CHECK(CALL(scene->client, send, fd, gone + at, 100, MSG_DONTWAIT | MSG_ZEROCOPY) == -1);
		CHECK(errno == EFAULT);
		pieces[1] = (struct iovec) { gone + at, 100 };
		CHECK(CALL(scene->client, sendmsg, fd, &message, MSG_DONTWAIT | MSG_ZEROCOPY) == -1);
		CHECK(errno == EFAULT);
	}
	/* Calls that fail have no number. */
	wait_for(&lender, lender.called);
	close_at_once(scene, fd, accepted, listener);
	for (int lends = 0; lends < 2; lends++) {
		int flags = MSG_DONTWAIT | (lends ? MSG_ZEROCOPY : 0);

		for (int sum = 0; sum < 2; sum++) {
			listener = listen_at(scene->server, scene->domain, 99);
			fd = connect_to(scene, 99, 0);
			accepted = CALL(scene->server, accept, listener, NULL, NULL);
			CHECK(fd >= 0 && accepted >= 0);
			CHECK(CALL(scene->client, setsockopt, fd, SOL_SOCKET, SO_ZEROCOPY, &one,
				   sizeof(one)) == 0);
			pieces[0] = (struct iovec) { big, sum ? call_max : huge };
			pieces[1] = (struct iovec) { NULL, 1 };
			message.msg_iovlen = 1 + sum;
			ssize_t count = CALL(scene->client, sendmsg, fd, &message, flags);
			CHECK(count > 0 && count <= (ssize_t)call_max);
			CHECK(CALL(scene->server, read, accepted, got, 1) == 1 && got[0] == 0);
			close_at_once(scene, fd, accepted, listener);
		}
	}
	CHECK(munmap(big, huge) == 0 && munmap(gone + (1 << 15), 1 << 15) == 0);
}

/*
 * Memory that is unmapped while it is lent: only lent bytes arrive, the connection makes no
 * progress until it is given up, and the instance continues.
 */
static void memory_that_goes(struct scene *scene)
{
	static unsigned char got[1 << 16];
	const size_t len = 16 << 20;
	struct lender lender = { .end = scene->client };
	int one = 1, listener = listen_at(scene->server, scene->domain, 99);
	struct timeval patience = { .tv_usec = 300000 };
	uint64_t seed = 11;
	size_t received = 0;
	ssize_t count;
	unsigned char *bytes = mmap(NULL, len, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(bytes != MAP_FAILED);
	lender.fd = connect_to(scene, 99, 0);
	int accepted = CALL(scene->server, accept, listener, NULL, NULL);
	CHECK(lender.fd >= 0 && accepted >= 0);
	CHECK(CALL(scene->client, setsockopt, lender.fd, SOL_SOCKET, SO_ZEROCOPY, &one,
		   sizeof(one)) == 0);
	CHECK(CALL(scene->server, setsockopt, accepted, SOL_SOCKET, SO_RCVTIMEO, &patience,
		   sizeof(patience)) == 0);
	size_t sent = lend_too_much(&lender, bytes, len, seed);
	CHECK(munmap(bytes, len) == 0);
	while ((count = CALL(scene->server, read, accepted, got, sizeof(got))) > 0) {
		for (ssize_t i = 0; i < count; i++)
			CHECK(got[i] == (unsigned char)next(&seed));
		received += count;
	}
	CHECK(count == -1 && errno == EAGAIN && received < sent);
	struct towpath_stats stats;
	if (scene->client->towpath) {
		CHECK(towpath_get_stats(scene->client->towpath, &stats, sizeof(stats)) == 0);
		CHECK(stats.refused_by_device > 0);
	}
	close_at_once(scene, lender.fd, accepted, listener);
	half_close(scene);
}

/*
 * Memory that is freed while it is lent, and is then used by other code of the same program: the
 * bytes that arrive may be of either, but their number is right; each call is reported; the socket
 * continues.
 */
static void memory_that_is_freed(struct scene *scene)
{
	enum { LEN = 64 << 10 };
	static unsigned char got[LEN];
	struct lender lender = { .end = scene->client, .may_copy = 1 };
	int one = 1, listener = listen_at(scene->server, scene->domain, 97);
	unsigned char *bytes = malloc(LEN);

	CHECK(bytes);
	lender.fd = connect_to(scene, 97, 0);
	int accepted = CALL(scene->server, accept, listener, NULL, NULL);
	CHECK(lender.fd >= 0 && accepted >= 0);
	CHECK(CALL(scene->client, setsockopt, lender.fd, SOL_SOCKET, SO_ZEROCOPY, &one,
		   sizeof(one)) == 0);
	size_t sent = lend_too_much(&lender, bytes, LEN, 13);
	CHECK(sent > 0);
	free(bytes);
	unsigned char *others = malloc(LEN);
	CHECK(others);
	memset(others, 0x55, LEN);
	while (sent > 0) {
		ssize_t count = CALL(scene->server, read, accepted, got, sent < LEN ? sent : LEN);
		CHECK(count > 0);
		sent -= count;
	}
	wait_for(&lender, lender.called);
	free(others);
	CHECK(CALL(scene->client, write, lender.fd, "x", 1) == 1);
	CHECK(CALL(scene->server, read, accepted, got, LEN) == 1 && got[0] == 'x');
	close_at_once(scene, lender.fd, accepted, listener);
}

static void refused(struct scene *scene)
{
	CHECK(connect_to(scene, 9, 0) == -1 && errno == ECONNREFUSED);
}

static void reset(struct scene *scene)
{
	int listener = listen_at(scene->server, scene->domain, 82);
	int fd = connect_to(scene, 82, 0);
	struct linger linger = { .l_onoff = 1 };
	struct pollfd polled = { .fd = fd, .events = POLLIN };
	char byte;

	CHECK(fd >= 0);
	int accepted = CALL(scene->server, accept, listener, NULL, NULL);
	CHECK(accepted >= 0);
	CHECK(CALL(scene->server, setsockopt, accepted, SOL_SOCKET, SO_LINGER, &linger,
		   sizeof(linger)) == 0);
	CHECK(CALL(scene->server, close, accepted) == 0);
	CHECK(CALL(scene->client, poll, &polled, 1, 30000) == 1);
	CHECK((polled.revents & (POLLIN | POLLERR | POLLHUP)) == (POLLIN | POLLERR | POLLHUP));
	CHECK(CALL(scene->client, read, fd, &byte, 1) == -1 && errno == ECONNRESET);
	CHECK(CALL(scene->client, close, fd) == 0);
	CHECK(CALL(scene->server, close, listener) == 0);
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

/* Waits end in time: of poll, of a receive with a timeout, of a call that must not wait. */
static void waits(struct scene *scene)
{
	int listener = listen_at(scene->server, scene->domain, 83);
	int fd = connect_to(scene, 83, 0);
	struct timeval limit = { .tv_usec = 50000 };
	struct pollfd polled = { .fd = fd, .events = POLLIN };
	char byte;

	CHECK(fd >= 0);
	double begun = seconds();
	CHECK(CALL(scene->client, poll, &polled, 1, 50) == 0 && polled.revents == 0);
	CHECK(seconds() - begun >= 0.049);
	CHECK(CALL(scene->client, setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &limit,
		   sizeof(limit)) == 0);
	begun = seconds();
	CHECK(CALL(scene->client, read, fd, &byte, 1) == -1 && errno == EAGAIN);
	CHECK(seconds() - begun >= 0.049);
	CHECK(CALL(scene->client, recv, fd, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	CHECK(CALL(scene->client, close, fd) == 0);
	CHECK(CALL(scene->server, close, listener) == 0);
}

/* Accepts MANY connections and returns every byte, with one epoll set. */
static void *serve_many(void *argument)
{
	struct served *served = argument;
	struct end *end = served->scene->server;
	int set = CALL(end, epoll_create1, EPOLL_CLOEXEC), open = 0, closed = 0;
	struct epoll_event event = { .events = EPOLLIN, .data.fd = served->listener };
	char byte;

	CHECK(set >= 0);
	CHECK(CALL(end, fcntl, served->listener, F_SETFL, O_NONBLOCK) == 0);
	CHECK(CALL(end, epoll_ctl, set, EPOLL_CTL_ADD, served->listener, &event) == 0);
	while (closed < MANY) {
		struct epoll_event events[16];
		int count = CALL(end, epoll_wait, set, events, 16, -1);

		CHECK(count > 0);
		for (int i = 0; i < count; i++) {
			int fd = events[i].data.fd;

			if (fd == served->listener) {
				fd = CALL(end, accept4, fd, NULL, NULL, SOCK_NONBLOCK);
				CHECK(fd >= 0 || errno == EAGAIN);
				if (fd < 0)
					continue;
				open++;
				event.data.fd = fd;
				CHECK(CALL(end, epoll_ctl, set, EPOLL_CTL_ADD, fd, &event) == 0);
				continue;
			}
			ssize_t got = CALL(end, read, fd, &byte, 1);
			CHECK(got >= 0);
			if (got == 0) {
				CHECK(CALL(end, close, fd) == 0);
				closed++;
			} else {
				CHECK(CALL(end, write, fd, &byte, 1) == 1);
			}
		}
	}
	CHECK(open == MANY);
	CHECK(CALL(end, close, set) == 0);
	return NULL;
}

static void many(struct scene *scene)
{
	struct served served = { scene, listen_at(scene->server, scene->domain, 84) };
	struct end *end = scene->client;
	pthread_t server;
	int fds[MANY];

	CHECK(pthread_create(&server, NULL, serve_many, &served) == 0);
	for (int i = 0; i < MANY; i++)
		CHECK((fds[i] = connect_to(scene, 84, SOCK_NONBLOCK)) >= 0);
	for (int i = 0; i < MANY; i++) {
		struct pollfd polled = { .fd = fds[i], .events = POLLOUT };
		int error = -1;
		socklen_t len = sizeof(error);
		char byte = i;

		CHECK(CALL(end, poll, &polled, 1, 30000) == 1 && polled.revents == POLLOUT);
		CHECK(CALL(end, getsockopt, fds[i], SOL_SOCKET, SO_ERROR, &error, &len) == 0);
		CHECK(error == 0);
		CHECK(CALL(end, write, fds[i], &byte, 1) == 1);
	}
	for (int i = 0; i < MANY; i++) {
		char byte = ~i;

		CHECK(CALL(end, fcntl, fds[i], F_SETFL, 0) == 0);
		CHECK(CALL(end, read, fds[i], &byte, 1) == 1 && byte == (char)i);
		CHECK(CALL(end, close, fds[i]) == 0);
	}
	CHECK(pthread_join(server, NULL) == 0);
	CHECK(CALL(scene->server, close, served.listener) == 0);
}

/* Number of entries of a folder of /proc/self. */
static int entries(const char *path)
{
	DIR *folder = opendir(path);
	int count = 0;

	CHECK(folder);
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

/* A send of an event queue to a peer that reads comes back, and no byte was copied. */
static void sends_by_queue(struct scene *scene)
{
	static unsigned char bytes[4 << 20], got[sizeof(bytes)];
	unsigned int back_ends[] = { TOWPATH_QUEUE_EPOLL, 0 };
	uint64_t seed = 9;

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = next(&seed);
	for (int i = 0; i < 2; i++) {
		struct towpath_queue *queue = towpath_queue_new(back_ends[i]);
		int listener = listen_at(scene->server, scene->domain, 87), fd = connect_to(scene, 87, 0);
		int accepted = CALL(scene->server, accept, listener, NULL, NULL), told = 0;
		struct towpath_operation sends;

		towpath_prep_send(&sends, scene->client->towpath, fd, bytes, sizeof(bytes));
		CHECK(queue && fd >= 0 && accepted >= 0 && towpath_queue_submit(queue, &sends, 1) == 1);
		for (size_t sum = 0; sum < sizeof(got) || told < 2;) {
			struct towpath_event event;
			struct timespec moment;
			ssize_t count = sum < sizeof(got) ?
				recv(accepted, got + sum, sizeof(got) - sum, MSG_DONTWAIT) : 0;

			CHECK(count >= 0 || errno == EAGAIN);
			sum += count > 0 ? count : 0;
			CHECK(clock_gettime(CLOCK_MONOTONIC, &moment) == 0);
			moment.tv_nsec += 1000000;
			moment.tv_sec += moment.tv_nsec / 1000000000;
			moment.tv_nsec %= 1000000000;
			if (towpath_queue_wait(queue, &event, 1, 1, &moment) == 0)
				continue;
			CHECK(event.result == sizeof(bytes) && !event.error);
			CHECK(event.what == (told++ ? TOWPATH_DONE : TOWPATH_PROGRESS));
			CHECK(event.flags == (told == 2 ? TOWPATH_OVER : 0));
		}
		CHECK(!memcmp(bytes, got, sizeof(got)) && towpath_queue_close(queue) == 0);
		CHECK(CALL(scene->client, close, fd) == 0);
		CHECK(CALL(scene->server, close, accepted) == 0);
		CHECK(CALL(scene->server, close, listener) == 0);
	}
}

static void play(struct scene *scene)
{
	refused(scene);
	half_close(scene);
	reset(scene);
	waits(scene);
	many(scene);
	transfer(scene);
	lending(scene);
	lent_across_fork(scene);
	wrong_ranges(scene);
	memory_that_is_freed(scene);
	if (scene->client->towpath) {
		sends_by_queue(scene);
		terms(scene);
		disconnects(scene);
		memory_that_goes(scene);
	}
}

/* Resident pages of the program. */
static long resident(void)
{
	long size, pages;
	FILE *file = fopen("/proc/self/statm", "r");

	CHECK(file && fscanf(file, "%ld %ld", &size, &pages) == 2 && fclose(file) == 0);
	return pages;
}

/* An idle instance returns packet memory to the system. */
static void comes_to_rest(struct towpath *instance)
{
	struct end ours = { instance }, kernel = { NULL };
	struct scene scene = { &kernel, &ours, AF_INET };

	transfer(&scene);
	long before = resident();
	for (int tries = 0; resident() > before - 256; tries++) {
		CHECK(tries < 1000);
		usleep(10000);
	}
	half_close(&scene);
}

static int open_device(const char *name)
{
	struct ifreq request = { .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };
	int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);

	CHECK(fd >= 0);
	strcpy(request.ifr_name, name);
	CHECK(ioctl(fd, TUNSETIFF, &request) == 0);
	return fd;
}

/* Invalid arguments are rejected. */
static void refusals(const struct towpath_config *right)
{
	struct towpath_config config = *right;
	struct { struct towpath_config config; int more; } later = { *right, 1 };

	CHECK(!towpath_attach("tap9", NULL) && errno == EFAULT);
	CHECK(!towpath_attach(NULL, right) && errno == EFAULT);
	config.size = 8;
	CHECK(!towpath_attach("tap9", &config) && errno == EINVAL);
	later.config.size = sizeof(later);
	CHECK(!towpath_attach("tap9", &later.config) && errno == E2BIG);
	config = *right;
	config.mtu = 100;
	CHECK(!towpath_attach("tap9", &config) && errno == EINVAL);
	config = *right;
	config.memory = SIZE_MAX;
	CHECK(!towpath_attach("tap9", &config) && errno == EINVAL);
	config = *right;
	config.gateways = "nonsense";
	CHECK(!towpath_attach("tap9", &config) && errno == EINVAL);
	CHECK(!towpath_attach("a name that is too long", right) && errno == EINVAL);
	CHECK(!towpath_attach_fd(-1, right) && errno == EBADF);
	CHECK(!towpath_attach_fd(0, right) && errno != 0);
}

int main(void)
{
	struct towpath_config config = CONFIG;

	if (!begin(PATIENCE))
		return NOT_POSSIBLE;
	int threads = entries("/proc/self/task"), files = entries("/proc/self/fd");

	refusals(&config);
	struct towpath *instance = towpath_attach("tap0", &config);
	CHECK(instance);
	CHECK(!towpath_attach("tap0", &config) && errno == EBUSY);
	CHECK(entries("/proc/self/task") == threads + 1);
	CHECK(towpath_input(instance, "x", 1) == -1 && errno == EOPNOTSUPP);
	configure("tap0");
	each_way(instance, play);
	comes_to_rest(instance);
	towpath_free(instance);
	CHECK(entries("/proc/self/task") == threads);
	CHECK(entries("/proc/self/fd") == files);

	int fd = open_device("tap1");
	instance = towpath_attach_fd(fd, &config);
	CHECK(instance && close(fd) == 0);
	configure("tap1");
	struct end ours = { instance }, kernel = { NULL };
	struct scene scene = { &kernel, &ours, AF_INET };
	half_close(&scene);
	/* Ends with open connections. */
	int listener = listen_at(&ours, AF_INET6, 80);
	scene = (struct scene){ &ours, &kernel, AF_INET6 };
	int left = connect_to(&scene, 80, 0);
	CHECK(left >= 0 && listener >= 0);
	towpath_free(instance);
	CHECK(close(left) == 0);
	CHECK(entries("/proc/self/task") == threads);
	CHECK(entries("/proc/self/fd") == files);
	puts("ok");
	return 0;
}
