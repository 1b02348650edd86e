/*
 * Signals interrupt calls that wait, as they interrupt those of the kernel: without SA_RESTART, and
 * with it if the wait has a limit. Each case runs on a socket of an instance and on one of the
 * kernel. No call waits for a lock that its own thread has.
 */
#define _GNU_SOURCE
#include "check.h"
#include "towpath.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
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

/* A socket that sends to itself, and a buffer that cannot be written: see locked(). */
static int own;
static char *page;
static sigjmp_buf before;
static volatile sig_atomic_t leaves;

static void call_within(int number)
{
	(void)number;
	CHECK(towpath_send(net, own, "x", 1, 0) == -1 && errno == EDEADLK);
	if (leaves)
		siglongjmp(before, 1);
	CHECK(mprotect(page, 4096, PROT_READ | PROT_WRITE) == 0);
}

/*
 * Received bytes are copied with the lock of the instance held, and a buffer that cannot be written
 * raises a signal then. Its handler can make no call, and the thread none after the handler has
 * left. Runs in a process of its own, as the instance cannot be ended.
 */
static void locked(void)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_port = htons(9) };
	struct towpath_queue *queue = towpath_queue_new(0);
	char byte;

	net = towpath_new("192.0.2.1/24", 1500);
	page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(net && queue && page != MAP_FAILED);
	own = towpath_socket(net, AF_INET, SOCK_DGRAM, 0);
	name.sin_addr.s_addr = inet_addr("192.0.2.1");
	CHECK(towpath_bind(net, own, (struct sockaddr *)&name, sizeof(name)) == 0);
	CHECK(towpath_connect(net, own, (struct sockaddr *)&name, sizeof(name)) == 0);
	CHECK(sigaction(SIGSEGV, &(struct sigaction){ .sa_handler = call_within }, NULL) == 0);
	CHECK(towpath_send(net, own, "first", 5, 0) == 5 && towpath_send(net, own, "second", 6, 0) == 6);
	CHECK(towpath_recv(net, own, page, 8, 0) == 5 && !memcmp(page, "first", 5));
	CHECK(mprotect(page, 4096, PROT_NONE) == 0);
	leaves = 1;
	if (sigsetjmp(before, 1) == 0) {
		towpath_recv(net, own, page, 8, 0);
		CHECK(!"the handler has left");
	}
	CHECK(towpath_recv(net, own, &byte, 1, 0) == -1 && errno == EDEADLK);
	CHECK(towpath_close(net, own) == -1 && errno == EDEADLK);
	CHECK(towpath_queue_fd(queue) == -1 && errno == EDEADLK);
	towpath_free(net);
	_exit(0);
}

int main(void)
{
	int status;
	pid_t child;

	play();
	net = towpath_new("192.0.2.1/24", 1500);
	CHECK(net);
	play();
	towpath_free(net);
	child = fork();
	CHECK(child >= 0);
	if (child == 0)
		locked();
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	puts("ok");
	return 0;
}
