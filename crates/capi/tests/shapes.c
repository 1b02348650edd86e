/*
 * Structures of the header, on both back ends: arrays of elements that are longer than the
 * library's, or shorter than those of any version; and the structures that the functions named
 * towpath_prep_* fill.
 */
#define _GNU_SOURCE
#include "scene.h"

#include <sys/mman.h>

/* A structure of a later version. */
#define LATER(name) struct { struct name known; uint64_t more[2]; }

static int file_of(const char *words)
{
	int file = memfd_create("shapes", MFD_CLOEXEC);

	CHECK(file >= 0 && write(file, words, strlen(words)) == (ssize_t)strlen(words));
	return file;
}

/* Each element reports separately that it sets a field that this version does not know. */
static void longer(void)
{
	struct scene scene = begin_scene();
	LATER(towpath_change) changes[3];
	LATER(towpath_event) events[4];
	LATER(towpath_operation) operations[3];
	struct timespec deadline = later();
	char read[3][4] = { "" };
	int file = file_of("four");

	memset(changes, 0, sizeof(changes));
	for (int i = 0; i < 3; i++)
		changes[i].known.command = TOWPATH_ADD, changes[i].known.source = TOWPATH_SOURCE_USER;
	changes[1].more[1] = 1;
	CHECK(towpath_queue_change_sized(scene.queue, &changes[0].known, 3, sizeof(*changes)) == 2);
	CHECK(changes[1].known.error == E2BIG && !changes[1].known.id && changes[1].more[1] == 1);
	CHECK(!changes[0].known.error && !changes[2].known.error && changes[0].known.id != changes[2].known.id);
	for (int i = 0; i < 3; i += 2)
		CHECK(towpath_queue_notify(scene.queue, changes[i].known.id) == 0);
	memset(events, 0xff, sizeof(events));
	CHECK(towpath_queue_wait_sized(scene.queue, &events[0].known, 2, 3, &deadline, sizeof(*events)) == 2);
	for (int i = 0; i < 2; i++) {
		CHECK(events[i].known.what == TOWPATH_NOTIFIED && events[i].known.result == 1);
		CHECK(!events[i].more[0] && !events[i].more[1]);
	}
	CHECK(events[0].known.id + events[1].known.id == changes[0].known.id + changes[2].known.id);
	for (size_t i = 2 * sizeof(*events); i < sizeof(events); i++)
		CHECK(((unsigned char *)events)[i] == 0xff);
	for (int i = 0; i < 3; i++) {
		towpath_prep_read(&operations[i].known, file, read[i], 4, 0);
		operations[i].more[0] = i == 1, operations[i].more[1] = 0;
	}
	CHECK(towpath_queue_submit_sized(scene.queue, &operations[0].known, 3, sizeof(*operations)) == 2);
	CHECK(operations[1].known.error == E2BIG && !operations[1].known.id && operations[1].more[0] == 1);
	for (int left = 2; left > 0; left--) {
		struct towpath_event event = next(scene.queue);

		CHECK(event.id == operations[0].known.id || event.id == operations[2].known.id);
		CHECK(event.what == TOWPATH_DONE && event.result == 4 && !event.error);
	}
	CHECK(!memcmp(read[0], "four", 4) && !memcmp(read[1], "\0\0\0", 4) && !memcmp(read[2], "four", 4));
	CHECK(close(file) == 0);
	end_scene(&scene);
}

/* Structures that operations point to may also have any size. */
static void pointed_to(void)
{
	struct scene scene = begin_scene();
	LATER(towpath_transfer) move = { .more = { 0 } };
	LATER(towpath_lent) lent = { .more = { 0, 1 } };
	struct iovec pieces[4];
	struct towpath_operation operation;
	int file = file_of("file");
	char got[4];

	towpath_prep_sendfile(&operation, NULL, scene.kernel[0], &move.known, file, 0, 4);
	operation.len = sizeof(move), move.more[0] = 1;
	CHECK(no(scene.queue, operation) == E2BIG);
	move.more[0] = 0;
	over(scene.queue, submit(scene.queue, operation), 4, 0);
	CHECK(read(scene.kernel[1], got, 4) == 4 && !memcmp(got, "file", 4));
	operation.len = sizeof(move.known) - 8;
	CHECK(no(scene.queue, operation) == EINVAL);
	operation.len = 8192;
	CHECK(no(scene.queue, operation) == E2BIG);

	towpath_prep_recvmsg_lent(&operation, scene.b, scene.server, &lent.known);
	lent.known.message.msg_iov = pieces, lent.known.message.msg_iovlen = 4;
	operation.len = sizeof(lent);
	CHECK(no(scene.queue, operation) == E2BIG);
	lent.more[1] = 0;
	CHECK(towpath_write(scene.a, scene.client, "lent", 4) == 4);
	uint64_t id = submit(scene.queue, operation);
	struct towpath_event event = step(&scene);
	CHECK(event.id == id && event.what == TOWPATH_DONE && event.result == 4);
	CHECK(lent.known.token && !lent.more[0] && !lent.more[1] && !memcmp(pieces[0].iov_base, "lent", 4));
	CHECK(towpath_return(scene.b, lent.known.token) == 0);
	operation.len = sizeof(struct msghdr);
	CHECK(no(scene.queue, operation) == EINVAL);
	CHECK(close(file) == 0);
	end_scene(&scene);
}

/* A size that no version has: nothing is read or written. */
static void wrong(void)
{
	struct towpath_queue *queue = towpath_queue_new(back_end);
	struct towpath_change change = { .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_USER, .error = 99 };
	struct towpath_operation operation = { .operation = TOWPATH_FSYNC, .fd = -1, .error = 99 };
	struct towpath_event event = { .what = 99 };
	size_t off[][2] = { { 0, EINVAL }, { -8, EINVAL }, { 4, EINVAL }, { 1 << 16, E2BIG } };

	CHECK(queue);
	for (int i = 0; i < 4; i++) {
		size_t more = off[i][0];
		int error = off[i][1], none = !i;

		CHECK(towpath_queue_change_sized(queue, &change, 1, none ? 0 : sizeof(change) + more) == -1);
		CHECK(errno == error && change.error == 99);
		CHECK(towpath_queue_submit_sized(queue, &operation, 1, none ? 0 : sizeof(operation) + more) == -1);
		CHECK(errno == error && operation.error == 99);
		CHECK(towpath_queue_wait_sized(queue, &event, 0, 1, NULL, none ? 0 : sizeof(event) + more) == -1);
		CHECK(errno == error && event.what == 99);
	}
	CHECK(towpath_queue_close(queue) == 0);
}

/* Checks that an operation is filled like this, whatever it contained before. */
static void is(struct towpath_operation *filled, struct towpath_operation expected)
{
	CHECK(!memcmp(filled, &expected, sizeof(expected)));
	memset(filled, 0xff, sizeof(*filled));
}

static void fills(void)
{
	static char memory[8];
	struct towpath *a = towpath_new("192.0.2.1/24", 1500), *b = towpath_new("192.0.2.2/24", 1500);
	struct sockaddr_in to;
	struct msghdr message;
	struct towpath_lent lent;
	struct towpath_transfer move, moves;
	struct towpath_operation of;

	CHECK(a && b);
	memset(&of, 0xff, sizeof(of));
	memset(&move, 0xff, sizeof(move));
	towpath_prep_connect(&of, a, 3, (struct sockaddr *)&to, sizeof(to));
	is(&of, (struct towpath_operation) {
		.operation = TOWPATH_CONNECT, .instance = a, .fd = 3, .buffer = &to, .len = sizeof(to),
	});
	towpath_prep_accept(&of, a, 3, SOCK_NONBLOCK);
	is(&of, (struct towpath_operation) {
		.operation = TOWPATH_ACCEPT, .instance = a, .fd = 3, .flags = SOCK_NONBLOCK,
	});
	towpath_prep_recv(&of, a, 3, memory, 8, MSG_WAITALL);
	is(&of, (struct towpath_operation) {
		.operation = TOWPATH_RECV, .instance = a, .fd = 3, .buffer = memory, .len = 8, .flags = MSG_WAITALL,
	});
	towpath_prep_recv_multishot(&of, a, 3, 5);
	is(&of, (struct towpath_operation) {
		.operation = TOWPATH_RECV_MULTISHOT, .instance = a, .fd = 3, .group = 5,
	});
	towpath_prep_recvmsg(&of, a, 3, &message, MSG_PEEK);
	is(&of, (struct towpath_operation) {
		.operation = TOWPATH_RECVMSG, .instance = a, .fd = 3, .buffer = &message, .len = sizeof(message),
		.flags = MSG_PEEK,
	});
	towpath_prep_recvmsg_lent(&of, a, 3, &lent);
	is(&of, (struct towpath_operation) {
		.operation = TOWPATH_RECVMSG_LENT, .instance = a, .fd = 3, .buffer = &lent, .len = sizeof(lent),
	});
	towpath_prep_send(&of, a, 3, memory, 8);
	is(&of, (struct towpath_operation) {
		.operation = TOWPATH_SEND, .instance = a, .fd = 3, .buffer = memory, .len = 8,
	});
	towpath_prep_send_zc(&of, NULL, 3, memory, 8);
	is(&of, (struct towpath_operation) {
		.operation = TOWPATH_SEND, .fd = 3, .buffer = memory, .len = 8, .flags = MSG_ZEROCOPY,
	});
	towpath_prep_sendmsg(&of, a, 3, &message);
	is(&of, (struct towpath_operation) {
		.operation = TOWPATH_SENDMSG, .instance = a, .fd = 3, .buffer = &message, .len = sizeof(message),
	});
	towpath_prep_read(&of, 4, memory, 8, 1000);
	is(&of, (struct towpath_operation) {
		.operation = TOWPATH_READ, .fd = 4, .buffer = memory, .len = 8, .offset = 1000,
	});
	towpath_prep_write(&of, 4, memory, 8, 1000);
	is(&of, (struct towpath_operation) {
		.operation = TOWPATH_WRITE, .fd = 4, .buffer = memory, .len = 8, .offset = 1000,
	});
	towpath_prep_fsync(&of, 4);
	is(&of, (struct towpath_operation) { .operation = TOWPATH_FSYNC, .fd = 4 });
	towpath_prep_fdatasync(&of, 4);
	is(&of, (struct towpath_operation) { .operation = TOWPATH_FDATASYNC, .fd = 4 });
	moves = (struct towpath_transfer) { .fd = 4, .offset = 1000, .count = 7 };
	towpath_prep_sendfile(&of, a, 3, &move, 4, 1000, 7);
	is(&of, (struct towpath_operation) {
		.operation = TOWPATH_SENDFILE, .instance = a, .fd = 3, .buffer = &move, .len = sizeof(move),
	});
	CHECK(!memcmp(&move, &moves, sizeof(move)));
	memset(&move, 0xff, sizeof(move));
	towpath_prep_recvfile(&of, a, 3, &move, 4, 1000, 7);
	is(&of, (struct towpath_operation) {
		.operation = TOWPATH_RECVFILE, .instance = a, .fd = 3, .buffer = &move, .len = sizeof(move),
	});
	CHECK(!memcmp(&move, &moves, sizeof(move)));
	memset(&move, 0xff, sizeof(move));
	towpath_prep_splice(&of, a, 3, &move, b, 4, 7);
	is(&of, (struct towpath_operation) {
		.operation = TOWPATH_SPLICE, .instance = a, .fd = 3, .buffer = &move, .len = sizeof(move),
	});
	moves = (struct towpath_transfer) { .fd = 4, .instance = b, .count = 7 };
	CHECK(!memcmp(&move, &moves, sizeof(move)));
	towpath_free(a);
	towpath_free(b);
}

static void cases(unsigned int which)
{
	back_end = which;
	longer();
	pointed_to();
	wrong();
}

int main(void)
{
	alarm(8 * PATIENCE_S);
	fills();
	return on_both(cases);
}
