/*
 * A program whose signal handlers interrupt calls on sockets, and make other calls or leave by
 * longjmp, run with the library preloaded. No call waits for a lock that its own thread has.
 *
 * Method: received bytes are copied with the lock held. A buffer that cannot be written raises
 * SIGSEGV at that moment.
 */
#define _GNU_SOURCE
#include "pair.h"

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/time.h>

static char *page;
static struct pair pair;
static volatile sig_atomic_t leaves, refused;
static sigjmp_buf before;

static void handle(int number, void (*handler)(int))
{
	CHECK(sigaction(number, &(struct sigaction){ .sa_handler = handler }, NULL) == 0);
}

static void lock_page(void)
{
	CHECK(mprotect(page, 4096, PROT_NONE) == 0);
}

static void leave(int number)
{
	(void)number;
	siglongjmp(before, 1);
}

/* Runs while the interrupted call has the lock. */
static void within(int number)
{
	refused += send(pair.ours, "x", 1, 0) == -1 && errno == EDEADLK;
	refused += close(pair.ours) == -1 && errno == EDEADLK;
	/* Files of the kernel need no lock. */
	CHECK(write(pair.peer, "", 0) == 0);
	if (leaves)
		leave(number);
	mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

/* A handler leaves a call that waits. That call has no lock, except for moments. */
static void leaves_a_wait(void)
{
	struct itimerval timer = { .it_value = { .tv_usec = 20000 } };
	volatile int round = 0;
	char byte;

	handle(SIGALRM, leave);
	while (round++ < 10) {
		if (sigsetjmp(before, 1) == 0) {
			CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
			recv(pair.ours, &byte, 1, 0);
			CHECK(!"no byte was sent");
		}
		/* The signal may have come at one of these moments: the call fails then. */
		if (send(pair.ours, "x", 1, 0) == -1) {
			CHECK(errno == EDEADLK);
			return;
		}
		CHECK(recv(pair.peer, &byte, 1, 0) == 1);
	}
	works(pair);
}

/* A handler calls, is refused, and returns: the interrupted call ends, and all is as before. */
static void calls_within(void)
{
	handle(SIGSEGV, within);
	lock_page();
	CHECK(write(pair.peer, "abcd", 4) == 4 && recv(pair.ours, page, 4, MSG_WAITALL) == 4);
	CHECK(refused == 2 && memcmp(page, "abcd", 4) == 0);
	works(pair);
}

/* A handler leaves a call that has the lock: the thread can make no other one. */
static void leaves_with_the_lock(void)
{
	struct pollfd entry = { .fd = pair.ours, .events = POLLIN };
	struct epoll_event event = { .events = EPOLLIN };
	char buffer[4];
	int ends[2];

	refused = 0, leaves = 1;
	lock_page();
	CHECK(write(pair.peer, "abcd", 4) == 4);
	if (sigsetjmp(before, 1) == 0) {
		recv(pair.ours, page, 4, MSG_WAITALL);
		CHECK(!"the handler has left");
	}
	CHECK(refused == 2);
	FAILS(send(pair.ours, "x", 1, 0), EDEADLK);
	FAILS(read(pair.ours, buffer, 4), EDEADLK);
	FAILS(poll(&entry, 1, -1), EDEADLK);
	FAILS(epoll_ctl(epoll_create1(0), EPOLL_CTL_ADD, pair.ours, &event), EDEADLK);
	FAILS(socket(AF_INET, SOCK_STREAM, 0), EDEADLK);
	FAILS(dup(pair.ours), EDEADLK);
	FAILS(dup2(pair.ours, pair.peer), EDEADLK);
	FAILS(close(pair.ours), EDEADLK);
	CHECK(pipe(ends) == 0 && write(ends[1], "file", 4) == 4 && read(ends[0], buffer, 4) == 4);
	CHECK(write(pair.peer, "x", 1) == 1);
}

int main(int count, char **arguments)
{
	CHECK(count == 2);
	page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED);
	pair = stream();
	if (strcmp(arguments[1], "waiting") == 0) {
		leaves_a_wait();
	} else {
		calls_within();
		leaves_with_the_lock();
	}
	if (write(1, "ok\n", 3) != 3)
		_exit(1);
	/* Ends without the lock. */
	exit(0);
}
