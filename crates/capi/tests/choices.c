/*
 * Calls that lend only where that costs less (TOWPATH_SO_ZEROCOPY_AUTO), to the kernel's TCP over a
 * TAP device. Whichever way a call goes, it has a number and a notice.
 *
 * Runs in its own network namespace. Exit code 77: not possible on this machine.
 */
#define _GNU_SOURCE
#include "tap.h"

#include <errno.h>
#include <linux/errqueue.h>
#include <poll.h>
#include <stdio.h>

/* Longest run time of this program, in seconds. */
#define PATIENCE 300
/* Lends before anything is known: the largest size from which a machine may lend. */
#define LARGE (16 << 10)

static struct towpath *stack;

/* A connection to the kernel, whose end of it is `peer`. */
struct pair {
	int fd, peer;
	/* Calls made. */
	uint32_t called;
};

static int option(int fd)
{
	int value = -1;
	socklen_t len = sizeof(value);

	CHECK(towpath_getsockopt(stack, fd, SOL_SOCKET, TOWPATH_SO_ZEROCOPY_AUTO, &value, &len) == 0);
	return value;
}

static struct pair connect_pair(void)
{
	struct pair pair = { 0 };
	struct end kernel = { NULL };
	union address at;
	socklen_t len = address_of(&kernel, AF_INET, 0, &at);
	int one = 1, buffer = 1 << 20, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(listener >= 0 && bind(listener, &at.any, len) == 0 && listen(listener, 1) == 0);
	CHECK(getsockname(listener, &at.any, &len) == 0);
	pair.fd = towpath_socket(stack, AF_INET, SOCK_STREAM, 0);
	CHECK(pair.fd >= 0 && towpath_connect(stack, pair.fd, &at.any, len) == 0);
	pair.peer = accept(listener, NULL, NULL);
	CHECK(pair.peer >= 0 && close(listener) == 0);
	CHECK(towpath_setsockopt(stack, pair.fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)) == 0);
	CHECK(towpath_setsockopt(stack, pair.fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer)) == 0);
	CHECK(option(pair.fd) == 1);
	return pair;
}

static void close_pair(struct pair *pair)
{
	CHECK(towpath_close(stack, pair->fd) == 0 && close(pair->peer) == 0);
}

static void lend(struct pair *pair, const void *bytes, size_t len)
{
	CHECK(towpath_send(stack, pair->fd, bytes, len, MSG_ZEROCOPY) == (ssize_t)len);
	pair->called++;
}

/* Reads a notice, which is there already. Returns its first and last call, and whether it copied. */
static struct sock_extended_err notice_of(struct pair *pair)
{
	char control[128];
	struct msghdr message = { .msg_control = control, .msg_controllen = sizeof(control) };
	struct sock_extended_err notice;

	CHECK(towpath_recvmsg(stack, pair->fd, &message, MSG_ERRQUEUE) == 0);
	memcpy(&notice, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(notice));
	CHECK(notice.ee_origin == SO_EE_ORIGIN_ZEROCOPY);
	return notice;
}

static void wait_for_notice(struct pair *pair)
{
	struct pollfd polled = { .fd = pair->fd };

	CHECK(towpath_poll(stack, &polled, 1, -1) == 1 && polled.revents & POLLERR);
}

/* Checks that the last call copied: its notice is there. */
static void has_copied(struct pair *pair)
{
	struct sock_extended_err notice = notice_of(pair);

	CHECK(notice.ee_info == pair->called - 1 && notice.ee_data == pair->called - 1);
	CHECK(notice.ee_code == SO_EE_CODE_ZEROCOPY_COPIED);
}

static void is_received(struct pair *pair, const unsigned char *bytes, size_t len)
{
	static unsigned char got[1 << 20];

	CHECK(recv(pair->peer, got, len, MSG_WAITALL) == (ssize_t)len && !memcmp(got, bytes, len));
}

static uint64_t lent(void)
{
	struct towpath_stats stats;

	CHECK(towpath_get_stats(stack, &stats, sizeof(stats)) == 0);
	return stats.lent;
}

/* Small calls copy: the notice is there although the peer has nothing, and the memory is free. */
static void by_size(void)
{
	static unsigned char bytes[LARGE], sent[LARGE];
	struct pair pair = connect_pair();
	uint64_t before = lent();

	for (size_t i = 0; i < sizeof(bytes); i++)
		sent[i] = bytes[i] = i * 7 + i / 251;
	set_link(0);
	lend(&pair, bytes, 100);
	has_copied(&pair);
	memset(bytes, 0x55, 100);
	CHECK(lent() == before);
	set_link(1);
	is_received(&pair, sent, 100);
	/* A large one lends. */
	memcpy(bytes, sent, sizeof(bytes));
	lend(&pair, bytes, LARGE);
	CHECK(lent() == before + LARGE);
	is_received(&pair, sent, LARGE);
	wait_for_notice(&pair);
	struct sock_extended_err notice = notice_of(&pair);
	CHECK(notice.ee_info == 1 && notice.ee_data == 1 && notice.ee_code == 0);
	/* Without the option, everything lends; without MSG_ZEROCOPY, nothing has a notice. */
	int off = 0, bad = 2;
	CHECK(towpath_setsockopt(stack, pair.fd, SOL_SOCKET, TOWPATH_SO_ZEROCOPY_AUTO, &bad, sizeof(bad)) == -1);
	CHECK(errno == EINVAL);
	CHECK(towpath_setsockopt(stack, pair.fd, SOL_SOCKET, TOWPATH_SO_ZEROCOPY_AUTO, &off, sizeof(off)) == 0);
	CHECK(option(pair.fd) == 0);
	lend(&pair, bytes, 100);
	CHECK(lent() == before + LARGE + 100);
	CHECK(towpath_send(stack, pair.fd, bytes, 100, 0) == 100);
	is_received(&pair, sent, 100);
	is_received(&pair, sent, 100);
	wait_for_notice(&pair);
	CHECK(notice_of(&pair).ee_data == 2);
	close_pair(&pair);
}

/* Four loans that were copied after all: the fifth call copies at once. */
static void by_outcome(void)
{
	static unsigned char bytes[5][LARGE];
	struct pair pair = connect_pair();
	uint64_t before = lent();

	set_link(0);
	for (int call = 0; call < 4; call++) {
		memset(bytes[call], call, LARGE);
		lend(&pair, bytes[call], LARGE);
		CHECK(lent() == before + (call + 1) * LARGE);
		CHECK(towpath_recall(stack, pair.fd, call, call) == 0 || errno == EAGAIN);
		wait_for_notice(&pair);
		has_copied(&pair);
	}
	lend(&pair, bytes[4], LARGE);
	has_copied(&pair);
	CHECK(lent() == before + 4 * LARGE);
	set_link(1);
	for (int call = 0; call < 4; call++)
		memset(bytes[call], call, LARGE);
	is_received(&pair, bytes[0], 4 * LARGE);
	close_pair(&pair);
}

/* Calls of all sizes: each is reported once, and its bytes arrive although they are overwritten. */
static void all_sizes(void)
{
	static unsigned char bytes[200][4000], sent[4000];
	struct pair pair = connect_pair();
	uint32_t returned = 0;

	for (uint32_t call = 0; call < 200; call++) {
		size_t len = 1 + call * 37 % 4000;

		memset(bytes[call], call, sizeof(bytes[call]));
		lend(&pair, bytes[call], len);
		/* The peer reads late, every tenth call. */
		for (uint32_t past = call - 9; call % 10 == 9 && past <= call; past++) {
			memset(sent, past, sizeof(sent));
			is_received(&pair, sent, 1 + past * 37 % 4000);
		}
		for (; call % 10 == 9 && returned <= call;) {
			wait_for_notice(&pair);
			struct sock_extended_err notice = notice_of(&pair);
			for (uint32_t one = notice.ee_info; one <= notice.ee_data; one++) {
				CHECK(one <= call && bytes[one][0] == (unsigned char)one);
				memset(bytes[one], ~one, sizeof(bytes[one]));
				returned++;
			}
		}
		CHECK(returned <= call + 1);
	}
	CHECK(returned == 200);
	close_pair(&pair);
}

int main(void)
{
	struct towpath_config config = CONFIG;

	if (!begin(PATIENCE))
		return NOT_POSSIBLE;
	config.zerocopy_auto = 1;
	stack = towpath_attach("tap0", &config);
	CHECK(stack);
	configure("tap0");
	by_size();
	by_outcome();
	all_sizes();
	towpath_free(stack);
	puts("ok");
	return 0;
}
