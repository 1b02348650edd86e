/*
 * A hundred connections send without blocking, in small writes and large ones, until no more is
 * accepted. Acknowledgments are still received, writability is never reported without need, and
 * with edges alone all data arrives.
 */
#define _GNU_SOURCE
#include "check.h"
#include "towpath.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

enum { CONNECTIONS = 100, GOAL = 300000, ROUNDS = 30000 };

struct flow {
	int client, server;
	size_t sent, received;
};

static struct flow flows[CONNECTIONS];
static struct towpath *a, *b;
static unsigned char bytes[1 << 16];

/* Moves packets until neither side has any. Each side must have memory for them. */
static void settle(void)
{
	static char packet[1 << 16];
	ssize_t len;
	int moved;

	do {
		moved = 0;
		while ((len = towpath_output(a, packet, sizeof(packet))) > 0) {
			CHECK(towpath_input(b, packet, len) == 0);
			moved = 1;
		}
		while ((len = towpath_output(b, packet, sizeof(packet))) > 0) {
			CHECK(towpath_input(a, packet, len) == 0);
			moved = 1;
		}
	} while (moved);
}

static unsigned char byte_at(size_t at)
{
	return at % 251;
}

/* Sends until no more is accepted; then the socket is not writable. */
static void fill(struct flow *flow, size_t size)
{
	struct pollfd polled = { .fd = flow->client, .events = POLLOUT };

	while (flow->sent < GOAL) {
		size_t len = size < GOAL - flow->sent ? size : GOAL - flow->sent;

		for (size_t at = 0; at < len; at++)
			bytes[at] = byte_at(flow->sent + at);
		ssize_t sent = towpath_send(a, flow->client, bytes, len, MSG_DONTWAIT);

		if (sent < 0) {
			CHECK(errno == EAGAIN);
			CHECK(towpath_poll(a, &polled, 1, 0) == 0);
			return;
		}
		flow->sent += sent;
	}
}

static int drain(struct flow *flow)
{
	ssize_t len;

	while ((len = towpath_recv(b, flow->server, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0)
		for (ssize_t at = 0; at < len; at++)
			CHECK(bytes[at] == byte_at(flow->received++));
	CHECK(len == -1 && errno == EAGAIN);
	return flow->received == GOAL;
}

static void run(size_t size)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(80) };
	struct timespec nap = { .tv_nsec = 1000000 };
	int set, done = 0;

	memset(flows, 0, sizeof(flows));
	a = towpath_new("192.0.2.1/24", 1500);
	b = towpath_new("192.0.2.2/24", 1500);
	CHECK(a && b && inet_pton(AF_INET, "192.0.2.2", &address.sin_addr) == 1);
	int listener = towpath_socket(b, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(towpath_bind(b, listener, (struct sockaddr *)&address, sizeof(address)) == 0);
	CHECK(towpath_listen(b, listener, CONNECTIONS) == 0 && (set = towpath_epoll_create1(a, 0)) >= 0);
	for (int index = 0; index < CONNECTIONS; index++) {
		struct flow *flow = &flows[index];
		struct epoll_event event = { .events = EPOLLOUT | EPOLLET, .data = { .u32 = index } };

		flow->client = towpath_socket(a, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		CHECK(flow->client >= 0);
		CHECK(towpath_connect(a, flow->client, (struct sockaddr *)&address, sizeof(address)) == -1);
		CHECK(errno == EINPROGRESS);
		settle();
		flow->server = towpath_accept4(b, listener, NULL, NULL, SOCK_NONBLOCK);
		CHECK(flow->server >= 0);
		CHECK(towpath_epoll_ctl(a, set, EPOLL_CTL_ADD, flow->client, &event) == 0);
	}
	for (int index = 0; index < CONNECTIONS; index++)
		fill(&flows[index], size);
	settle();
	for (int round = 0; !done && round < ROUNDS; round++) {
		struct epoll_event events[CONNECTIONS];
		int found = towpath_epoll_wait(a, set, events, CONNECTIONS, 0);

		for (int index = 0; index < found; index++)
			if (events[index].events & EPOLLOUT)
				fill(&flows[events[index].data.u32], size);
		settle();
		done = 1;
		for (int index = 0; index < CONNECTIONS; index++)
			done &= drain(&flows[index]);
		settle();
		towpath_run_timers(a);
		towpath_run_timers(b);
		settle();
		CHECK(done || nanosleep(&nap, NULL) == 0);
	}
	CHECK(done);
	towpath_free(a);
	towpath_free(b);
}

int main(void)
{
	run(100);
	run(1000);
	run(65536);
	puts("ok");
	return 0;
}
