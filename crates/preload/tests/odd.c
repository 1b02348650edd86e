/*
 * A program that is not written for towpath, run with the library preloaded: descriptors of both
 * kinds in all calls, duplicates, forks, threads, signals and wrong arguments.
 */
#define _GNU_SOURCE
#include "pair.h"

#include <fcntl.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

/* Values that the compiler would refuse if it knew them. */
static void *volatile nothing;
static volatile int minus_one = -1;

static void basics(void)
{
	struct sockaddr_in name, peer;
	socklen_t len = sizeof(name);
	struct stat status;
	bool inherited[500];

	for (int fd = 3; fd < 500; fd++)
		inherited[fd] = fcntl(fd, F_GETFD) != -1;
	struct pair pair = stream();
	int value, listener;

	/* The stack has its own files elsewhere. */
	for (int fd = 3; fd < 500; fd++)
		CHECK(inherited[fd] || fcntl(fd, F_GETFD) == -1 || fd == pair.ours || fd == pair.peer);
	works(pair);
	CHECK(fstat(pair.ours, &status) == 0 && S_ISSOCK(status.st_mode));
	CHECK(getpeername(pair.ours, any(&peer), &len) == 0 && getsockname(pair.peer, any(&name), &len) == 0);
	CHECK(memcmp(&peer, &name, sizeof(name)) == 0);
	CHECK(fcntl(pair.ours, F_GETFL) == O_RDWR);
	CHECK(fcntl(pair.ours, F_SETFL, O_RDWR | O_NONBLOCK) == 0);
	CHECK(fcntl(pair.ours, F_GETFL) == (O_RDWR | O_NONBLOCK));
	FAILS(read(pair.ours, &value, 1), EAGAIN);
	value = 0;
	CHECK(ioctl(pair.ours, FIONBIO, &value) == 0 && fcntl(pair.ours, F_GETFL) == O_RDWR);
	CHECK(ioctl(pair.ours, FIOCLEX) == 0);
	len = sizeof(value);
	CHECK(getsockopt(pair.ours, SOL_SOCKET, SO_TYPE, &value, &len) == 0 && value == SOCK_STREAM);
	CHECK(fdopen(pair.ours, "r") == NULL && errno == EOPNOTSUPP);
	/* Bytes that wait, and looking at them. */
	CHECK(write(pair.peer, "abcdef", 6) == 6);
	char buffer[16] = "";
	CHECK(recv(pair.ours, buffer, 3, MSG_PEEK) == 3 && memcmp(buffer, "abc", 3) == 0);
	for (int tries = 0; ioctl(pair.ours, FIONREAD, &value) == 0 && value < 6; tries++)
		CHECK(tries < 1000 && usleep(1000) == 0);
	CHECK(value == 6 && read(pair.ours, buffer, sizeof(buffer)) == 6);
	FAILS(recv(pair.ours, buffer, 1, MSG_DONTWAIT), EAGAIN);
	end(pair);
	/* The other direction: the kernel connects. */
	listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	both_listen(listener, OURS, &name);
	FAILS(accept(listener, NULL, NULL), EAGAIN);
	pair.peer = kernel_socket(SOCK_STREAM);
	CHECK(connect(pair.peer, any(&name), sizeof(name)) == 0);
	struct pollfd ready = { .fd = listener, .events = POLLIN };
	CHECK(poll(&ready, 1, 5000) == 1);
	len = sizeof(peer);
	pair.ours = accept4(listener, any(&peer), &len, SOCK_CLOEXEC);
	CHECK(pair.ours >= 0 && peer.sin_addr.s_addr == at(KERNEL, 0).sin_addr.s_addr);
	works(pair);
	end(pair);
	CHECK(close(listener) == 0);
	FAILS(close(listener), EBADF);
	FAILS(write(listener, "x", 1), EBADF);
}

static void arguments(void)
{
	struct pair pair = stream();
	struct iovec pieces[1025];
	char buffer[1025];
	struct msghdr message = { .msg_iov = pieces, .msg_iovlen = 1025 };

	for (int i = 0; i < 1025; i++)
		pieces[i] = (struct iovec){ buffer + i, 1 };
	CHECK(send(pair.ours, buffer, 0, 0) == 0 && recv(pair.ours, buffer, 0, 0) == 0);
	CHECK(writev(pair.ours, pieces, 1024) == 1024 && writev(pair.ours, pieces, 0) == 0);
	CHECK(recv(pair.peer, buffer, 1024, MSG_WAITALL) == 1024);
	FAILS(writev(pair.ours, pieces, 1025), EINVAL);
	FAILS(writev(pair.ours, pieces, minus_one), EINVAL);
	FAILS(sendmsg(pair.ours, &message, 0), EMSGSIZE);
	CHECK(write(pair.peer, buffer, 1024) == 1024);
	for (int got = 0, count; got < 1024; got += count)
		CHECK((count = readv(pair.ours, pieces, 1024)) > 0);
	/* Lengths beyond what one call moves: only their beginning is used. */
	pieces[0] = (struct iovec){ buffer, 4 };
	pieces[1] = (struct iovec){ NULL, 0 };
	CHECK(writev(pair.ours, pieces, 2) == 4 && recv(pair.peer, buffer, 4, MSG_WAITALL) == 4);
	pieces[1].iov_len = (size_t)-1;
	FAILS(writev(pair.ours, pieces, 2), EINVAL);
	FAILS(write(pair.ours, nothing, 1), EFAULT);
	FAILS(read(pair.ours, nothing, 1), EFAULT);
	FAILS(connect(pair.ours, nothing, 16), EFAULT);
	FAILS(connect(pair.ours, any(&(struct sockaddr_in){ .sin_family = AF_INET }), 16), EISCONN);
	FAILS(lseek(pair.ours, 0, SEEK_SET), ESPIPE);
	works(pair);
	end(pair);
}

static volatile sig_atomic_t signals;

static void count_signal(int number)
{
	(void)number;
	signals++;
}

static void handle(int number, int flags)
{
	struct sigaction action = { .sa_handler = count_signal, .sa_flags = flags };

	CHECK(sigaction(number, &action, NULL) == 0);
}

static void alarm_in(int milliseconds)
{
	struct itimerval timer = { .it_value = { 0, milliseconds * 1000 } };

	signals = 0;
	CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static void *write_later(void *argument)
{
	usleep(300000);
	CHECK(write(*(int *)argument, "late", 4) == 4);
	return NULL;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

/* Waits end by signals and by time as in the kernel, on both sockets of a pair. */
static void interruptions(void)
{
	struct pair pair = stream();
	struct timeval limit = { .tv_usec = 100000 }, none = { 0 };
	char buffer[8];

	for (int side = 0; side < 2; side++) {
		int fd = side ? pair.peer : pair.ours, other = side ? pair.ours : pair.peer;
		pthread_t thread;
		struct pollfd entries[2] = { { .fd = fd, .events = POLLIN }, { .fd = other, .events = POLLIN } };
		fd_set set;

		handle(SIGALRM, 0);
		alarm_in(50);
		FAILS(read(fd, buffer, 4), EINTR);
		alarm_in(50);
		FAILS(poll(entries, 2, -1), EINTR);
		alarm_in(50);
		FD_ZERO(&set);
		FD_SET(fd, &set);
		FAILS(select(fd + 1, &set, NULL, NULL, NULL), EINTR);
		CHECK(FD_ISSET(fd, &set));
		handle(SIGALRM, SA_RESTART);
		CHECK(pthread_create(&thread, NULL, write_later, &other) == 0);
		sigset_t blocked;
		sigemptyset(&blocked);
		alarm_in(50);
		CHECK(recv(fd, buffer, 4, MSG_WAITALL) == 4 && pthread_join(thread, NULL) == 0);
		CHECK(signals == 1);
		/* A limited wait is not restarted. */
		CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
		double begun = now();
		FAILS(read(fd, buffer, 4), EAGAIN);
		CHECK(now() - begun > 0.09);
		alarm_in(20);
		FAILS(read(fd, buffer, 4), EINTR);
		CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof(none)) == 0);
		/* A signal that is blocked except in the call. */
		sigaddset(&blocked, SIGALRM);
		CHECK(pthread_sigmask(SIG_BLOCK, &blocked, NULL) == 0 && raise(SIGALRM) == 0);
		sigemptyset(&blocked);
		FAILS(ppoll(entries, 2, NULL, &blocked), EINTR);
		CHECK(pthread_sigmask(SIG_SETMASK, &blocked, NULL) == 0);
	}
	works(pair);
	end(pair);
}

static void pipes(void)
{
	struct pair pair = stream();
	char buffer[8];

	handle(SIGPIPE, 0);
	signals = 0;
	CHECK(shutdown(pair.ours, SHUT_WR) == 0 && read(pair.peer, buffer, 8) == 0);
	FAILS(send(pair.ours, "x", 1, MSG_NOSIGNAL), EPIPE);
	CHECK(signals == 0);
	FAILS(write(pair.ours, "x", 1), EPIPE);
	CHECK(signals == 1);
	end(pair);
}

static void duplicates(void)
{
	struct pair pair = stream();
	char buffer[4];
	int pipe_ends[2], first = pair.ours, other = dup(first), high = fcntl(first, F_DUPFD_CLOEXEC, 100);
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = 7 };
	int set = epoll_create1(0);

	CHECK(other >= 0 && high >= 100 && pipe(pipe_ends) == 0);
	/* They share their flags, and each can be in a set. */
	CHECK(fcntl(other, F_SETFL, O_NONBLOCK) == 0 && fcntl(first, F_GETFL) == (O_RDWR | O_NONBLOCK));
	CHECK(fcntl(other, F_SETFL, 0) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, other, &event) == 0);
	CHECK(close(first) == 0);
	pair.ours = other;
	works(pair);
	CHECK(write(pair.peer, "abcd", 4) == 4 && epoll_wait(set, &event, 1, 5000) == 1);
	CHECK(event.data.u32 == 7 && recv(other, buffer, 4, MSG_WAITALL) == 4);
	/* Onto a file of the kernel. */
	CHECK(dup2(other, pipe_ends[0]) == pipe_ends[0] && close(other) == 0);
	pair.ours = pipe_ends[0];
	works(pair);
	/* Onto itself, and a wrong source: nothing changes. */
	CHECK(dup2(pair.ours, pair.ours) == pair.ours);
	FAILS(dup3(pair.ours, pair.ours, 0), EINVAL);
	FAILS(dup2(1000, pair.ours), EBADF);
	works(pair);
	/* A file of the kernel onto the socket; the last number closes it. */
	CHECK(dup2(pipe_ends[1], pair.ours) == pair.ours);
	pair.ours = high;
	works(pair);
	CHECK(dup2(pipe_ends[1], high) == high && recv(pair.peer, buffer, 4, 0) == 0);
	CHECK(close(high) == 0 && close(pipe_ends[0]) == 0 && close(pipe_ends[1]) == 0);
	CHECK(close(set) == 0 && close(pair.peer) == 0);
	/* Some libraries close with syscall(2). */
	pair = stream();
	CHECK(syscall(SYS_close, pair.ours) == 0 && recv(pair.peer, buffer, 4, 0) == 0);
	CHECK(close(pair.peer) == 0);
	FAILS(close(pair.ours), EBADF);
}

static void closing_everything(void)
{
	for (int way = 0; way < 3; way++) {
		struct pair pair = stream();
		int copy = dup(pair.peer), first = pair.ours < copy ? pair.ours : copy;
		char byte;

		CHECK(dup2(copy, 200) == 200 && close(copy) == 0 && close(pair.peer) == 0);
		/* Standard error stays. */
		if (way == 0)
			for (int fd = 3; fd < 1024; fd++)
				if (fd != 200)
					close(fd);
		if (way == 1)
			CHECK(close_range(3, 199, 0) == 0 && close_range(201, ~0U, 0) == 0);
		if (way == 2) {
			CHECK(dup2(pair.ours, 300) == 300 && close(pair.ours) == 0);
			closefrom(201);
		}
		FAILS(fcntl(way == 2 ? 300 : first, F_GETFD), EBADF);
		CHECK(read(200, &byte, 1) == 0 && close(200) == 0);
		/* The stack has kept its own files. */
		pair = stream();
		works(pair);
		end(pair);
	}
}

static void children(void)
{
	struct pair pair = stream();
	int status;
	char buffer[4];
	pid_t child = fork();

	if (child == 0) {
		FAILS(write(pair.ours, "x", 1), EPERM);
		FAILS(read(pair.ours, buffer, 1), EPERM);
		FAILS(socket(AF_INET, SOCK_STREAM, 0), EPERM);
		CHECK(close(pair.ours) == 0);
		/* The number is one of the kernel's now. */
		int file = open("/dev/null", O_RDWR);
		CHECK(dup2(file, pair.ours) == pair.ours && write(pair.ours, "x", 1) == 1);
		CHECK(close_range(3, ~0U, 0) == 0);
		exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	works(pair);
	child = vfork();
	if (child == 0) {
		close(pair.ours);
		closefrom(3);
		_exit(7);
	}
	CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
	works(pair);
	/* What it executes has no file of the stack: only the peer, a socket of the kernel. */
	CHECK(system("test \"$(ls -l /proc/self/fd | grep -c -e socket: -e anon_inode -e net/tun)\" = 1") == 0);
	works(pair);
	end(pair);
}

static struct pair shared;

static void *receive(void *argument)
{
	char buffer[4];
	ssize_t got = read(shared.ours, buffer, 4);

	*(int *)argument = got < 0 ? errno : (int)got;
	return NULL;
}

static void *echo(void *argument)
{
	struct pair pair = stream();

	(void)argument;
	for (int i = 0; i < 50; i++)
		works(pair);
	end(pair);
	return NULL;
}

static void *nothing_to_do(void *argument)
{
	return argument;
}

static void threads(void)
{
	pthread_t threads[8];
	pthread_attr_t smallest;
	int result = 0;

	/* The library leaves room in the smallest stack. */
	CHECK(pthread_attr_init(&smallest) == 0);
	CHECK(pthread_attr_setstacksize(&smallest, PTHREAD_STACK_MIN) == 0);
	CHECK(pthread_create(&threads[0], &smallest, nothing_to_do, NULL) == 0);
	CHECK(pthread_join(threads[0], NULL) == 0);

	for (int i = 0; i < 8; i++)
		CHECK(pthread_create(&threads[i], NULL, echo, NULL) == 0);
	for (int i = 0; i < 8; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	shared = stream();
	CHECK(pthread_create(&threads[0], NULL, receive, &result) == 0);
	usleep(100000);
	CHECK(close(shared.ours) == 0 && pthread_join(threads[0], NULL) == 0 && result == EBADF);
	CHECK(close(shared.peer) == 0);
}

static void files(void)
{
	struct pair pair = stream();
	char path[] = "/tmp/towpath-odd-XXXXXX", bytes[100000], got[100000];
	int file = mkstemp(path), ends[2];
	off_t offset = 10;

	CHECK(file >= 0 && unlink(path) == 0 && pipe(ends) == 0);
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = i * 7 + i / 256;
	CHECK(write(file, bytes, sizeof(bytes)) == sizeof(bytes));
	CHECK(sendfile(pair.ours, file, &offset, 1000) == 1000 && offset == 1010);
	CHECK(recv(pair.peer, got, 1000, MSG_WAITALL) == 1000 && memcmp(got, bytes + 10, 1000) == 0);
	FAILS(sendfile(file, pair.ours, NULL, 10), EINVAL);
	CHECK(write(ends[1], bytes, 500) == 500 && splice(ends[0], NULL, pair.ours, NULL, 500, 0) == 500);
	CHECK(recv(pair.peer, got, 500, MSG_WAITALL) == 500 && memcmp(got, bytes, 500) == 0);
	CHECK(write(pair.peer, bytes, 300) == 300 && recv(pair.ours, got, 300, MSG_PEEK | MSG_WAITALL) > 0);
	for (int moved = 0, count; moved < 300; moved += count)
		CHECK((count = splice(pair.ours, NULL, ends[1], NULL, 300 - moved, 0)) > 0);
	CHECK(read(ends[0], got, 300) == 300 && memcmp(got, bytes, 300) == 0);
	FAILS(splice(pair.ours, NULL, file, NULL, 10, 0), EINVAL);
	CHECK(close(file) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
	end(pair);
}

static void datagrams(void)
{
	int ours = socket(AF_INET, SOCK_DGRAM, 0), peer = kernel_socket(SOCK_DGRAM);
	struct sockaddr_in here = at(OURS, 0), there = at(KERNEL, 0), from;
	socklen_t len = sizeof(here);
	char buffer[2][2000];
	struct iovec pieces[2] = { { buffer[0], 2000 }, { buffer[1], 2000 } };
	struct mmsghdr messages[2] = { { .msg_hdr = { .msg_iov = &pieces[0], .msg_iovlen = 1 } },
				       { .msg_hdr = { .msg_iov = &pieces[1], .msg_iovlen = 1 } } };

	CHECK(bind(ours, any(&here), len) == 0 && getsockname(ours, any(&here), &len) == 0);
	CHECK(bind(peer, any(&there), len) == 0 && getsockname(peer, any(&there), &len) == 0);
	CHECK(sendto(ours, "one", 3, 0, any(&there), len) == 3);
	CHECK(recvfrom(peer, buffer[0], 2000, 0, any(&from), &len) == 3 && from.sin_port == here.sin_port);
	CHECK(sendto(peer, "", 0, 0, any(&here), len) == 0);
	CHECK(recvfrom(ours, buffer[0], 2000, 0, any(&from), &len) == 0 && from.sin_port == there.sin_port);
	CHECK(sendto(peer, "two", 3, 0, any(&here), len) == 3 && sendto(peer, "three", 5, 0, any(&here), len) == 5);
	for (int got = 0, count; got < 2; got += count)
		CHECK((count = recvmmsg(ours, messages + got, 2 - got, MSG_WAITFORONE, NULL)) > 0);
	CHECK(messages[0].msg_len == 3 && messages[1].msg_len == 5 && memcmp(buffer[1], "three", 5) == 0);
	CHECK(connect(ours, any(&there), len) == 0);
	pieces[0].iov_len = pieces[1].iov_len = 9;
	CHECK(sendmmsg(ours, messages, 2, 0) == 2 && recv(peer, buffer[0], 2000, 0) == 9);
	CHECK(recv(peer, buffer[0], 2000, 0) == 9);
	/* The kernel answers for a port that is closed. */
	CHECK(close(peer) == 0 && send(ours, "x", 1, 0) == 1);
	FAILS(recv(ours, buffer[0], 2000, 0), ECONNREFUSED);
	CHECK(close(ours) == 0);
}

static struct pair set_pair;
static int set_of_thread;

static void *add_later(void *argument)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 42 };

	(void)argument;
	usleep(100000);
	CHECK(epoll_ctl(set_of_thread, EPOLL_CTL_ADD, set_pair.ours, &event) == 0);
	usleep(100000);
	CHECK(write(set_pair.peer, "x", 1) == 1);
	return NULL;
}

/* Files of both kinds in one set of epoll. */
static void sets(void)
{
	struct pair pair = stream();
	int ends[2], set = epoll_create1(EPOLL_CLOEXEC), outer = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 1 }, events[8];
	char buffer[8];
	pthread_t thread;

	CHECK(pipe(ends) == 0);
	FAILS(epoll_ctl(set, EPOLL_CTL_DEL, pair.ours, NULL), ENOENT);
	FAILS(epoll_ctl(set, EPOLL_CTL_MOD, pair.ours, &event), ENOENT);
	FAILS(epoll_ctl(ends[0], EPOLL_CTL_ADD, pair.ours, &event), EINVAL);
	FAILS(epoll_ctl(1000, EPOLL_CTL_ADD, pair.ours, &event), EBADF);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pair.ours, &event) == 0);
	FAILS(epoll_ctl(set, EPOLL_CTL_ADD, pair.ours, &event), EEXIST);
	event.data.u64 = 2;
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event) == 0);
	CHECK(epoll_wait(set, events, 8, 0) == 0 && epoll_wait(set, events, 8, 20) == 0);
	FAILS(epoll_wait(set, events, 0, 0), EINVAL);
	/* Level-triggered: both are reported until they are read, also one at a time. */
	CHECK(write(pair.peer, "ab", 2) == 2 && write(ends[1], "c", 1) == 1);
	CHECK(poll(&(struct pollfd){ .fd = pair.ours, .events = POLLIN }, 1, 5000) == 1);
	for (int seen = 0, round = 0; seen != 3; round++) {
		CHECK(round < 20 && epoll_wait(set, events, 1, 5000) == 1);
		seen |= events[0].data.u64;
	}
	CHECK(epoll_wait(set, events, 8, 0) == 2 && read(ends[0], buffer, 8) == 1);
	CHECK(epoll_wait(set, events, 8, 0) == 1 && events[0].data.u64 == 1 && events[0].events == EPOLLIN);
	/* A set within a set, and in poll. */
	event.data.u64 = 3;
	CHECK(epoll_ctl(outer, EPOLL_CTL_ADD, set, &event) == 0);
	CHECK(epoll_wait(outer, events, 8, 5000) == 1 && events[0].data.u64 == 3);
	struct pollfd entries[3] = { { .fd = set, .events = POLLIN }, { .fd = -1 }, { .fd = pair.ours, .events = POLLIN | POLLOUT } };
	CHECK(poll(entries, 3, 5000) == 2 && entries[0].revents == POLLIN && entries[2].revents == (POLLIN | POLLOUT));
	CHECK(recv(pair.ours, buffer, 2, MSG_WAITALL) == 2 && epoll_wait(set, events, 8, 0) == 0);
	CHECK(epoll_wait(outer, events, 8, 0) == 0);
	entries[1] = (struct pollfd){ .fd = 1000, .events = POLLIN };
	CHECK(poll(entries, 3, 0) == 2 && entries[1].revents == POLLNVAL && entries[2].revents == POLLOUT);
	/* Edge-triggered: once for each arrival. */
	event = (struct epoll_event){ .events = EPOLLIN | EPOLLET, .data.u64 = 4 };
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, pair.ours, &event) == 0 && write(pair.peer, "a", 1) == 1);
	CHECK(epoll_wait(set, events, 8, 5000) == 1 && events[0].data.u64 == 4);
	CHECK(epoll_wait(set, events, 8, 50) == 0 && write(pair.peer, "b", 1) == 1);
	CHECK(epoll_wait(set, events, 8, 5000) == 1 && recv(pair.ours, buffer, 2, MSG_WAITALL) == 2);
	/* Once, until it is armed again. */
	event.events = EPOLLIN | EPOLLONESHOT;
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, pair.ours, &event) == 0 && write(pair.peer, "a", 1) == 1);
	CHECK(epoll_wait(set, events, 8, 5000) == 1 && epoll_wait(set, events, 8, 50) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, pair.ours, &event) == 0 && epoll_wait(set, events, 8, 5000) == 1);
	CHECK(read(pair.ours, buffer, 8) == 1);
	/* A signal ends a wait, and a duplicate of the set is the same set. */
	handle(SIGALRM, SA_RESTART);
	alarm_in(50);
	FAILS(epoll_wait(set, events, 8, -1), EINTR);
	int copy = dup(set);
	CHECK(copy >= 0 && close(set) == 0);
	event.events = EPOLLIN;
	CHECK(epoll_ctl(copy, EPOLL_CTL_MOD, pair.ours, &event) == 0 && write(pair.peer, "a", 1) == 1);
	CHECK(epoll_wait(copy, events, 8, 5000) == 1 && events[0].data.u64 == 4);
	/* A closed socket is in no set; its end is reported before. */
	CHECK(close(pair.peer) == 0);
	event.events = EPOLLRDHUP;
	CHECK(epoll_ctl(copy, EPOLL_CTL_MOD, pair.ours, &event) == 0);
	CHECK(epoll_wait(copy, events, 8, 5000) == 1 && events[0].events == EPOLLRDHUP);
	CHECK(close(pair.ours) == 0 && epoll_wait(copy, events, 8, 0) == 0 && close(copy) == 0);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0 && close(outer) == 0);
	/* The first socket is added while a thread waits. */
	set_pair = stream();
	set_of_thread = epoll_create(1);
	CHECK(pthread_create(&thread, NULL, add_later, NULL) == 0);
	CHECK(epoll_wait(set_of_thread, events, 8, 5000) == 1 && events[0].data.u64 == 42);
	CHECK(pthread_join(thread, NULL) == 0 && close(set_of_thread) == 0);
	end(set_pair);
}

int main(void)
{
	basics();
	arguments();
	interruptions();
	pipes();
	duplicates();
	closing_everything();
	children();
	threads();
	files();
	datagrams();
	sets();
	if (write(1, "ok\n", 3) != 3)
		return 1;
	return 0;
}
