/*
 * Transfers that involve an instance, on both back ends: files to its streams and back, and between
 * two streams of instances and of the kernel; interrupted at each end, cancelled, late, and with
 * everything closed under them; and errors.
 */
#define _GNU_SOURCE
#include "scene.h"

#include <fcntl.h>

_Static_assert(sizeof(struct towpath_transfer) == 80, "as the library has it");

/* More than sockets' buffers have room for. */
#define LARGE (8 << 20)

static char sent[LARGE], received[LARGE + 64];

/*
 * Moves packets and runs operations until all of these are over. Fills in how each of them ended.
 */
static void carry(struct scene *scene, int count, const uint64_t *ids, struct towpath_event *ended)
{
	for (int left = count; left > 0;) {
		struct towpath_event event = step(scene);
		int at = 0;

		if (event.what != TOWPATH_DONE)
			continue;
		while (at < count && ids[at] != event.id)
			at++;
		CHECK(at < count);
		ended[at] = event;
		left--;
	}
}

/* Runs one operation to its end and checks it. Returns the undelivered bytes. */
static uint32_t ends_with(struct scene *scene, uint64_t id, int64_t result, int error)
{
	struct towpath_event event;

	carry(scene, 1, &id, &event);
	if (event.result != result || event.error != error)
		fprintf(stderr, "%lld, %d\n", (long long)event.result, event.error);
	CHECK(event.result == result && event.error == error && event.flags == TOWPATH_OVER);
	return event.detail;
}

/* Continues until nothing changes without further reads. */
static void stall(struct scene *scene)
{
	struct towpath_event event;

	for (int i = 0; i < 50; i++) {
		struct timespec moment = in_ns(1000000);

		settle(scene->a, scene->b);
		CHECK(towpath_queue_wait(scene->queue, &event, 1, 1, &moment) == 0);
	}
}

/* A file with the first bytes of `sent`. */
static int file_of(size_t len)
{
	char name[] = "/tmp/towpath-transfer-XXXXXX";
	int file = mkstemp(name);

	CHECK(file >= 0 && unlink(name) == 0 && write(file, sent, len) == (ssize_t)len);
	return file;
}

static void sends_files(void)
{
	struct scene scene = begin_scene();
	int file = file_of(LARGE), small = file_of(100);
	struct towpath_transfer move;
	struct towpath_operation sends;
	struct towpath_event ended[2];
	uint64_t ids[2];

	towpath_prep_sendfile(&sends, scene.a, scene.client, &move, file, 3, LARGE - 3);
	move.header = "head", move.header_len = 4, move.trailer = "tail", move.trailer_len = 4;
	/*
	 * A large file with header and trailer; the structure belongs to the caller after the call.
	 */
	ids[0] = submit(scene.queue, sends);
	move.header = move.trailer = NULL;
	ids[1] = submit(scene.queue, on_server(&scene, TOWPATH_RECV, received, LARGE + 5));
	carry(&scene, 2, ids, ended);
	for (int i = 0; i < 2; i++)
		CHECK(ended[i].result == LARGE + 5 && !ended[i].error && !ended[i].detail);
	CHECK(!memcmp(received, "head", 4) && !memcmp(received + 4, sent + 3, LARGE - 3));
	CHECK(!memcmp(received + LARGE + 1, "tail", 4));
	/* A small file, an empty one, and no bytes at all. */
	move.fd = small, move.offset = 10, move.count = 90, move.header = "head", move.trailer = "tail";
	ends_with(&scene, submit(scene.queue, sends), 98, 0);
	move.count = 0;
	ends_with(&scene, submit(scene.queue, sends), 8, 0);
	move.header_len = move.trailer_len = 0;
	ends_with(&scene, submit(scene.queue, sends), 0, 0);
	ends_with(&scene, submit(scene.queue, on_server(&scene, TOWPATH_RECV, received, 106)), 106, 0);
	CHECK(!memcmp(received, "head", 4) && !memcmp(received + 4, sent + 10, 90));
	CHECK(!memcmp(received + 94, "tailheadtail", 12));
	/*
	 * A file that ends early: its bytes are sent, without the trailer. The file may be closed
	 * meanwhile.
	 */
	move.header_len = move.trailer_len = 4, move.offset = 50, move.count = 100;
	ids[0] = submit(scene.queue, sends);
	CHECK(close(small) == 0);
	ends_with(&scene, ids[0], 54, ENODATA);
	ends_with(&scene, submit(scene.queue, on_server(&scene, TOWPATH_RECV, received, 54)), 54, 0);
	CHECK(!memcmp(received + 4, sent + 50, 50));
	/* A file that is truncated during the transfer. */
	move.fd = file, move.offset = 0, move.count = LARGE;
	ids[0] = submit(scene.queue, sends);
	stall(&scene);
	CHECK(ftruncate(file, 1000) == 0);
	ids[1] = submit(scene.queue, on_server(&scene, TOWPATH_RECV, received, LARGE));
	carry(&scene, 1, ids, ended);
	CHECK(ended[0].error == ENODATA && ended[0].result > 1004 && ended[0].result < LARGE);
	CHECK(towpath_shutdown(scene.a, scene.client, SHUT_WR) == 0);
	ends_with(&scene, ids[1], ended[0].result, 0);
	CHECK(!memcmp(received, "head", 4) && !memcmp(received + 4, sent, ended[0].result - 4));
	ends_with(&scene, submit(scene.queue, sends), 0, EPIPE);
	CHECK(close(file) == 0);
	end_scene(&scene);
}

/*
 * A file that is sent repeatedly is read once, and no send copies it. That needs a file that was
 * not changed recently, so it is one of the system's.
 */
static void sends_one_file_often(void)
{
	struct scene scene = begin_scene();
	int file = open("/bin/sh", O_RDONLY | O_CLOEXEC);
	ssize_t len = pread(file, sent, LARGE, 0);
	struct towpath_transfer move = { .fd = file, .count = len };
	struct towpath_stats first, last;
	uint64_t blocks = (len + (256 << 10) - 1) / (256 << 10);

	CHECK(file >= 0 && len > 4096);
	for (int i = 0; i < 5; i++) {
		struct towpath_event ended[2];
		uint64_t ids[] = {
			submit(scene.queue, on_client(&scene, TOWPATH_SENDFILE, &move, sizeof(move))),
			submit(scene.queue, on_server(&scene, TOWPATH_RECV, received, len)),
		};

		memset(received, 0, len);
		carry(&scene, 2, ids, ended);
		CHECK(ended[0].result == len && ended[1].result == len && !ended[0].error && !ended[1].error);
		CHECK(!memcmp(received, sent, len));
		CHECK(towpath_get_stats(scene.a, i ? &last : &first, sizeof(last)) == 0);
	}
	CHECK(first.copied_file == (uint64_t)len && first.file_cache_misses == blocks);
	CHECK(first.file_cache_bytes >= (uint64_t)len && !first.file_cache_private && !first.file_cache_evicted);
	CHECK(last.copied_file == first.copied_file && last.file_cache_misses == blocks);
	CHECK(last.file_cache_hits == first.file_cache_hits + 4 * blocks);
	CHECK(last.lent == 5 * first.lent && first.lent == (uint64_t)len && last.copied_socket_send == 0);
	/* Memory that the program has not lent causes no notice. */
	struct msghdr none = { 0 };
	CHECK(towpath_recvmsg(scene.a, scene.client, &none, MSG_ERRQUEUE | MSG_DONTWAIT) == -1 && errno == EAGAIN);
	CHECK(close(file) == 0);
	end_scene(&scene);
}

/* The call sends blocks that are read once, and copies at most the short rests of its parts. */
static void sends_files_by_call(void)
{
	struct scene scene = begin_scene();
	int file = open("/bin/sh", O_RDONLY | O_CLOEXEC), little = file_of(100);
	ssize_t len = pread(file, sent, LARGE, 0), count;
	struct towpath_stats stats;
	off_t at;

	CHECK(file >= 0 && len > (16 << 10));
	for (int i = 0; i < 3; i++) {
		ssize_t got = 0;

		for (at = 0; got < len;) {
			count = at < len ? towpath_sendfile(scene.a, scene.client, file, &at, len - at) : 0;
			CHECK(count > 0 || at == len || errno == EAGAIN);
			settle(scene.a, scene.b);
			while ((count = towpath_read(scene.b, scene.server, received + got, LARGE - got)) > 0)
				got += count;
			settle(scene.a, scene.b);
		}
		CHECK(got == len && !memcmp(received, sent, len));
	}
	CHECK(towpath_get_stats(scene.a, &stats, sizeof(stats)) == 0);
	CHECK(stats.copied_file == (uint64_t)len && stats.copied_socket_send <= 3 * (16 << 10));
	CHECK(stats.lent + stats.copied_socket_send == 3 * (uint64_t)len);
	/* The file's own position, and its end. */
	for (size_t i = 0; i < 100; i++)
		sent[i] = i;
	CHECK(pwrite(little, sent, 100, 0) == 100 && lseek(little, 40, SEEK_SET) == 40);
	CHECK(towpath_sendfile(scene.a, scene.client, little, NULL, 60) == 60);
	CHECK(lseek(little, 0, SEEK_CUR) == 100);
	CHECK(towpath_sendfile(scene.a, scene.client, little, NULL, 1 << 20) == 0);
	settle(scene.a, scene.b);
	CHECK(towpath_read(scene.b, scene.server, received, LARGE) == 60 && !memcmp(received, sent + 40, 60));
	CHECK(close(file) == 0 && close(little) == 0);
	for (int i = 0; i < LARGE; i++)
		sent[i] = i * 31 + i / 251;
	end_scene(&scene);
}

static void receives_files(void)
{
	struct scene scene = begin_scene();
	int from = file_of(LARGE), into = file_of(0);
	struct towpath_transfer move = { .fd = from, .count = LARGE };
	struct towpath_transfer store = { .fd = into, .offset = 1000, .count = LARGE - 100 };
	struct towpath_operation gets = on_server(&scene, TOWPATH_RECVFILE, &store, sizeof(store));
	struct towpath_event ended[2];
	char rest[64] = "";

	/* From file to file through both instances; bytes beyond the range stay in the stream. */
	uint64_t ids[] = {
		submit(scene.queue, on_client(&scene, TOWPATH_SENDFILE, &move, sizeof(move))),
		submit(scene.queue, gets),
	};
	carry(&scene, 2, ids, ended);
	CHECK(ended[0].result == LARGE && !ended[0].error);
	CHECK(ended[1].result == LARGE - 100 && !ended[1].error && !ended[1].detail);
	CHECK(pread(into, received, LARGE, 1000) == LARGE - 100 && !memcmp(received, sent, LARGE - 100));
	ends_with(&scene, submit(scene.queue, on_server(&scene, TOWPATH_RECV, received, 100)), 100, 0);
	CHECK(!memcmp(received, sent + LARGE - 100, 100));
	store.count = 0;
	CHECK(ends_with(&scene, submit(scene.queue, gets), 0, 0) == 0);
	/*
	 * Files that accept nothing: a full disk, and a file open for reading. Received bytes are
	 * handed back.
	 */
	store.count = 300, store.offset = 0, store.rest = rest, store.rest_len = 3;
	store.fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
	CHECK(store.fd >= 0 && towpath_write(scene.a, scene.client, "lost?", 5) == 5);
	settle(scene.a, scene.b);
	CHECK(ends_with(&scene, submit(scene.queue, gets), 0, ENOSPC) == 5 && !memcmp(rest, "los", 4));
	CHECK(close(store.fd) == 0);
	store.fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), store.rest_len = sizeof(rest);
	CHECK(store.fd >= 0 && towpath_write(scene.a, scene.client, "found", 5) == 5);
	settle(scene.a, scene.b);
	CHECK(ends_with(&scene, submit(scene.queue, gets), 0, EBADF) == 5 && !memcmp(rest, "found", 5));
	CHECK(close(store.fd) == 0);
	/* Cancelled and late, with some bytes in the file; the end of the stream. */
	store.fd = into;
	ids[0] = submit(scene.queue, gets);
	CHECK(towpath_write(scene.a, scene.client, "some", 4) == 4);
	stall(&scene);
	CHECK(towpath_queue_cancel(scene.queue, ids[0]) == 0);
	CHECK(ends_with(&scene, ids[0], 4, ECANCELED) == 0);
	struct timespec soon = in_ns(5000000);
	gets.deadline = &soon;
	CHECK(ends_with(&scene, submit(scene.queue, gets), 0, ETIMEDOUT) == 0);
	gets.deadline = NULL, store.offset = 4;
	ids[0] = submit(scene.queue, gets);
	CHECK(towpath_write(scene.a, scene.client, "last", 4) == 4);
	CHECK(towpath_shutdown(scene.a, scene.client, SHUT_WR) == 0);
	CHECK(ends_with(&scene, ids[0], 4, 0) == 0);
	CHECK(pread(into, received, 8, 0) == 8 && !memcmp(received, "somelast", 8));
	CHECK(close(from) == 0 && close(into) == 0);
	end_scene(&scene);
}

static void splices(void)
{
	struct scene scene = begin_scene();
	struct towpath_transfer move = { .count = LARGE };
	struct towpath_event ended[4];
	char rest[64];
	uint64_t ids[4];

	/* From the instance to the kernel, and at the same time back to the other instance. */
	move.fd = scene.kernel[0];
	ids[0] = submit(scene.queue, on_server(&scene, TOWPATH_SPLICE, &move, sizeof(move)));
	move.instance = scene.b, move.fd = scene.server;
	ids[1] = submit(scene.queue, on_kernel(&scene, 1, TOWPATH_SPLICE, &move, sizeof(move)));
	ids[2] = submit(scene.queue, on_client(&scene, TOWPATH_SEND, sent, LARGE));
	ids[3] = submit(scene.queue, on_client(&scene, TOWPATH_RECV, received, LARGE));
	carry(&scene, 4, ids, ended);
	for (int i = 0; i < 4; i++)
		CHECK(ended[i].result == LARGE && !ended[i].error && !ended[i].detail);
	CHECK(!memcmp(sent, received, LARGE));
	/* An echo: from a stream to itself, without a copy. */
	struct towpath_stats before, after;
	CHECK(towpath_get_stats(scene.b, &before, sizeof(before)) == 0);
	memset(received, 0, LARGE);
	ids[0] = submit(scene.queue, on_server(&scene, TOWPATH_SPLICE, &move, sizeof(move)));
	ids[1] = submit(scene.queue, on_client(&scene, TOWPATH_SEND, sent, LARGE));
	ids[2] = submit(scene.queue, on_client(&scene, TOWPATH_RECV, received, LARGE));
	carry(&scene, 3, ids, ended);
	for (int i = 0; i < 3; i++)
		CHECK(ended[i].result == LARGE && !ended[i].error && !ended[i].detail);
	CHECK(!memcmp(sent, received, LARGE));
	CHECK(towpath_get_stats(scene.b, &after, sizeof(after)) == 0);
	CHECK(after.copied_socket_receive - before.copied_socket_receive < LARGE / 8);
	CHECK(after.copied_socket_send - before.copied_socket_send < LARGE / 8);
	CHECK(after.copied_pack - before.copied_pack < LARGE / 8);
	/* Cancelled, and late. */
	ids[0] = submit(scene.queue, on_kernel(&scene, 1, TOWPATH_SPLICE, &move, sizeof(move)));
	stall(&scene);
	CHECK(towpath_queue_cancel(scene.queue, ids[0]) == 0);
	CHECK(ends_with(&scene, ids[0], 0, ECANCELED) == 0);
	struct timespec soon = in_ns(5000000);
	struct towpath_operation late = on_server(&scene, TOWPATH_SPLICE, &move, sizeof(move));
	late.deadline = &soon;
	CHECK(ends_with(&scene, submit(scene.queue, late), 0, ETIMEDOUT) == 0);
	/* A sink that accepts no more: bytes that were taken are handed back. */
	move.instance = NULL, move.fd = scene.kernel[0], move.rest = rest, move.rest_len = sizeof(rest);
	CHECK(shutdown(scene.kernel[0], SHUT_WR) == 0);
	CHECK(towpath_write(scene.a, scene.client, "back", 4) == 4);
	ids[0] = submit(scene.queue, on_server(&scene, TOWPATH_SPLICE, &move, sizeof(move)));
	CHECK(ends_with(&scene, ids[0], 0, EPIPE) == 4 && !memcmp(rest, "back", 4));
	/* The end of a source is not an error. */
	move.instance = scene.b, move.fd = scene.server;
	CHECK(ends_with(&scene, submit(scene.queue, on_kernel(&scene, 1, TOWPATH_SPLICE, &move, sizeof(move))), 0, 0) == 0);
	end_scene(&scene);
}

/* Everything is closed under transfers; a file larger than any memory needs little memory. */
static void ends(void)
{
	struct scene scene = begin_scene();
	int huge = file_of(0);
	struct towpath_transfer move = { .fd = huge, .count = 1ll << 40 };
	struct towpath_event ended;
	uint64_t id;

	CHECK(ftruncate(huge, 1ll << 40) == 0);
	struct towpath_operation sends = on_client(&scene, TOWPATH_SENDFILE, &move, sizeof(move));
	id = submit(scene.queue, sends);
	stall(&scene);
	CHECK(towpath_queue_cancel(scene.queue, id) == 0);
	carry(&scene, 1, &id, &ended);
	CHECK(ended.error == ECANCELED && ended.result > 0 && ended.result < 2 * LARGE);
	/* Cancelled before the start, a deadline in the past, and a socket that is closed. */
	id = submit(scene.queue, sends);
	CHECK(towpath_queue_cancel(scene.queue, id) == 0);
	ends_with(&scene, id, 0, ECANCELED);
	struct timespec past = in_ns(-1);
	struct towpath_operation late = sends;
	late.deadline = &past;
	ends_with(&scene, submit(scene.queue, late), 0, ETIMEDOUT);
	id = submit(scene.queue, sends);
	stall(&scene);
	CHECK(towpath_close(scene.a, scene.client) == 0);
	carry(&scene, 1, &id, &ended);
	CHECK(ended.error == ECANCELED);
	/* A queue that ends with transfers in progress. */
	sends = on_server(&scene, TOWPATH_SENDFILE, &move, sizeof(move));
	submit(scene.queue, sends);
	submit(scene.queue, on_server(&scene, TOWPATH_RECVFILE, &move, sizeof(move)));
	end_scene(&scene);
	/* An instance that ends with a transfer in progress. */
	scene = begin_scene();
	move.fd = scene.kernel[0];
	struct towpath_operation splice = on_server(&scene, TOWPATH_SPLICE, &move, sizeof(move));
	id = submit(scene.queue, splice);
	stall(&scene);
	towpath_free(scene.b);
	over(scene.queue, id, 0, ECANCELED);
	scene.b = NULL;
	end_scene(&scene);
	CHECK(close(huge) == 0);
}

static void wrong(void)
{
	struct scene scene = begin_scene();
	int file = file_of(10), pipes[2], folder = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int write_only = open("/dev/null", O_WRONLY | O_CLOEXEC);
	struct towpath_transfer good = { .fd = file, .count = 5 }, move = good;
	struct towpath_operation moves = on_client(&scene, TOWPATH_SENDFILE, &move, sizeof(move)), bad = moves;
	int datagrams = towpath_socket(scene.a, AF_INET, SOCK_DGRAM, 0);
	char byte = 0;

	CHECK(pipe(pipes) == 0 && folder >= 0 && write_only >= 0 && datagrams >= 0);
	bad.len = 72;
	CHECK(no(scene.queue, bad) == EINVAL);
	bad = moves, bad.fd = -1;
	CHECK(no(scene.queue, bad) == EBADF);
	bad = moves, bad.fd = datagrams;
	CHECK(no(scene.queue, bad) == EOPNOTSUPP);
	move.fd = -1;
	CHECK(no(scene.queue, moves) == EBADF);
	move.fd = pipes[0];
	CHECK(no(scene.queue, moves) == ESPIPE);
	move.fd = scene.kernel[0];
	CHECK(no(scene.queue, moves) == ESPIPE);
	move.fd = folder;
	CHECK(no(scene.queue, moves) == EINVAL);
	move.fd = write_only;
	CHECK(no(scene.queue, moves) == EINVAL);
	move = good, move.instance = scene.b;
	CHECK(no(scene.queue, moves) == EINVAL);
	move = good, move.count = UINT64_MAX;
	CHECK(no(scene.queue, moves) == EINVAL);
	move.offset = 1, move.count = INT64_MAX;
	CHECK(no(scene.queue, moves) == EINVAL);
	move = good, move.offset = -1;
	CHECK(no(scene.queue, moves) == EINVAL);
	move = good, move.header_len = 3;
	CHECK(no(scene.queue, moves) == EFAULT);
	move.header_len = 0, move.rest = &byte, move.rest_len = 1;
	CHECK(no(scene.queue, moves) == EINVAL);
	/* Descriptors of the wrong kind for a splice. */
	moves = on_server(&scene, TOWPATH_SPLICE, &move, sizeof(move)), move = good;
	CHECK(no(scene.queue, moves) == ENOTSOCK);
	move.fd = scene.kernel[0], move.offset = 1;
	CHECK(no(scene.queue, moves) == EINVAL);
	move.offset = 0, move.instance = scene.a, move.fd = datagrams;
	CHECK(no(scene.queue, moves) == EOPNOTSUPP);
	move.fd = -1;
	CHECK(no(scene.queue, moves) == EBADF);
	moves.instance = NULL, moves.fd = file, move.fd = scene.client;
	CHECK(no(scene.queue, moves) == ENOTSOCK);
	/* A stream that is not connected is detected at the end. */
	int lonely = stream(scene.a);
	moves = on_client(&scene, TOWPATH_RECVFILE, &move, sizeof(move)), move = good, moves.fd = lonely;
	ends_with(&scene, submit(scene.queue, moves), 0, ENOTCONN);
	CHECK(close(file) == 0 && close(folder) == 0 && close(write_only) == 0);
	CHECK(close(pipes[0]) == 0 && close(pipes[1]) == 0);
	end_scene(&scene);
}

static void cases(unsigned int which)
{
	back_end = which;
	sends_files();
	sends_one_file_often();
	sends_files_by_call();
	receives_files();
	splices();
	ends();
	wrong();
}

int main(void)
{
	alarm(8 * PATIENCE_S);
	for (size_t i = 0; i < LARGE; i++)
		sent[i] = i * 31 + i / 251;
	return on_both(cases);
}
