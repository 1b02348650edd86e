/*
 * Bytes and descriptors when something ends early: bytes that a pipe does not accept, and
 * descriptors whose number is reused while their close still waits.
 */
#define _GNU_SOURCE
#include "queue.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

/* Bytes to splice: several times as many as there is room for. */
#define SPLICED 20000
#define PAGE 4096

/* Two instances with a connection between them. */
struct pair {
	struct towpath *a, *b;
	int client, server;
};

static struct pair begin_pair(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(80) };
	struct pair pair = {
		.a = towpath_new("192.0.2.1/24", 1500), .b = towpath_new("192.0.2.2/24", 1500),
	};

	CHECK(pair.a && pair.b && inet_pton(AF_INET, "192.0.2.2", &at.sin_addr) == 1);
	int listener = towpath_socket(pair.b, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(towpath_bind(pair.b, listener, (struct sockaddr *)&at, sizeof(at)) == 0);
	CHECK(towpath_listen(pair.b, listener, 1) == 0);
	pair.client = towpath_socket(pair.a, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(towpath_connect(pair.a, pair.client, (struct sockaddr *)&at, sizeof(at)) == -1);
	CHECK(errno == EINPROGRESS);
	settle(pair.a, pair.b);
	pair.server = towpath_accept4(pair.b, listener, NULL, NULL, SOCK_NONBLOCK);
	CHECK(pair.server >= 0 && towpath_close(pair.b, listener) == 0);
	return pair;
}

static void end_pair(struct pair *pair)
{
	towpath_free(pair->a);
	towpath_free(pair->b);
}

static ssize_t splice_out(struct pair *pair, int pipe, unsigned int flags)
{
	return towpath_splice(pair->b, pair->server, NULL, pipe, NULL, SPLICED, flags);
}

/* A pipe with room for one page; many small writes have filled the other pages. */
static void begin_pipe(int ends[2], int flags)
{
	char byte = 0;

	CHECK(pipe2(ends, O_CLOEXEC | O_DIRECT | flags) == 0);
	int room = fcntl(ends[1], F_GETPIPE_SZ) / PAGE - 1;
	CHECK(room > 0);
	for (int i = 0; i < room; i++)
		CHECK(write(ends[1], &byte, 1) == 1);
}

/* Reads the pipe, except for the bytes of begin_pipe(). Returns the number of bytes. */
static size_t drain(int pipe, unsigned char *into, size_t room, int *padding)
{
	unsigned char packet[PAGE];
	size_t taken = 0;

	for (int left = 1; left > 0;) {
		ssize_t count = read(pipe, packet, sizeof(packet));

		CHECK(count > 0);
		if (count > 1 || *padding <= 0) {
			CHECK((size_t)count <= room - taken);
			memcpy(into + taken, packet, count);
			taken += count;
		} else {
			--*padding;
		}
		struct pollfd polled = { .fd = pipe, .events = POLLIN };
		left = poll(&polled, 1, 0);
	}
	return taken;
}

/* Bytes that a pipe does not accept stay in the socket, and no call waits for room twice. */
static void splices(int flags, unsigned int splice_flags)
{
	static unsigned char sent[SPLICED], received[SPLICED];
	struct pair pair = begin_pair();
	int ends[2], never_waits = flags || splice_flags;

	begin_pipe(ends, flags);
	int padding = fcntl(ends[1], F_GETPIPE_SZ) / PAGE - 1;
	for (int i = 0; i < SPLICED; i++)
		sent[i] = i * 7 + i / 256;
	CHECK(towpath_write(pair.a, pair.client, sent, SPLICED) == SPLICED);
	settle(pair.a, pair.b);
	ssize_t moved = splice_out(&pair, ends[1], splice_flags);
	CHECK(moved > 0 && moved <= PAGE);
	if (never_waits)
		CHECK(splice_out(&pair, ends[1], splice_flags) == -1 && errno == EAGAIN);
	size_t arrived = drain(ends[0], received, SPLICED, &padding);
	CHECK(arrived == (size_t)moved);
	while (arrived < SPLICED) {
		moved = splice_out(&pair, ends[1], splice_flags);
		CHECK(moved > 0);
		CHECK(drain(ends[0], received + arrived, SPLICED - arrived, &padding) == (size_t)moved);
		arrived += moved;
	}
	CHECK(!memcmp(sent, received, SPLICED));
	/* Nothing is left; then the end of the stream. */
	CHECK(splice_out(&pair, ends[1], splice_flags) == -1 && errno == EAGAIN);
	CHECK(towpath_shutdown(pair.a, pair.client, SHUT_WR) == 0);
	settle(pair.a, pair.b);
	CHECK(splice_out(&pair, ends[1], splice_flags) == 0);
	/* A file is not a pipe, and accepts nothing. */
	int file = open("/dev/null", O_WRONLY | O_CLOEXEC);
	CHECK(file >= 0 && splice_out(&pair, file, splice_flags) == -1 && errno == EINVAL);
	CHECK(close(file) == 0 && close(ends[0]) == 0);
	CHECK(splice_out(&pair, ends[1], splice_flags) == -1 && errno == EPIPE);
	CHECK(close(ends[1]) == 0);
	end_pair(&pair);
}

static void *close_client(void *argument)
{
	struct pair *pair = argument;

	CHECK(towpath_close(pair->a, pair->client) == 0);
	return NULL;
}

/* While a close lingers its number is free: what another thread does with the number persists. */
static void lingers(void)
{
	struct pair pair = begin_pair();
	struct linger linger = { .l_onoff = 1, .l_linger = 1 };
	struct epoll_event event = { .events = EPOLLIN };
	int set = towpath_epoll_create1(pair.a, 0), number = pair.client, found = -1;
	int on = fcntl(number, F_GETFD);
	pthread_t closer;

	CHECK(set >= 0 && on >= 0);
	CHECK(towpath_setsockopt(pair.a, number, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
	CHECK(towpath_epoll_ctl(pair.a, set, EPOLL_CTL_ADD, number, &event) == 0);
	/* It is not acknowledged, because no packet moves. */
	CHECK(towpath_write(pair.a, number, "bytes", 5) == 5);
	CHECK(towpath_fcntl(pair.a, number, F_SETFL, 0) == 0);
	CHECK(pthread_create(&closer, NULL, close_client, &pair) == 0);
	for (int tries = 0; found != number; tries++) {
		CHECK(tries < 10000);
		if (towpath_fcntl(pair.a, number, F_GETFL, 0) == -1)
			found = towpath_socket(pair.a, AF_INET, SOCK_DGRAM, 0);
		else
			usleep(100);
	}
	CHECK(towpath_epoll_ctl(pair.a, set, EPOLL_CTL_ADD, number, &event) == 0);
	CHECK(pthread_join(closer, NULL) == 0);
	CHECK(towpath_epoll_ctl(pair.a, set, EPOLL_CTL_ADD, number, &event) == -1 && errno == EEXIST);
	end_pair(&pair);
}

/* A set of descriptors is readable as long as one of them is ready, also for a call that waits. */
static void *poll_set(void *argument)
{
	struct pair *pair = argument;
	struct pollfd entry = { .fd = pair->server, .events = POLLIN | POLLOUT };

	CHECK(towpath_poll(pair->b, &entry, 1, 20000) == 1 && entry.revents == POLLIN);
	return NULL;
}

static void polls_sets(void)
{
	struct pair pair = begin_pair(), with_set = pair;
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };
	int set = towpath_epoll_create1(pair.b, 0);
	struct pollfd entries[] = { { .fd = set, .events = POLLIN }, { .fd = pair.server, .events = POLLIN } };
	pthread_t thread;
	char bytes[8];

	/* The set is empty, or no descriptor is ready. */
	CHECK(set >= 0 && towpath_poll(pair.b, entries, 2, 0) == 0);
	CHECK(towpath_epoll_ctl(pair.b, set, EPOLL_CTL_ADD, pair.server, &event) == 0);
	CHECK(towpath_poll(pair.b, entries, 2, 0) == 0 && !entries[0].revents);
	with_set.server = set;
	CHECK(pthread_create(&thread, NULL, poll_set, &with_set) == 0);
	usleep(10000);
	CHECK(towpath_write(pair.a, pair.client, "news", 4) == 4);
	settle(pair.a, pair.b);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(towpath_poll(pair.b, entries, 2, 0) == 2 && entries[0].revents == POLLIN);
	/* Only the requested events are reported. */
	entries[0].events = POLLOUT | POLLPRI;
	CHECK(towpath_poll(pair.b, entries, 1, 0) == 0 && !entries[0].revents);
	entries[0].events = POLLIN;
	/* An edge is reported once, and polling the set does not report it. */
	CHECK(towpath_epoll_wait(pair.b, set, &event, 1, 0) == 1 && event.events == EPOLLIN);
	CHECK(towpath_poll(pair.b, entries, 1, 0) == 0);
	event = (struct epoll_event) { .events = EPOLLIN };
	CHECK(towpath_epoll_ctl(pair.b, set, EPOLL_CTL_MOD, pair.server, &event) == 0);
	CHECK(towpath_epoll_wait(pair.b, set, &event, 1, 0) == 1 && towpath_poll(pair.b, entries, 1, 0) == 1);
	/* A descriptor that was read is not ready any more, although it was noted. */
	CHECK(towpath_read(pair.b, pair.server, bytes, 8) == 4 && towpath_poll(pair.b, entries, 1, 0) == 0);
	CHECK(towpath_close(pair.b, set) == 0 && towpath_poll(pair.b, entries, 1, 0) == 1);
	CHECK(entries[0].revents == POLLNVAL);
	end_pair(&pair);
}

struct waiting {
	struct towpath *instance;
	int fd, error;
	ssize_t received;
	/* The thread that waits; 0 until it runs. */
	_Atomic pid_t thread;
};

static void *receive_one(void *argument)
{
	struct waiting *waiting = argument;
	char byte;

	waiting->thread = gettid();
	waiting->received = towpath_recv(waiting->instance, waiting->fd, &byte, 1, 0);
	waiting->error = errno;
	return NULL;
}

/* True once the thread sleeps in the call. */
static bool is_asleep(const struct waiting *waiting)
{
	char path[64], state = 0;
	FILE *stat;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)waiting->thread);
	stat = waiting->thread ? fopen(path, "r") : NULL;
	if (!stat)
		return false;
	if (fscanf(stat, "%*d (%*[^)]) %c", &state) != 1)
		state = 0;
	fclose(stat);
	return state == 'S';
}

/*
 * A call that waits on a socket that is closed ends, also if nothing else happens, and does not
 * continue on another one of that number.
 */
static void waits_for_its_own(void)
{
	struct towpath *instance = towpath_new("192.0.2.1/24", 1500);
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(9) };

	CHECK(instance && inet_pton(AF_INET, "192.0.2.1", &at.sin_addr) == 1);
	for (int round = 0; round < 50; round++) {
		int fd = towpath_socket(instance, AF_INET, SOCK_DGRAM, 0);
		struct waiting waiting = { .instance = instance, .fd = fd };
		pthread_t thread;
		char byte;

		CHECK(fd >= 0 && pthread_create(&thread, NULL, receive_one, &waiting) == 0);
		for (int tries = 0; !is_asleep(&waiting); tries++) {
			CHECK(tries < 100000);
			usleep(100);
		}
		CHECK(towpath_close(instance, fd) == 0);
		if (round % 2)
			CHECK(pthread_join(thread, NULL) == 0);
		int other = towpath_socket(instance, AF_INET, SOCK_DGRAM, 0);
		CHECK(other == fd && towpath_bind(instance, other, (struct sockaddr *)&at, sizeof(at)) == 0);
		CHECK(towpath_sendto(instance, other, "x", 1, 0, (struct sockaddr *)&at, sizeof(at)) == 1);
		CHECK(round % 2 || pthread_join(thread, NULL) == 0);
		CHECK(waiting.received == -1 && waiting.error == EBADF);
		CHECK(towpath_recv(instance, other, &byte, 1, MSG_DONTWAIT) == 1);
		CHECK(towpath_close(instance, other) == 0);
	}
	towpath_free(instance);
}

/* A number that the program closes itself may come back: the new socket keeps it. */
static void closed_outside(void)
{
	struct towpath *instance = towpath_new("192.0.2.1/24", 1500);
	int fd = towpath_socket(instance, AF_INET, SOCK_STREAM, 0);

	CHECK(instance && fd >= 0 && close(fd) == 0);
	CHECK(towpath_socket(instance, AF_INET, SOCK_STREAM, 0) == fd && fcntl(fd, F_GETFD) != -1);
	CHECK(towpath_close(instance, fd) == 0 && fcntl(fd, F_GETFD) == -1);
	CHECK(towpath_close(instance, fd) == -1 && errno == EBADF);
	towpath_free(instance);
}

int main(void)
{
	alarm(60);
	closed_outside();
	splices(O_NONBLOCK, 0);
	splices(0, SPLICE_F_NONBLOCK);
	splices(0, 0);
	lingers();
	polls_sets();
	waits_for_its_own();
	puts("ok");
	return 0;
}
