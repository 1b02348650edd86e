/*
 * The echo server of the examples on a TAP device, in a thread of this program: clients of the
 * kernel get back what they send, and a client that leaves early does no harm.
 */
#define _GNU_SOURCE
#define main echo_main
#include "../examples/echo.c"
#undef main
/* The example defines functions with these names. */
#define begin tap_begin
#include "tap.h"

#include <pthread.h>
#include <sys/socket.h>
#include <time.h>

#define CLIENTS 16
#define BYTES (300 << 10)

static void *run_server(void *argument)
{
	static char *argv[] = { "echo", "echo0", OURS_V4 "/24", "7", NULL };

	(void)argument;
	return (void *)(intptr_t)echo_main(4, argv);
}

/* A connection, as soon as the server listens. */
static int connection(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(7) };

	inet_pton(AF_INET, OURS_V4, &at.sin_addr);
	for (int tries = 0; tries < 6000; tries++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);

		CHECK(fd >= 0);
		if (connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0)
			return fd;
		/* The server does not listen yet, or its neighbour entry timed out. */
		CHECK(errno == ECONNREFUSED || errno == EHOSTUNREACH || errno == ETIMEDOUT);
		CHECK(close(fd) == 0);
		usleep(10000);
	}
	return -1;
}

static void *send_all(void *argument)
{
	char bytes[4096];
	int fd = *(int *)argument;

	for (int at = 0; at < BYTES; at += sizeof(bytes)) {
		for (size_t i = 0; i < sizeof(bytes); i++)
			bytes[i] = (at + i) * 31 + (at + i) / 251 + fd;
		CHECK(send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL) == sizeof(bytes));
	}
	CHECK(shutdown(fd, SHUT_WR) == 0);
	return NULL;
}

int main(void)
{
	pthread_t server, senders[CLIENTS];
	int fds[CLIENTS], status;
	sigset_t blocked;
	void *ended;

	if (!tap_begin(300))
		return NOT_POSSIBLE;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGTERM);
	CHECK(pthread_sigmask(SIG_BLOCK, &blocked, NULL) == 0);
	CHECK(pthread_create(&server, NULL, run_server, NULL) == 0);
	/* The server creates the device. */
	char path[] = "/proc/sys/net/ipv6/conf/echo0/accept_dad";
	for (status = 0; access(path, F_OK) != 0 && status < 6000; status++)
		usleep(10000);
	configure("echo0");
	int early = connection();
	CHECK(early >= 0 && write(early, "x", 1) == 1 && close(early) == 0);
	for (int i = 0; i < CLIENTS; i++) {
		fds[i] = connection();
		CHECK(fds[i] >= 0 && pthread_create(&senders[i], NULL, send_all, &fds[i]) == 0);
	}
	for (int i = 0; i < CLIENTS; i++) {
		unsigned char bytes[8192];
		long sum = 0;
		ssize_t len;

		while ((len = read(fds[i], bytes, sizeof(bytes))) > 0)
			for (ssize_t at = 0; at < len; at++, sum++)
				CHECK(bytes[at] == (unsigned char)(sum * 31 + sum / 251 + fds[i]));
		CHECK(len == 0 && sum == BYTES);
		CHECK(pthread_join(senders[i], NULL) == 0 && close(fds[i]) == 0);
	}
	/* One connection is open at the end. */
	int left = connection();
	CHECK(left >= 0 && kill(getpid(), SIGTERM) == 0);
	CHECK(pthread_join(server, &ended) == 0 && ended == NULL);
	puts("ok");
	return 0;
}
