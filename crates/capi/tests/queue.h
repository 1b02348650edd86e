/*
 * Common to the C programs that test event queues: deadlines, single changes, and waits with a
 * limit.
 */
#ifndef QUEUE_H
#define QUEUE_H

#include "check.h"
#include "towpath.h"

#include <string.h>
#include <time.h>

/* Longer than any step takes. */
#define PATIENCE_S 60

static inline struct timespec in_ns(long long ns)
{
	struct timespec at;

	CHECK(clock_gettime(CLOCK_MONOTONIC, &at) == 0);
	ns += at.tv_nsec;
	at.tv_sec += ns / 1000000000;
	at.tv_nsec = ns % 1000000000;
	return at;
}

static inline struct timespec later(void)
{
	return in_ns(PATIENCE_S * 1000000000ll);
}

/* Adds a registration. Returns its id. */
static inline uint64_t add(struct towpath_queue *queue, struct towpath_change change)
{
	change.command = TOWPATH_ADD;
	CHECK(towpath_queue_change(queue, &change, 1) == 1 && change.error == 0 && change.id != 0);
	return change.id;
}

static inline uint64_t add_fd(struct towpath_queue *queue, struct towpath *instance, int fd,
			      uint32_t events)
{
	return add(queue, (struct towpath_change) {
		.source = TOWPATH_SOURCE_FD, .instance = instance, .ident = fd, .events = events,
		.data = { .fd = fd },
	});
}

/* The error of a change, or 0. */
static inline int refused(struct towpath_queue *queue, struct towpath_change change)
{
	int made = towpath_queue_change(queue, &change, 1);

	CHECK(made == (change.error == 0));
	return change.error;
}

static inline int remove_id(struct towpath_queue *queue, uint64_t id)
{
	return refused(queue, (struct towpath_change) { .command = TOWPATH_REMOVE, .id = id });
}

/* Reads the events that are available now. */
static inline int now(struct towpath_queue *queue, struct towpath_event *events, int max)
{
	int count = towpath_queue_wait(queue, events, 0, max, NULL);

	CHECK(count >= 0);
	return count;
}

/* Waits for the next event. */
static inline struct towpath_event next(struct towpath_queue *queue)
{
	struct towpath_event event;
	struct timespec deadline = later();

	CHECK(towpath_queue_wait(queue, &event, 1, 1, &deadline) == 1);
	return event;
}

/* Starts an operation. Returns its id. */
static inline uint64_t submit(struct towpath_queue *queue, struct towpath_operation operation)
{
	CHECK(towpath_queue_submit(queue, &operation, 1) == 1 && !operation.error && operation.id);
	return operation.id;
}

/* The error of an operation when it is submitted. */
static inline int no(struct towpath_queue *queue, struct towpath_operation operation)
{
	CHECK(towpath_queue_submit(queue, &operation, 1) == 0);
	return operation.error;
}

/*
 * Checks that the next event is the end of an operation with this result and, besides TOWPATH_OVER,
 * these flags. Returns the event.
 */
static inline uint32_t over_with(struct towpath_queue *queue, uint64_t id, int64_t result, int error, uint32_t flags)
{
	struct towpath_event event = next(queue);

	if (event.result != result || event.error != error || event.flags != (TOWPATH_OVER | flags))
		fprintf(stderr, "%lld, %d, %x\n", (long long)event.result, event.error, event.flags);
	CHECK(event.id == id && event.what == TOWPATH_DONE && event.flags == (TOWPATH_OVER | flags));
	CHECK(event.result == result && event.error == error);
	CHECK(towpath_queue_cancel(queue, id) == -1 && errno == ESTALE);
	return event.detail;
}

/* Checks that the next event is the end of an operation with this result and no other flags. */
static inline uint32_t over(struct towpath_queue *queue, uint64_t id, int64_t result, int error)
{
	return over_with(queue, id, result, error, 0);
}

/* Moves packets between two instances until neither has any. */
static inline void settle(struct towpath *a, struct towpath *b)
{
	static char packet[1 << 16];
	struct towpath *ends[] = { a, b };
	int still = 0;

	for (int turn = 0; still < 2 && turn < 200000; turn++) {
		ssize_t len = towpath_output(ends[turn % 2], packet, sizeof(packet));

		CHECK(len >= 0);
		still = len > 0 ? 0 : still + 1;
		if (len > 0)
			CHECK(towpath_input(ends[1 - turn % 2], packet, len) == 0);
	}
	CHECK(still == 2);
}

/* Runs all of `cases` with both back ends, if the kernel supports them. */
static inline int on_both(void (*cases)(unsigned int back_end))
{
	unsigned int back_ends[] = { TOWPATH_QUEUE_EPOLL, TOWPATH_QUEUE_IO_URING };

	for (int i = 0; i < 2; i++) {
		struct towpath_queue *queue = towpath_queue_new(back_ends[i]);

		if (!queue && back_ends[i] == TOWPATH_QUEUE_IO_URING) {
			fprintf(stderr, "skipped: io_uring: %s\n", strerror(errno));
			continue;
		}
		CHECK(queue && towpath_queue_back_end(queue) == (int)back_ends[i]);
		CHECK(towpath_queue_close(queue) == 0);
		cases(back_ends[i]);
	}
	puts("ok");
	return 0;
}

#endif
