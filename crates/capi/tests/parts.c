/*
 * Calls that lend in parts (TOWPATH_SO_ZEROCOPY_PART), to the kernel's TCP over a TAP device: each
 * part of a call comes back on its own, in order and once, while the peer has not read the rest;
 * with losses, a limit of lent memory, recalls, a reset and a close in the middle.
 *
 * Runs in its own network namespace. Exit code 77: not possible on this machine.
 */
#define _GNU_SOURCE
#include "tap.h"

#include <errno.h>
#include <linux/errqueue.h>
#include <linux/sockios.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

/* Longest run time of this program, in seconds. */
#define PATIENCE 300
#define PART (256 << 10)
#define PARTS 96
/* Buffers of both sides; the kernel and the instance double them. All are far below half a call. */
#define BUFFER (1 << 20)

static unsigned char bytes[PARTS * PART], got[PART];

static unsigned char byte_at(size_t at)
{
	return at * 2654435761u >> 13;
}

static void fill(void)
{
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = byte_at(i);
}

/* A connection to the kernel, whose end of it is `peer`. */
struct pair {
	struct towpath *stack;
	int fd, peer;
	/* How often each part has come back, and how many have. */
	int returned[PARTS];
	uint32_t count;
};

static struct pair connect_pair(struct towpath *stack)
{
	struct pair pair = { .stack = stack };
	struct end kernel = { NULL };
	union address at;
	socklen_t len = address_of(&kernel, AF_INET, 0, &at);
	int one = 1, buffer = BUFFER, part = PART, told = -1;
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(listener >= 0 && setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer)) == 0);
	CHECK(bind(listener, &at.any, len) == 0 && listen(listener, 1) == 0);
	CHECK(getsockname(listener, &at.any, &len) == 0);
	pair.fd = towpath_socket(stack, AF_INET, SOCK_STREAM, 0);
	CHECK(pair.fd >= 0 && towpath_connect(stack, pair.fd, &at.any, len) == 0);
	pair.peer = accept(listener, NULL, NULL);
	CHECK(pair.peer >= 0 && close(listener) == 0);
	CHECK(towpath_setsockopt(stack, pair.fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)) == 0);
	CHECK(towpath_setsockopt(stack, pair.fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer)) == 0);
	CHECK(towpath_setsockopt(stack, pair.fd, SOL_SOCKET, TOWPATH_SO_ZEROCOPY_PART, &part, sizeof(part)) == 0);
	len = sizeof(told);
	CHECK(towpath_getsockopt(stack, pair.fd, SOL_SOCKET, TOWPATH_SO_ZEROCOPY_PART, &told, &len) == 0);
	CHECK(told == PART);
	fill();
	return pair;
}

static void close_pair(struct pair *pair)
{
	CHECK(towpath_close(pair->stack, pair->fd) == 0 && close(pair->peer) == 0);
}

/* The parts that began in `count` bytes. */
static uint32_t parts_in(size_t count)
{
	return (count + PART - 1) / PART;
}

/* Reads one notice, and overwrites the parts that it returns. */
static void take_notice(struct pair *pair, int in_order)
{
	char control[128];
	struct msghdr message = { .msg_control = control, .msg_controllen = sizeof(control) };
	struct pollfd polled = { .fd = pair->fd };
	struct sock_extended_err notice;

	CHECK(towpath_poll(pair->stack, &polled, 1, -1) == 1 && polled.revents & POLLERR);
	CHECK(towpath_recvmsg(pair->stack, pair->fd, &message, MSG_ERRQUEUE) == 0);
	memcpy(&notice, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(notice));
	CHECK(notice.ee_origin == SO_EE_ORIGIN_ZEROCOPY && notice.ee_data < PARTS);
	CHECK(!in_order || notice.ee_info == pair->count);
	for (uint32_t part = notice.ee_info; part <= notice.ee_data; part++) {
		CHECK(pair->returned[part]++ == 0);
		memset(bytes + part * PART, 0x55, PART);
		pair->count++;
	}
}

static void take_notices(struct pair *pair, uint32_t wanted, int in_order)
{
	while (pair->count < wanted)
		take_notice(pair, in_order);
	CHECK(pair->count <= PARTS);
}

/* Reads bytes `from` to `to` at the peer. */
static void read_to(struct pair *pair, size_t from, size_t to)
{
	while (from < to) {
		ssize_t len = recv(pair->peer, got, to - from < PART ? to - from : PART, 0);

		CHECK(len > 0);
		for (ssize_t i = 0; i < len; i++)
			CHECK(got[i] == byte_at(from + i));
		from += len;
	}
}

static struct towpath_stats stats_of(struct pair *pair)
{
	struct towpath_stats stats;

	CHECK(towpath_get_stats(pair->stack, &stats, sizeof(stats)) == 0);
	return stats;
}

/* A call that blocks on its own thread. */
struct call {
	struct pair *pair;
	atomic_int is_over;
	ssize_t result;
	int error;
	pthread_t thread;
};

static void *run_call(void *argument)
{
	struct call *call = argument;

	call->result = towpath_send(call->pair->stack, call->pair->fd, bytes, sizeof(bytes), MSG_ZEROCOPY);
	call->error = errno;
	atomic_store(&call->is_over, 1);
	return NULL;
}

static void begin_call(struct call *call, struct pair *pair)
{
	*call = (struct call){ .pair = pair };
	CHECK(pthread_create(&call->thread, NULL, run_call, call) == 0);
}

static ssize_t end_call(struct call *call)
{
	CHECK(pthread_join(call->thread, NULL) == 0 && atomic_load(&call->is_over));
	return call->result;
}

/* Waits until bytes were sent and not acknowledged. */
static void wait_for_sent(struct pair *pair)
{
	int queued = 0, unsent = 0;

	while (queued == unsent) {
		usleep(1000);
		CHECK(towpath_ioctl(pair->stack, pair->fd, SIOCOUTQNSD, &unsent) == 0);
		CHECK(towpath_ioctl(pair->stack, pair->fd, SIOCOUTQ, &queued) == 0);
	}
}

/*
 * The beginning comes back while the call is still busy with the rest, which its peer does not
 * read. Less may be lent at a time than the call has.
 */
static void in_order(struct towpath *stack, int loses)
{
	struct pair pair = connect_pair(stack);
	struct call call;
	uint64_t copied = stats_of(&pair).copied;

	CHECK(towpath_limit_lent(stack, 128 << 10, sizeof(bytes) / 4) == 0);
	if (loses)
		set_link(0);
	begin_call(&call, &pair);
	if (loses) {
		/* The first packets are lost. */
		wait_for_sent(&pair);
		set_link(1);
	}
	for (uint32_t part = 0; part < PARTS / 2; part++) {
		/* So is what is sent in these moments, if anything is. */
		if (loses && part % 16 == 8)
			set_link(0), set_link(1);
		read_to(&pair, part * PART, (part + 1) * PART);
	}
	/* All that the peer has read has been acknowledged. */
	take_notices(&pair, PARTS / 2, 1);
	CHECK(!atomic_load(&call.is_over) && stats_of(&pair).lent_bytes <= sizeof(bytes) / 4);
	read_to(&pair, PARTS / 2 * PART, sizeof(bytes));
	CHECK(end_call(&call) == sizeof(bytes));
	take_notices(&pair, PARTS, 1);
	CHECK(stats_of(&pair).lent_bytes == 0 && stats_of(&pair).copied == copied);
	/* Without parts the call does not fit the limit. */
	int whole = 0;
	CHECK(towpath_setsockopt(stack, pair.fd, SOL_SOCKET, TOWPATH_SO_ZEROCOPY_PART, &whole, sizeof(whole)) == 0);
	CHECK(towpath_send(stack, pair.fd, bytes, sizeof(bytes), MSG_ZEROCOPY) == -1 && errno == ENOBUFS);
	CHECK(towpath_limit_lent(stack, 128 << 10, SIZE_MAX) == 0);
	close_pair(&pair);
}

/* Lends as much as is accepted while the peer does not read. Returns the number of bytes. */
static size_t lend_ahead(struct pair *pair)
{
	ssize_t sent = towpath_send(pair->stack, pair->fd, bytes, sizeof(bytes), MSG_ZEROCOPY | MSG_DONTWAIT);

	CHECK(sent > 3 * PART && sent < (ssize_t)sizeof(bytes));
	return sent;
}

/* The last two parts are recalled; the other parts stay lent until they are read. */
static void recalled(struct towpath *stack)
{
	struct pair pair = connect_pair(stack);
	size_t sent = lend_ahead(&pair);
	uint32_t parts = parts_in(sent);
	int outcome = towpath_recall(stack, pair.fd, parts - 2, parts - 1);

	CHECK(outcome == 0 || errno == EAGAIN);
	while (!pair.returned[parts - 1] || !pair.returned[parts - 2])
		take_notice(&pair, 0);
	CHECK(stats_of(&pair).copied_recall > 0);
	read_to(&pair, 0, sent);
	take_notices(&pair, parts, 0);
	/* The next call has the next number. */
	bytes[0] = byte_at(sent);
	CHECK(towpath_send(stack, pair.fd, bytes, 1, MSG_ZEROCOPY) == 1);
	read_to(&pair, sent, sent + 1);
	take_notices(&pair, parts + 1, 0);
	CHECK(pair.returned[parts] == 1 && stats_of(&pair).lent_bytes == 0);
	close_pair(&pair);
}

/* The peer resets the connection: the call ends, and all parts that it began come back. */
static void reset(struct towpath *stack)
{
	struct pair pair = connect_pair(stack);
	struct linger now = { .l_onoff = 1 };
	struct call call;

	begin_call(&call, &pair);
	read_to(&pair, 0, PART);
	take_notices(&pair, 1, 1);
	CHECK(setsockopt(pair.peer, SOL_SOCKET, SO_LINGER, &now, sizeof(now)) == 0);
	CHECK(close(pair.peer) == 0);
	ssize_t sent = end_call(&call);
	CHECK(sent >= PART && sent < (ssize_t)sizeof(bytes));
	take_notices(&pair, parts_in(sent), 1);
	CHECK(pair.count == parts_in(sent) && stats_of(&pair).lent_bytes == 0);
	CHECK(towpath_close(stack, pair.fd) == 0);
}

/* A socket that is closed reports no more, and its bytes arrive. */
static void closed(struct towpath *stack)
{
	struct pair pair = connect_pair(stack);
	size_t sent = lend_ahead(&pair);

	CHECK(towpath_close(stack, pair.fd) == 0);
	read_to(&pair, 0, sent);
	CHECK(recv(pair.peer, got, 1, 0) == 0 && close(pair.peer) == 0);
	CHECK(towpath_finish(stack, -1) == 0 && stats_of(&pair).lent_bytes == 0);
}

/* Sizes that are refused, and a listener's option, which accepted sockets have. */
static void options(struct towpath *stack)
{
	int bad[] = { -1, 1, 65535 }, part = 65536, told = 0;
	int listener = towpath_socket(stack, AF_INET, SOCK_STREAM, 0);
	struct end ours = { stack };
	union address at;
	socklen_t len = address_of(&ours, AF_INET, 90, &at);

	CHECK(listener >= 0);
	for (int i = 0; i < 3; i++)
		CHECK(towpath_setsockopt(stack, listener, SOL_SOCKET, TOWPATH_SO_ZEROCOPY_PART, bad + i,
					 sizeof(int)) == -1 && errno == EINVAL);
	CHECK(towpath_setsockopt(stack, listener, SOL_SOCKET, TOWPATH_SO_ZEROCOPY_PART, &part, sizeof(part)) == 0);
	CHECK(towpath_bind(stack, listener, &at.any, len) == 0 && towpath_listen(stack, listener, 1) == 0);
	int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(client >= 0 && connect(client, &at.any, len) == 0);
	int accepted = towpath_accept(stack, listener, NULL, NULL);
	len = sizeof(told);
	CHECK(towpath_getsockopt(stack, accepted, SOL_SOCKET, TOWPATH_SO_ZEROCOPY_PART, &told, &len) == 0);
	CHECK(told == part && close(client) == 0);
	CHECK(towpath_close(stack, accepted) == 0 && towpath_close(stack, listener) == 0);
}

int main(void)
{
	struct towpath_config config = CONFIG;

	if (!begin(PATIENCE))
		return NOT_POSSIBLE;
	struct towpath *stack = towpath_attach("tap0", &config);
	CHECK(stack);
	configure("tap0");
	options(stack);
	in_order(stack, 0);
	in_order(stack, 1);
	recalled(stack);
	reset(stack);
	closed(stack);
	towpath_free(stack);
	puts("ok");
	return 0;
}
