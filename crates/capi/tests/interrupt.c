/*
 * Signals interrupt calls that wait, as they interrupt those of the kernel: without SA_RESTART, and
 * with it if the wait has a limit. Each case runs on a socket of an instance and on one of the
 * kernel.
 */
#define _GNU_SOURCE
#include "check.h"
#include "towpath.h"

#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

static struct towpath *net;

#define CALL(name, ...) (net ? towpath_##name(net, __VA_ARGS__) : name(__VA_ARGS__))

static volatile sig_atomic_t signals;

static void count_signal(int number)
{
	(void)number;
	signals++;
}

/* A signal in 50 ms. */
static void signal_soon(int flags)
{
	struct sigaction action = { .sa_handler = count_signal, .sa_flags = flags };
	struct itimerval timer = { .it_value = { .tv_usec = 50000 } };

	signals = 0;
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static void *shut_down_later(void *fd)
{
	usleep(300000);
	CHECK(CALL(shutdown, *(int *)fd, SHUT_RD) == 0);
	return NULL;
}

static void play(void)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY) };
	struct timeval limit = { .tv_sec = 10 }, none = { 0 };
	int fd = CALL(socket, AF_INET, SOCK_STREAM, 0);
	pthread_t thread;

	CHECK(fd >= 0 && CALL(bind, fd, (struct sockaddr *)&name, sizeof(name)) == 0);
	CHECK(CALL(listen, fd, 1) == 0);
	signal_soon(0);
	CHECK(CALL(accept, fd, NULL, NULL) == -1 && errno == EINTR && signals == 1);
	CHECK(CALL(setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
	signal_soon(SA_RESTART);
	CHECK(CALL(accept, fd, NULL, NULL) == -1 && errno == EINTR && signals == 1);
	CHECK(CALL(setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof(none)) == 0);
	/* The signal does not end this wait; the other thread does. */
	CHECK(pthread_create(&thread, NULL, shut_down_later, &fd) == 0);
	signal_soon(SA_RESTART);
	CHECK(CALL(accept, fd, NULL, NULL) == -1 && errno == EINVAL && signals == 1);
	CHECK(pthread_join(thread, NULL) == 0 && CALL(close, fd) == 0);
}

int main(void)
{
	play();
	net = towpath_new("192.0.2.1/24", 1500);
	CHECK(net);
	play();
	towpath_free(net);
	puts("ok");
	return 0;
}
