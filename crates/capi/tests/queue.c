/* Event queues: each kind of source, its events and their times, on both back ends; and errors. */
#define _GNU_SOURCE
#include "queue.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

_Static_assert(sizeof(struct towpath_change) == 88, "as the library has it");
_Static_assert(offsetof(struct towpath_change, timer) == 48, "as the library has it");
_Static_assert(sizeof(struct towpath_event) == 40, "as the library has it");

#define MANY 10000

static unsigned int back_end;

static struct towpath_queue *new_queue(void)
{
	struct towpath_queue *queue = towpath_queue_new(back_end);

	CHECK(queue);
	return queue;
}

static void wrong_changes(struct towpath_queue *queue)
{
	struct towpath_change change = { .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_USER };
	struct { struct towpath_change change; int error; } cases[] = {
		{ { .command = 0 }, EINVAL },
		{ { .command = 4, .source = TOWPATH_SOURCE_USER }, EINVAL },
		{ { .command = TOWPATH_ADD }, EINVAL },
		{ { .command = TOWPATH_ADD, .source = 7 }, EINVAL },
		{ { .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_USER, .reserved = 1 }, EINVAL },
		{ { .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_USER, .events = EPOLLIN }, EINVAL },
		{ { .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_FD, .ident = -1 }, EBADF },
		{ { .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_FD, .ident = 1 << 29 }, EBADF },
		{ { .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_FD, .events = EPOLLPRI }, EINVAL },
		{ { .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_FD, .events = EPOLLET | EPOLLONESHOT },
		  EINVAL },
		{ { .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_SIGNAL, .ident = SIGKILL }, EINVAL },
		{ { .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_SIGNAL, .ident = -1 }, EINVAL },
		{ { .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_CHILD, .ident = 0 }, EINVAL },
		{ { .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_CHILD, .ident = -5 }, EINVAL },
		{ { .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_CHILD, .ident = 1 << 29 }, ESRCH },
		{ { .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_FILE }, EFAULT },
		{ { .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_FILE, .path = "/nowhere/at/all" },
		  ENOENT },
		{ { .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_TIMER, .events = 2 }, EINVAL },
		{ { .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_TIMER,
		    .timer.it_value.tv_nsec = 1000000000 }, EINVAL },
		{ { .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_TIMER, .timer.it_value.tv_sec = -1 },
		  EINVAL },
		{ { .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_TIMER,
		    .timer.it_interval.tv_nsec = -1 }, EINVAL },
		{ { .command = TOWPATH_MODIFY, .source = TOWPATH_SOURCE_USER }, EINVAL },
		{ { .command = TOWPATH_MODIFY, .source = TOWPATH_SOURCE_FD }, ESTALE },
		{ { .command = TOWPATH_MODIFY, .source = TOWPATH_SOURCE_TIMER, .id = 77 }, ESTALE },
		{ { .command = TOWPATH_MODIFY, .source = TOWPATH_SOURCE_TIMER, .id = 77,
		    .timer.it_interval.tv_sec = 1 }, EINVAL },
		{ { .command = TOWPATH_REMOVE }, ESTALE },
		{ { .command = TOWPATH_REMOVE, .id = ~0ull }, ESTALE },
	};
	int file = open("/proc/self/exe", O_RDONLY), fds[2];

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		int error = refused(queue, cases[i].change);

		if (error != cases[i].error)
			fprintf(stderr, "case %zu: %d\n", i, error);
		CHECK(error == cases[i].error);
	}
	CHECK(towpath_queue_change(queue, NULL, 1) == -1 && errno == EFAULT);
	CHECK(towpath_queue_change(queue, &change, -1) == -1 && errno == EINVAL);
	CHECK(towpath_queue_change(queue, NULL, 0) == 0);
	CHECK(towpath_queue_change(NULL, &change, 1) == -1 && errno == EFAULT);
	/* A file on disk is always ready; a closed descriptor is invalid. */
	change.source = TOWPATH_SOURCE_FD;
	change.ident = file;
	CHECK(file >= 0 && refused(queue, change) == EPERM);
	CHECK(close(file) == 0 && refused(queue, change) == EBADF);
	/* An invalid change does not stop the others. */
	CHECK(pipe(fds) == 0);
	struct towpath_change three[] = {
		{ .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_USER },
		{ .command = TOWPATH_REMOVE, .id = 99 },
		{ .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_FD, .ident = fds[0] },
	};
	CHECK(towpath_queue_change(queue, three, 3) == 2 && three[1].error == ESTALE);
	CHECK(!three[0].error && !three[2].error && three[0].id != three[2].id);
	CHECK(remove_id(queue, three[0].id) == 0 && remove_id(queue, three[2].id) == 0);
	CHECK(close(fds[0]) == 0 && close(fds[1]) == 0);
}

static void wrong(void)
{
	struct towpath_queue *queue = new_queue();
	struct towpath_event event;
	struct timespec at = { .tv_nsec = -1 };

	CHECK(!towpath_queue_new(3) && errno == EINVAL);
	CHECK(towpath_queue_close(NULL) == 0);
	CHECK(towpath_queue_back_end(NULL) == -1 && errno == EFAULT);
	CHECK(towpath_queue_fd(NULL) == -1 && errno == EFAULT);
	CHECK(towpath_queue_notify(NULL, 1) == -1 && errno == EFAULT);
	CHECK(towpath_queue_notify(queue, 0) == -1 && errno == ESTALE);
	CHECK(towpath_queue_wait(NULL, &event, 0, 1, NULL) == -1 && errno == EFAULT);
	CHECK(towpath_queue_wait(queue, NULL, 0, 1, NULL) == -1 && errno == EFAULT);
	CHECK(towpath_queue_wait(queue, &event, 0, 0, NULL) == -1 && errno == EINVAL);
	CHECK(towpath_queue_wait(queue, &event, -1, 1, NULL) == -1 && errno == EINVAL);
	CHECK(towpath_queue_wait(queue, &event, 0, -1, NULL) == -1 && errno == EINVAL);
	CHECK(towpath_queue_wait(queue, &event, 2, 1, NULL) == -1 && errno == EINVAL);
	CHECK(towpath_queue_wait(queue, &event, 1, 1, &at) == -1 && errno == EINVAL);
	at.tv_nsec = 0;
	CHECK(towpath_queue_wait(queue, &event, 1, 1, &at) == 0);
	wrong_changes(queue);
	CHECK(now(queue, &event, 1) == 0);
	CHECK(towpath_queue_close(queue) == 0);
}

/*
 * Level-triggered, edge-triggered and one-shot events of a pipe; a registration keeps the pipe
 * open; stale identifiers.
 */
static void descriptors(void)
{
	struct towpath_queue *queue = new_queue();
	struct towpath_event events[4];
	char byte;
	int fds[2], other[2];

	CHECK(pipe(fds) == 0 && pipe(other) == 0);
	uint64_t level = add_fd(queue, NULL, fds[0], EPOLLIN);
	CHECK(now(queue, events, 4) == 0);
	CHECK(write(fds[1], "ab", 2) == 2);
	for (int i = 0; i < 2; i++) {
		CHECK(now(queue, events, 4) == 1 && events[0].id == level);
		CHECK(events[0].what == TOWPATH_READY && events[0].detail == EPOLLIN);
		CHECK(events[0].data.fd == fds[0] && !events[0].flags && !events[0].error);
	}
	struct towpath_change change = {
		.command = TOWPATH_MODIFY, .id = level, .source = TOWPATH_SOURCE_FD,
		.events = EPOLLIN | EPOLLONESHOT,
	};
	for (int i = 0; i < 2; i++) {
		CHECK(refused(queue, change) == 0);
		CHECK(next(queue).detail == EPOLLIN && now(queue, events, 4) == 0);
	}
	CHECK(remove_id(queue, level) == 0 && remove_id(queue, level) == ESTALE);
	CHECK(refused(queue, change) == ESTALE);
	uint64_t edge = add_fd(queue, NULL, fds[0], EPOLLIN | EPOLLET);
	CHECK(edge != level && next(queue).id == edge && now(queue, events, 4) == 0);
	CHECK(write(fds[1], "c", 1) == 1);
	CHECK(next(queue).id == edge && remove_id(queue, level) == ESTALE);
	CHECK(remove_id(queue, edge) == 0);
	/* Writability, and the end of the other side. */
	uint64_t writer = add_fd(queue, NULL, fds[1], EPOLLOUT);
	CHECK(next(queue).detail == EPOLLOUT);
	CHECK(close(fds[0]) == 0 && next(queue).detail & EPOLLERR);
	CHECK(remove_id(queue, writer) == 0 && close(fds[1]) == 0);
	/* The descriptor belongs to the registration until that is removed. */
	uint64_t reader = add_fd(queue, NULL, other[0], EPOLLIN);
	CHECK(close(other[0]) == 0 && write(other[1], "d", 1) == 1);
	CHECK(next(queue).id == reader && remove_id(queue, reader) == 0);
	CHECK(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
	CHECK(write(other[1], &byte, 1) == -1 && errno == EPIPE && close(other[1]) == 0);
	CHECK(towpath_queue_close(queue) == 0);
}

static void timers(void)
{
	struct towpath_queue *queue = new_queue();
	struct towpath_event event;
	struct timespec before = in_ns(0), soon, after;

	uint64_t once = add(queue, (struct towpath_change) {
		.source = TOWPATH_SOURCE_TIMER, .timer.it_value.tv_nsec = 20000000, .data.u64 = 5,
	});
	event = next(queue);
	after = in_ns(-20000000);
	CHECK(event.id == once && event.data.u64 == 5 && event.what == TOWPATH_EXPIRED);
	CHECK(event.result == 1 && event.flags == TOWPATH_OVER && remove_id(queue, once) == ESTALE);
	CHECK(after.tv_sec > before.tv_sec
	      || (after.tv_sec == before.tv_sec && after.tv_nsec >= before.tv_nsec));
	/* A time in the past, and a timer that is modified. */
	once = add(queue, (struct towpath_change) {
		.source = TOWPATH_SOURCE_TIMER, .events = TOWPATH_ABSTIME, .timer.it_value = before,
	});
	CHECK(next(queue).id == once);
	once = add(queue, (struct towpath_change) {
		.source = TOWPATH_SOURCE_TIMER, .events = TOWPATH_ABSTIME, .timer.it_value = later(),
	});
	CHECK(now(queue, &event, 1) == 0);
	soon = in_ns(1000000);
	CHECK(refused(queue, (struct towpath_change) {
		.command = TOWPATH_MODIFY, .id = once, .source = TOWPATH_SOURCE_TIMER,
		.events = TOWPATH_ABSTIME, .timer.it_value = soon,
	}) == 0);
	CHECK(refused(queue, (struct towpath_change) {
		.command = TOWPATH_MODIFY, .id = once, .source = TOWPATH_SOURCE_FD,
	}) == EINVAL);
	CHECK(next(queue).id == once);
	/* Each period counts, whether it is reported in time or not. */
	uint64_t periodic = add(queue, (struct towpath_change) {
		.source = TOWPATH_SOURCE_TIMER,
		.timer = { .it_value.tv_nsec = 1000000, .it_interval.tv_nsec = 1000000 },
	});
	for (int64_t count = 0; count < 5;) {
		event = next(queue);
		CHECK(event.id == periodic && event.result > 0 && !event.flags);
		count += event.result;
	}
	CHECK(remove_id(queue, periodic) == 0 && now(queue, &event, 1) == 0);
	soon = in_ns(3000000);
	CHECK(towpath_queue_wait(queue, &event, 1, 1, &soon) == 0);
	CHECK(towpath_queue_close(queue) == 0);
}

struct notifier {
	struct towpath_queue *queue;
	uint64_t id;
};

static void *notify(void *argument)
{
	struct notifier *notifier = argument;

	for (int i = 0; i < 1000; i++)
		CHECK(towpath_queue_notify(notifier->queue, notifier->id) == 0);
	return NULL;
}

static void *sleep_in(void *argument)
{
	struct timespec deadline = later();
	struct towpath_event event;
	int count;

	/* The other thread may be in the queue. */
	do
		count = towpath_queue_wait(argument, &event, 1, 1, &deadline);
	while (count == -1 && errno == EBUSY);
	CHECK(count == 1 && event.what == TOWPATH_NOTIFIED);
	return NULL;
}

/* Returns 0, or the error if the queue cannot be used. */
static int now_or_busy(struct towpath_queue *queue)
{
	return towpath_queue_back_end(queue) == -1 ? errno : 0;
}

/* No event of other threads is lost; a second thread gets EBUSY while the first one waits. */
static void threads(void)
{
	struct towpath_queue *queue = new_queue();
	struct towpath_change user = { .source = TOWPATH_SOURCE_USER };
	struct notifier notifiers[3];
	struct towpath_event events[8];
	struct timespec deadline = later();
	pthread_t threads[3], sleeper;
	int64_t sum = 0;

	for (int i = 0; i < 3; i++) {
		notifiers[i] = (struct notifier) { queue, add(queue, user) };
		CHECK(pthread_create(&threads[i], NULL, notify, &notifiers[i]) == 0);
	}
	while (sum < 3000) {
		int count = towpath_queue_wait(queue, events, 1, 8, &deadline);

		CHECK(count >= 1);
		for (int i = 0; i < count; i++) {
			CHECK(events[i].what == TOWPATH_NOTIFIED);
			sum += events[i].result;
		}
	}
	CHECK(sum == 3000 && now(queue, events, 8) == 0);
	for (int i = 0; i < 3; i++) {
		CHECK(pthread_join(threads[i], NULL) == 0);
		CHECK(towpath_queue_notify(queue, notifiers[i].id) == 0);
	}
	/* At least three, and at most two events. */
	CHECK(towpath_queue_wait(queue, events, 3, 8, &deadline) == 3);
	for (int i = 0; i < 3; i++)
		CHECK(towpath_queue_notify(queue, notifiers[i].id) == 0);
	CHECK(towpath_queue_wait(queue, events, 1, 2, NULL) == 2 && now(queue, events, 2) == 1);
	CHECK(pthread_create(&sleeper, NULL, sleep_in, queue) == 0);
	while (now_or_busy(queue) != EBUSY)
		usleep(1000);
	CHECK(towpath_queue_fd(queue) == -1 && errno == EBUSY);
	CHECK(towpath_queue_notify(queue, notifiers[0].id) == 0);
	CHECK(pthread_join(sleeper, NULL) == 0);
	CHECK(remove_id(queue, notifiers[0].id) == 0);
	CHECK(towpath_queue_notify(queue, notifiers[0].id) == -1 && errno == ESTALE);
	CHECK(towpath_queue_close(queue) == 0);
}

static void processes(void)
{
	struct towpath_queue *queue = new_queue();
	struct towpath_event event;
	char name[] = "/tmp/towpath-queue-XXXXXX";
	sigset_t blocked;
	int status;

	uint64_t signals = add(queue, (struct towpath_change) {
		.source = TOWPATH_SOURCE_SIGNAL, .ident = SIGUSR2,
	});
	CHECK(kill(getpid(), SIGUSR2) == 0);
	event = next(queue);
	CHECK(event.id == signals && event.what == TOWPATH_SIGNALLED && event.result == SIGUSR2);
	CHECK(event.detail == (uint32_t)getpid() && !event.flags);
	CHECK(remove_id(queue, signals) == 0);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR2);
	CHECK(pthread_sigmask(SIG_UNBLOCK, &blocked, NULL) == 0);

	for (int killed = 0; killed < 2; killed++) {
		pid_t child = fork();

		if (child == 0) {
			if (killed)
				pause();
			_exit(3);
		}
		uint64_t end = add(queue, (struct towpath_change) {
			.source = TOWPATH_SOURCE_CHILD, .ident = child,
		});
		CHECK(!killed || kill(child, SIGKILL) == 0);
		event = next(queue);
		CHECK(event.id == end && event.what == TOWPATH_EXITED && event.flags == TOWPATH_OVER);
		CHECK(event.detail == (killed ? CLD_KILLED : CLD_EXITED));
		CHECK(event.result == (killed ? SIGKILL : 3) && remove_id(queue, end) == ESTALE);
		CHECK(waitpid(child, &status, 0) == child);
	}

	int file = mkstemp(name);
	uint64_t changes = add(queue, (struct towpath_change) {
		.source = TOWPATH_SOURCE_FILE, .path = name, .data.ptr = name,
	});
	CHECK(file >= 0 && write(file, "a", 1) == 1);
	event = next(queue);
	CHECK(event.id == changes && event.what == TOWPATH_CHANGED && event.data.ptr == name);
	CHECK(event.detail == TOWPATH_CHANGED_MODIFIED);
	CHECK(close(file) == 0 && next(queue).detail == TOWPATH_CHANGED_WRITTEN);
	CHECK(unlink(name) == 0);
	for (uint32_t seen = 0; !(seen & TOWPATH_CHANGED_REMOVED);)
		seen |= next(queue).detail;
	CHECK(towpath_queue_close(queue) == 0);
}

/* True if the queue's descriptor finally reports no events: it may be readable a moment longer. */
static int is_quiet(struct towpath_queue *queue, struct pollfd *polled)
{
	struct towpath_event event;

	for (int tries = 0; tries < 6000; tries++) {
		CHECK(now(queue, &event, 1) == 0);
		if (poll(polled, 1, 0) == 0)
			return 1;
		usleep(10000);
	}
	return 0;
}

/* A queue in the kernel's poll, and in another queue. */
static void nested(void)
{
	struct towpath_queue *queue = new_queue(), *outer = new_queue();
	struct towpath_event event;
	int fd = towpath_queue_fd(queue);
	struct pollfd polled = { .fd = fd, .events = POLLIN };

	CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
	uint64_t inner = add_fd(outer, NULL, fd, EPOLLIN);
	uint64_t user = add(queue, (struct towpath_change) { .source = TOWPATH_SOURCE_USER });
	CHECK(is_quiet(queue, &polled) && now(outer, &event, 1) == 0);
	CHECK(towpath_queue_notify(queue, user) == 0);
	CHECK(poll(&polled, 1, PATIENCE_S * 1000) == 1 && next(outer).id == inner);
	CHECK(next(queue).id == user && is_quiet(queue, &polled));
	CHECK(towpath_queue_close(outer) == 0 && close(fd) == 0);
	CHECK(towpath_queue_close(queue) == 0);
}

/* The child of a fork cannot use the queue; the parent continues to use it. */
static void forks(void)
{
	struct towpath_queue *queue = new_queue();
	struct towpath_change change = { .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_USER };
	struct towpath_event event;
	int fds[2], status;

	CHECK(pipe(fds) == 0);
	uint64_t user = add(queue, change), reader = add_fd(queue, NULL, fds[0], EPOLLIN);
	pid_t child = fork();
	if (child == 0) {
		CHECK(towpath_queue_wait(queue, &event, 0, 1, NULL) == -1 && errno == EPERM);
		CHECK(towpath_queue_change(queue, &change, 1) == -1 && errno == EPERM);
		CHECK(towpath_queue_notify(queue, user) == -1 && errno == EPERM);
		CHECK(towpath_queue_fd(queue) == -1 && errno == EPERM);
		CHECK(towpath_queue_close(queue) == 0);
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	CHECK(now(queue, &event, 1) == 0 && write(fds[1], "a", 1) == 1 && next(queue).id == reader);
	CHECK(remove_id(queue, reader) == 0);
	CHECK(towpath_queue_notify(queue, user) == 0 && next(queue).id == user);
	CHECK(towpath_queue_close(queue) == 0 && close(fds[0]) == 0 && close(fds[1]) == 0);
}

/* Ten thousand of each kind without a descriptor, and as many descriptors as possible. */
static void many(void)
{
	static struct towpath_change changes[2 * MANY];
	static struct towpath_event events[2 * MANY];
	static char seen[2 * MANY];
	struct towpath_queue *queue = new_queue();
	struct timespec deadline = later();
	struct rlimit limit;

	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = limit.rlim_max;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	memset(seen, 0, sizeof(seen));
	for (int i = 0; i < 2 * MANY; i++) {
		changes[i] = (struct towpath_change) {
			.command = TOWPATH_ADD, .data.u64 = i,
			.source = i % 2 ? TOWPATH_SOURCE_USER : TOWPATH_SOURCE_TIMER,
		};
	}
	CHECK(towpath_queue_change(queue, changes, 2 * MANY) == 2 * MANY);
	for (int i = 1; i < 2 * MANY; i += 2)
		CHECK(towpath_queue_notify(queue, changes[i].id) == 0);
	CHECK(towpath_queue_wait(queue, events, 2 * MANY, 2 * MANY, &deadline) == 2 * MANY);
	for (int i = 0; i < 2 * MANY; i++) {
		CHECK(events[i].id == changes[events[i].data.u64].id && !seen[events[i].data.u64]++);
		changes[i].command = TOWPATH_REMOVE;
	}
	/* The timers are over. */
	CHECK(towpath_queue_change(queue, changes, 2 * MANY) == MANY && changes[0].error == ESTALE);

	int file = eventfd(1, EFD_CLOEXEC);
	int count = limit.rlim_max > MANY + 100 ? MANY : (int)limit.rlim_max - 100;
	for (int i = 0; i < count; i++) {
		changes[i] = (struct towpath_change) {
			.command = TOWPATH_ADD, .source = TOWPATH_SOURCE_FD, .ident = file,
			.events = EPOLLIN, .data.u64 = i,
		};
	}
	CHECK(file >= 0 && towpath_queue_change(queue, changes, count) == count);
	deadline = later();
	CHECK(towpath_queue_wait(queue, events, count, count, &deadline) == count);
	for (int i = 0; i < count; i++)
		changes[i].command = TOWPATH_REMOVE;
	CHECK(towpath_queue_change(queue, changes, count) == count && now(queue, events, 1) == 0);
	CHECK(close(file) == 0 && towpath_queue_close(queue) == 0);
}

/* A socket of an instance, bound to its address, and to a port if that is not 0. */
static int bound(struct towpath *instance, const char *address, int type, int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	int fd = towpath_socket(instance, AF_INET, type | SOCK_NONBLOCK,
				type == SOCK_RAW ? IPPROTO_ICMP : 0);

	CHECK(fd >= 0 && inet_pton(AF_INET, address, &at.sin_addr) == 1);
	CHECK(towpath_bind(instance, fd, (struct sockaddr *)&at, sizeof(at)) == 0);
	return fd;
}

/* Sockets of two instances: each kind is reported like any descriptor, until it is closed. */
static void sockets(void)
{
	struct towpath *a = towpath_new("192.0.2.1/24", 1500), *b = towpath_new("192.0.2.2/24", 1500);
	struct towpath_queue *queue = new_queue();
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(80) };
	struct towpath_event events[8];
	char bytes[16];

	CHECK(a && b && inet_pton(AF_INET, "192.0.2.2", &to.sin_addr) == 1);
	int listener = bound(b, "192.0.2.2", SOCK_STREAM, 80);
	CHECK(towpath_listen(b, listener, 8) == 0);
	uint64_t accepts = add_fd(queue, b, listener, EPOLLIN);
	int client = towpath_socket(a, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(towpath_connect(a, client, (struct sockaddr *)&to, sizeof(to)) == -1);
	CHECK(errno == EINPROGRESS);
	uint64_t opens = add_fd(queue, a, client, EPOLLOUT | EPOLLONESHOT);
	CHECK(now(queue, events, 8) == 0);
	settle(a, b);
	CHECK(now(queue, events, 8) == 2);
	for (int i = 0; i < 2; i++) {
		CHECK(events[i].id == accepts || events[i].id == opens);
		CHECK(events[i].detail == (events[i].id == accepts ? EPOLLIN : EPOLLOUT));
	}
	/* One is reported as long as it is ready, the other one once. */
	CHECK(now(queue, events, 8) == 1 && events[0].id == accepts);
	int server = towpath_accept(b, listener, NULL, NULL);
	CHECK(server >= 0 && now(queue, events, 8) == 0);
	uint64_t reads = add_fd(queue, b, server, EPOLLIN | EPOLLET);
	CHECK(now(queue, events, 8) == 0 && towpath_write(a, client, "hello", 5) == 5);
	settle(a, b);
	CHECK(next(queue).id == reads && now(queue, events, 8) == 0);
	CHECK(towpath_write(a, client, "again", 5) == 5 && towpath_shutdown(a, client, SHUT_WR) == 0);
	settle(a, b);
	CHECK(next(queue).detail == (EPOLLIN | EPOLLRDHUP));
	CHECK(towpath_read(b, server, bytes, 16) == 10 && now(queue, events, 8) == 0);

	to.sin_port = htons(53);
	int datagrams[] = { bound(a, "192.0.2.1", SOCK_DGRAM, 53), bound(b, "192.0.2.2", SOCK_DGRAM, 53) };
	int raw = bound(b, "192.0.2.2", SOCK_RAW, 0), sender = bound(a, "192.0.2.1", SOCK_RAW, 0);
	uint64_t comes = add_fd(queue, b, datagrams[1], EPOLLIN), echoes = add_fd(queue, b, raw, EPOLLIN);
	CHECK(now(queue, events, 8) == 0);
	CHECK(towpath_sendto(a, datagrams[0], "x", 1, 0, (struct sockaddr *)&to, sizeof(to)) == 1);
	settle(a, b);
	CHECK(now(queue, events, 8) == 1 && events[0].id == comes && events[0].detail == EPOLLIN);
	CHECK(towpath_read(b, datagrams[1], bytes, 16) == 1 && now(queue, events, 8) == 0);
	CHECK(towpath_sendto(a, sender, "\0\0\377\377\0\0\0\0", 8, 0, (struct sockaddr *)&to,
			     sizeof(to)) == 8);
	settle(a, b);
	CHECK(now(queue, events, 8) == 1 && events[0].id == echoes);
	CHECK(remove_id(queue, echoes) == 0 && now(queue, events, 8) == 0);

	/* Closing a socket ends its registration, and so does the end of its instance. */
	CHECK(towpath_close(b, datagrams[1]) == 0);
	CHECK(now(queue, events, 8) == 1 && events[0].id == comes);
	CHECK(events[0].detail == (EPOLLERR | EPOLLHUP) && events[0].flags == TOWPATH_OVER);
	CHECK(remove_id(queue, comes) == ESTALE);
	CHECK(refused(queue, (struct towpath_change) {
		.command = TOWPATH_ADD, .source = TOWPATH_SOURCE_FD, .instance = b, .ident = datagrams[1],
	}) == EBADF);
	int set = towpath_epoll_create1(b, 0);
	CHECK(refused(queue, (struct towpath_change) {
		.command = TOWPATH_ADD, .source = TOWPATH_SOURCE_FD, .instance = b, .ident = set,
	}) == ENOTSOCK);
	towpath_free(b);
	CHECK(now(queue, events, 8) == 2 && events[0].flags == TOWPATH_OVER);
	CHECK(events[1].flags == TOWPATH_OVER && remove_id(queue, accepts) == ESTALE);
	/* A queue is closed with registrations, and an instance after it. */
	CHECK(towpath_queue_close(queue) == 0);
	towpath_free(a);
}

static void cases(unsigned int which)
{
	back_end = which;
	wrong();
	descriptors();
	timers();
	threads();
	processes();
	nested();
	forks();
	many();
	sockets();
}

int main(void)
{
	alarm(8 * PATIENCE_S);
	return on_both(cases);
}
