/*
 * Multishot receives into buffers of groups, on both back ends, on streams of instances and of the
 * kernel: more bytes than buffers, streams that share a group, each way to end; and errors.
 */
#define _GNU_SOURCE
#include "scene.h"

#define SIZE 16

static char memory[4 * SIZE];

/* A receive on the end opposite to the writer's. */
static struct towpath_operation receive(struct scene *scene, int of_kernel, int group)
{
	struct towpath_operation of;

	towpath_prep_recv_multishot(&of, of_kernel ? NULL : scene->b, of_kernel ? scene->kernel[1] : scene->server,
				    group);
	return of;
}

static void say(struct scene *scene, int of_kernel, const char *words)
{
	ssize_t len = strlen(words);

	CHECK((of_kernel ? write(scene->kernel[0], words, len)
			 : towpath_write(scene->a, scene->client, words, len)) == len);
}

static int group_of(struct scene *scene, int count)
{
	int group = towpath_queue_add_group(scene->queue, memory, SIZE, count);

	CHECK(group > 0);
	return group;
}

/* Checks that the next event has these bytes in a buffer. Returns its number. */
static int heard(struct scene *scene, uint64_t id, const char *words)
{
	struct towpath_event event = step(scene);

	CHECK(event.id == id && event.what == TOWPATH_PROGRESS && !event.flags && event.detail < 4);
	CHECK(event.result == (int64_t)strlen(words));
	CHECK(!memcmp(memory + event.detail * SIZE, words, event.result));
	return event.detail;
}

static void starves(struct scene *scene, uint64_t id)
{
	struct towpath_event event = step(scene);

	CHECK(event.id == id && event.what == TOWPATH_STARVED && !event.flags && !event.result);
}

static void ends_with(struct scene *scene, uint64_t id, int64_t result, int error)
{
	struct towpath_event event = step(scene);

	CHECK(event.id == id && event.what == TOWPATH_DONE && event.flags == TOWPATH_OVER);
	CHECK(event.result == result && event.error == error);
}

static void goes_on(int of_kernel)
{
	struct scene scene = begin_scene();
	int group = group_of(&scene, 2);
	struct timespec soon = in_ns(5000000);
	struct towpath_operation receives = receive(&scene, of_kernel, group);
	uint64_t id = submit(scene.queue, receives);

	say(&scene, of_kernel, "hello");
	int first = heard(&scene, id, "hello");
	/*
	 * More bytes than buffers: the rest stays in the stream, and the lack of a buffer is
	 * reported once.
	 */
	say(&scene, of_kernel, "0123456789abcdef0123456789ABCDEFlast");
	int second = heard(&scene, id, "0123456789abcdef");
	CHECK(first != second && !memcmp(memory + first * SIZE, "hello", 5));
	starves(&scene, id);
	struct towpath_event event;
	CHECK(now(scene.queue, &event, 1) == 0);
	/* Given back, and again; and invalid numbers. */
	CHECK(towpath_queue_give(scene.queue, group, second) == 0);
	CHECK(towpath_queue_give(scene.queue, group, second) == -1 && errno == EINVAL);
	CHECK(towpath_queue_give(scene.queue, group, -1) == -1 && errno == EINVAL);
	CHECK(towpath_queue_give(scene.queue, group, 2) == -1 && errno == EINVAL);
	CHECK(heard(&scene, id, "0123456789ABCDEF") == second);
	starves(&scene, id);
	CHECK(towpath_queue_give(scene.queue, group, first) == 0);
	CHECK(heard(&scene, id, "last") == first);
	CHECK(towpath_queue_remove_group(scene.queue, group) == -1 && errno == EBUSY);
	/* Cancelled without a buffer, late with one: later bytes stay in the stream. */
	CHECK(towpath_queue_cancel(scene.queue, id) == 0);
	ends_with(&scene, id, -1, ECANCELED);
	CHECK(towpath_queue_give(scene.queue, group, first) == 0);
	receives.deadline = &soon;
	ends_with(&scene, submit(scene.queue, receives), -1, ETIMEDOUT);
	receives.deadline = NULL;
	say(&scene, of_kernel, "kept");
	id = submit(scene.queue, receives);
	first = heard(&scene, id, "kept");
	/* The end of the stream needs no buffer. */
	if (of_kernel)
		CHECK(shutdown(scene.kernel[0], SHUT_WR) == 0);
	else
		CHECK(towpath_shutdown(scene.a, scene.client, SHUT_WR) == 0);
	ends_with(&scene, id, 0, 0);
	CHECK(towpath_queue_remove_group(scene.queue, group) == 0);
	CHECK(towpath_queue_give(scene.queue, group, first) == -1 && errno == ESTALE);
	CHECK(towpath_queue_remove_group(scene.queue, group) == -1 && errno == ESTALE);
	CHECK(no(scene.queue, receives) == ESTALE && group_of(&scene, 1) != group);
	end_scene(&scene);
}

/*
 * Two streams share one buffer: the one that has to wait is next, and the one that ends leaves it
 * to the other.
 */
static void shares(void)
{
	struct scene scene = begin_scene();
	int group = group_of(&scene, 1);
	uint64_t id = submit(scene.queue, receive(&scene, 0, group));
	uint64_t other = submit(scene.queue, receive(&scene, 1, group));

	say(&scene, 0, "one");
	int buffer = heard(&scene, id, "one");
	say(&scene, 1, "two");
	starves(&scene, other);
	say(&scene, 0, "three");
	starves(&scene, id);
	CHECK(towpath_queue_give(scene.queue, group, buffer) == 0);
	heard(&scene, other, "two");
	/* A receive in the line that ends when it is its turn. */
	say(&scene, 1, "four");
	starves(&scene, other);
	CHECK(towpath_queue_cancel(scene.queue, id) == 0);
	CHECK(towpath_queue_give(scene.queue, group, buffer) == 0);
	for (int left = 2; left > 0; left--) {
		struct towpath_event event = step(&scene);

		if (event.id == id)
			CHECK(event.what == TOWPATH_DONE && event.error == ECANCELED);
		else
			CHECK(event.what == TOWPATH_PROGRESS && event.result == 4 && !memcmp(memory, "four", 4));
	}
	/* Bytes that were not received are still there. */
	CHECK(towpath_read(scene.b, scene.server, memory, 16) == 5 && !memcmp(memory, "three", 5));
	/* A socket that is closed under a receive, and a queue that ends with one. */
	id = submit(scene.queue, receive(&scene, 0, group));
	CHECK(towpath_close(scene.b, scene.server) == 0);
	ends_with(&scene, id, -1, ECANCELED);
	end_scene(&scene);
}

static void wrong(void)
{
	static char many[(1 << 15) + 1];
	struct scene scene = begin_scene();
	struct towpath_queue *queue = scene.queue;
	int group = group_of(&scene, 4), pipes[2];
	int datagrams = towpath_socket(scene.b, AF_INET, SOCK_DGRAM, 0), of_kernel = socket(AF_INET, SOCK_DGRAM, 0);
	struct towpath_operation bad = receive(&scene, 0, group);

	CHECK(datagrams >= 0 && of_kernel >= 0 && pipe(pipes) == 0);
	CHECK(towpath_queue_add_group(queue, memory, SIZE, 0) == -1 && errno == EINVAL);
	CHECK(towpath_queue_add_group(queue, memory, 0, 4) == -1 && errno == EINVAL);
	CHECK(towpath_queue_add_group(queue, memory, SIZE, -1) == -1 && errno == EINVAL);
	CHECK(towpath_queue_add_group(queue, memory, SIZE_MAX, 2) == -1 && errno == EINVAL);
	CHECK(towpath_queue_add_group(queue, memory, SIZE_MAX, 1) == -1 && errno == EFAULT);
	CHECK(towpath_queue_add_group(queue, NULL, SIZE, 1) == -1 && errno == EFAULT);
	CHECK(towpath_queue_add_group(queue, many, 1, sizeof(many)) == -1 && errno == ENOSPC);
	CHECK(towpath_queue_add_group(NULL, memory, SIZE, 4) == -1 && errno == EFAULT);
	CHECK(towpath_queue_give(queue, group, 0) == -1 && errno == EINVAL);
	CHECK(towpath_queue_give(queue, group + 1, 0) == -1 && errno == ESTALE);
	CHECK(towpath_queue_give(queue, 0, 0) == -1 && errno == ESTALE);
	bad.group = 0;
	CHECK(no(queue, bad) == ESTALE);
	bad = receive(&scene, 1, group + 1);
	CHECK(no(queue, bad) == ESTALE);
	bad = receive(&scene, 0, group), bad.len = 1;
	CHECK(no(queue, bad) == EINVAL);
	bad.len = 0, bad.flags = MSG_WAITALL;
	CHECK(no(queue, bad) == EINVAL);
	bad.flags = 0, bad.reserved = 1;
	CHECK(no(queue, bad) == EINVAL);
	bad.reserved = 0, bad.fd = datagrams;
	CHECK(no(queue, bad) == EOPNOTSUPP);
	bad = receive(&scene, 1, group), bad.fd = of_kernel;
	CHECK(no(queue, bad) == EOPNOTSUPP);
	bad.fd = pipes[0];
	CHECK(no(queue, bad) == ENOTSOCK);
	bad.fd = -1;
	CHECK(no(queue, bad) == EBADF);
	/* No more groups than the limit; each one that ends makes room. */
	int last = group;
	for (int i = 1; i < 64; i++)
		last = group_of(&scene, 1);
	CHECK(towpath_queue_add_group(queue, memory, SIZE, 4) == -1 && errno == ENOSPC);
	CHECK(towpath_queue_remove_group(queue, group) == 0 && group_of(&scene, 4) > last);
	CHECK(close(of_kernel) == 0 && close(pipes[0]) == 0 && close(pipes[1]) == 0);
	end_scene(&scene);
}

static void cases(unsigned int which)
{
	back_end = which;
	goes_on(0);
	goes_on(1);
	shares();
	wrong();
}

int main(void)
{
	alarm(8 * PATIENCE_S);
	return on_both(cases);
}
