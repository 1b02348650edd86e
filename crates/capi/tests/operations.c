/*
 * Operations of event queues on streams of two instances, on both back ends: completed, cancelled
 * at each step, late, with sockets closed under them and queues closed around them; and errors.
 */
#define _GNU_SOURCE
#include "queue.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

_Static_assert(sizeof(struct towpath_operation) == 80, "as the library has it");

/* More than sockets' buffers have room for. */
#define LARGE (8 << 20)
/*
 * A hole so long that its middle never contained memory: the library remembers the state of an
 * address for a while, even when its memory is gone.
 */
#define HOLE (1ul << 30)

static char *map_hole(void)
{
	char *hole = mmap(NULL, HOLE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(hole != MAP_FAILED);
	return hole;
}

/* Two instances with a listener, and a connection between them. */
struct scene {
	struct towpath_queue *queue;
	struct towpath *a, *b;
	int listener, client, server;
};

static struct sockaddr_in address = { .sin_family = AF_INET };
static unsigned int back_end;

/*
 * Checks that the next event is the end of a send, and the only event. The bytes were copied:
 * towpath_output() copies all bytes that it returns, and a recall copies the others.
 */
static void copied(struct scene *scene, uint64_t id, int64_t result)
{
	struct towpath_event event;

	over_with(scene->queue, id, result, 0, TOWPATH_COPIED);
	CHECK(now(scene->queue, &event, 1) == 0);
}

/* Checks that the next event is the end of an operation with this result, and the only event. */
static void done(struct scene *scene, uint64_t id, int64_t result, int error)
{
	struct towpath_event event;

	over(scene->queue, id, result, error);
	CHECK(now(scene->queue, &event, 1) == 0);
}

/* The result of the next event, which is TOWPATH_PROGRESS. */
static int64_t progress(struct scene *scene, uint64_t id)
{
	struct towpath_event event = next(scene->queue);

	CHECK(event.id == id && event.what == TOWPATH_PROGRESS && !event.flags && !event.error);
	return event.result;
}

static int stream(struct towpath *instance)
{
	int fd = towpath_socket(instance, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

	CHECK(fd >= 0);
	return fd;
}

static struct scene begin_scene(void)
{
	struct scene scene = {
		.queue = towpath_queue_new(back_end),
		.a = towpath_new("192.0.2.1/24", 1500), .b = towpath_new("192.0.2.2/24", 1500),
	};

	CHECK(scene.queue && scene.a && scene.b);
	address.sin_port = htons(80);
	CHECK(inet_pton(AF_INET, "192.0.2.2", &address.sin_addr) == 1);
	scene.listener = stream(scene.b);
	CHECK(towpath_bind(scene.b, scene.listener, (struct sockaddr *)&address, sizeof(address)) == 0);
	CHECK(towpath_listen(scene.b, scene.listener, 8) == 0);
	scene.client = stream(scene.a);
	struct towpath_operation operation;
	towpath_prep_accept(&operation, scene.b, scene.listener, SOCK_NONBLOCK);
	uint64_t accepts = submit(scene.queue, operation);
	towpath_prep_connect(&operation, scene.a, scene.client, (struct sockaddr *)&address, sizeof(address));
	operation.data.u64 = 3;
	uint64_t connects = submit(scene.queue, operation);
	struct towpath_event events[2];
	CHECK(now(scene.queue, events, 2) == 0);
	settle(scene.a, scene.b);
	CHECK(now(scene.queue, events, 2) == 2);
	int first = events[0].id == accepts ? 0 : 1;
	CHECK(events[first].id == accepts && events[1 - first].id == connects);
	CHECK(events[first].what == TOWPATH_PROGRESS && events[1 - first].what == TOWPATH_DONE);
	CHECK(events[1 - first].result == 0 && !events[1 - first].error);
	CHECK(events[1 - first].data.u64 == 3);
	scene.server = events[first].result;
	/* It continues until it is cancelled; further connections stay with the listener then. */
	int other = stream(scene.a);
	CHECK(towpath_connect(scene.a, other, (struct sockaddr *)&address, sizeof(address)) == -1);
	settle(scene.a, scene.b);
	CHECK(towpath_close(scene.b, progress(&scene, accepts)) == 0);
	CHECK(towpath_close(scene.a, other) == 0);
	CHECK(towpath_queue_cancel(scene.queue, accepts) == 0);
	done(&scene, accepts, -1, ECANCELED);
	return scene;
}

static void end_scene(struct scene *scene)
{
	CHECK(towpath_queue_close(scene->queue) == 0);
	towpath_free(scene->a);
	towpath_free(scene->b);
}

static struct towpath_operation receive(struct scene *scene, void *buffer, size_t len)
{
	struct towpath_operation operation;

	towpath_prep_recv(&operation, scene->b, scene->server, buffer, len, 0);
	return operation;
}

static struct towpath_operation sends(struct scene *scene, void *buffer, size_t len)
{
	struct towpath_operation operation;

	towpath_prep_send(&operation, scene->a, scene->client, buffer, len);
	return operation;
}

static void wrong(void)
{
	struct scene scene = begin_scene();
	struct towpath_queue *queue = scene.queue;
	struct timespec at = { .tv_nsec = -1 };
	char byte = 0, *hole = map_hole(), *unmapped = hole + HOLE / 2;
	struct towpath_operation good = receive(&scene, &byte, 1), bad = good;
	int datagrams = towpath_socket(scene.b, AF_INET, SOCK_DGRAM, 0);

	CHECK(datagrams >= 0);
	CHECK(no(queue, sends(&scene, unmapped, 1)) == EFAULT);
	CHECK(munmap(hole, HOLE) == 0);
	CHECK(no(queue, sends(&scene, unmapped, 1)) == EFAULT);
	CHECK(no(queue, receive(&scene, unmapped + 10, 1)) == EFAULT);
	CHECK(no(queue, receive(&scene, NULL, 1)) == EFAULT && no(queue, sends(&scene, NULL, 1)) == EFAULT);
	CHECK(no(queue, receive(&scene, &byte, -1)) == EFAULT && no(queue, sends(&scene, &byte, -1)) == EFAULT);
	bad.operation = 99;
	CHECK(no(queue, bad) == EINVAL);
	bad = good, bad.instance = NULL;
	CHECK(no(queue, bad) == ENOTSOCK);
	bad = good, bad.operation = TOWPATH_READ;
	CHECK(no(queue, bad) == EINVAL);
	bad = good, bad.flags = MSG_PEEK;
	CHECK(no(queue, bad) == EINVAL);
	bad = sends(&scene, &byte, 1), bad.flags = MSG_OOB;
	CHECK(no(queue, bad) == EINVAL);
	bad = good, bad.fd = -1;
	CHECK(no(queue, bad) == EBADF);
	bad = good, bad.fd = datagrams;
	CHECK(no(queue, bad) == EOPNOTSUPP);
	bad = good, bad.deadline = &at;
	CHECK(no(queue, bad) == EINVAL);
	bad = (struct towpath_operation) {
		.operation = TOWPATH_CONNECT, .instance = scene.a, .fd = scene.client, .buffer = &address,
		.len = 3,
	};
	CHECK(no(queue, bad) == EINVAL);
	bad.len = 1 << 20;
	CHECK(no(queue, bad) == EINVAL);
	bad.buffer = NULL, bad.len = sizeof(address);
	CHECK(no(queue, bad) == EFAULT);
	bad = (struct towpath_operation) {
		.operation = TOWPATH_ACCEPT, .instance = scene.b, .fd = scene.listener, .flags = 1,
	};
	CHECK(no(queue, bad) == EINVAL);
	CHECK(towpath_queue_submit(queue, NULL, 1) == -1 && errno == EFAULT);
	CHECK(towpath_queue_submit(queue, &good, -1) == -1 && errno == EINVAL);
	CHECK(towpath_queue_submit(NULL, &good, 1) == -1 && errno == EFAULT);
	CHECK(towpath_queue_cancel(queue, 0) == -1 && errno == ESTALE);
	uint64_t user = add(queue, (struct towpath_change) { .source = TOWPATH_SOURCE_USER });
	CHECK(towpath_queue_cancel(queue, user) == -1 && errno == EINVAL);
	/*
	 * Errors that only the call itself detects are reported at the end: a connected and a
	 * listening socket.
	 */
	bad.flags = 0, bad.fd = scene.server;
	done(&scene, submit(queue, bad), -1, EINVAL);
	bad = receive(&scene, &byte, 1), bad.fd = scene.listener;
	done(&scene, submit(queue, bad), -1, ENOTCONN);
	bad = sends(&scene, &byte, 1), bad.instance = scene.b, bad.fd = scene.listener;
	done(&scene, submit(queue, bad), -1, EPIPE);
	/* A port without a listener. */
	int fd = stream(scene.a);
	address.sin_port = htons(81);
	uint64_t refused = submit(queue, (struct towpath_operation) {
		.operation = TOWPATH_CONNECT, .instance = scene.a, .fd = fd, .buffer = &address,
		.len = sizeof(address),
	});
	struct towpath_event event;
	CHECK(now(queue, &event, 1) == 0);
	settle(scene.a, scene.b);
	done(&scene, refused, -1, ECONNREFUSED);
	/* One valid operation of three. */
	struct towpath_operation three[] = { bad, good, bad };
	three[0].fd = three[2].fd = -1;
	CHECK(towpath_queue_submit(queue, three, 3) == 1 && three[0].error == EBADF && !three[1].error);
	CHECK(remove_id(queue, three[1].id) == EBUSY);
	end_scene(&scene);
}

static void receives(void)
{
	struct scene scene = begin_scene();
	struct timespec soon = in_ns(5000000);
	struct towpath_event event;
	char bytes[64] = "";

	/* As many bytes as there are; or the whole buffer. */
	uint64_t id = submit(scene.queue, receive(&scene, bytes, 64));
	CHECK(now(scene.queue, &event, 1) == 0 && remove_id(scene.queue, id) == EBUSY);
	CHECK(towpath_write(scene.a, scene.client, "hello", 5) == 5);
	settle(scene.a, scene.b);
	done(&scene, id, 5, 0);
	CHECK(!memcmp(bytes, "hello", 6));
	struct towpath_operation all = receive(&scene, bytes, 10);
	all.flags = MSG_WAITALL;
	id = submit(scene.queue, all);
	for (int i = 0; i < 2; i++) {
		CHECK(now(scene.queue, &event, 1) == 0);
		CHECK(towpath_write(scene.a, scene.client, "01234", 5) == 5);
		settle(scene.a, scene.b);
	}
	done(&scene, id, 10, 0);
	CHECK(!memcmp(bytes, "0123401234", 10));
	done(&scene, submit(scene.queue, receive(&scene, NULL, 0)), 0, 0);
	/* Cancelled and late: no byte is lost, and received bytes are reported. */
	id = submit(scene.queue, receive(&scene, bytes, 64));
	CHECK(towpath_queue_cancel(scene.queue, id) == 0);
	CHECK(towpath_write(scene.a, scene.client, "kept", 4) == 4);
	settle(scene.a, scene.b);
	done(&scene, id, -1, ECANCELED);
	id = submit(scene.queue, all);
	CHECK(now(scene.queue, &event, 1) == 0 && towpath_queue_cancel(scene.queue, id) == 0);
	done(&scene, id, 4, 0);
	CHECK(!memcmp(bytes, "kept", 4));
	all.deadline = &soon;
	id = submit(scene.queue, all);
	done(&scene, id, -1, ETIMEDOUT);
	/* The end of the stream, and a socket that is closed. */
	all.deadline = NULL;
	id = submit(scene.queue, all);
	CHECK(towpath_shutdown(scene.a, scene.client, SHUT_WR) == 0);
	settle(scene.a, scene.b);
	done(&scene, id, 0, 0);
	struct towpath_operation other = receive(&scene, bytes, 1);
	other.instance = scene.a, other.fd = scene.client;
	id = submit(scene.queue, other);
	CHECK(now(scene.queue, &event, 1) == 0 && towpath_close(scene.a, scene.client) == 0);
	done(&scene, id, -1, ECANCELED);
	end_scene(&scene);
}

/* Reads all available bytes on the server's side. Returns their number. */
static size_t drain(struct scene *scene, char *bytes, size_t room)
{
	size_t sum = 0;
	ssize_t len;

	while (sum < room && (len = towpath_read(scene->b, scene->server, bytes + sum, room - sum)) > 0)
		sum += len;
	return sum;
}

static void lends(void)
{
	static char sent[LARGE], received[LARGE];
	struct scene scene = begin_scene();
	struct towpath_stats stats;
	struct towpath_event event;
	size_t sum = 0;
	int64_t accepted = 0;

	for (size_t i = 0; i < LARGE; i++)
		sent[i] = i * 31 + i / 251;
	/* A small send: accepted at once, and back when the peer has acknowledged it. */
	uint64_t id = submit(scene.queue, sends(&scene, sent, 100));
	CHECK(progress(&scene, id) == 100 && now(scene.queue, &event, 1) == 0);
	settle(scene.a, scene.b);
	copied(&scene, id, 100);
	CHECK(drain(&scene, received, 100) == 100 && !memcmp(sent, received, 100));
	id = submit(scene.queue, sends(&scene, NULL, 0));
	CHECK(progress(&scene, id) == 0);
	done(&scene, id, 0, 0);
	/* A send larger than the room. */
	id = submit(scene.queue, sends(&scene, sent, LARGE));
	for (int turn = 0; sum < LARGE && turn < 100000; turn++) {
		if (now(scene.queue, &event, 1) == 1) {
			CHECK(event.id == id && event.what == TOWPATH_PROGRESS && !accepted);
			accepted = event.result;
		}
		settle(scene.a, scene.b);
		sum += drain(&scene, received + sum, LARGE - sum);
	}
	CHECK(sum == LARGE && accepted == LARGE && !memcmp(sent, received, LARGE));
	settle(scene.a, scene.b);
	copied(&scene, id, LARGE);
	CHECK(towpath_get_stats(scene.a, &stats, sizeof(stats)) == 0);
	CHECK(stats.copied_socket_send == 0 && stats.lent >= LARGE);
	/* Cancelled in flight: accepted bytes are still sent, and the memory is back at once. */
	id = submit(scene.queue, sends(&scene, sent, LARGE));
	CHECK(now(scene.queue, &event, 1) == 0 && towpath_queue_cancel(scene.queue, id) == 0);
	accepted = progress(&scene, id);
	CHECK(accepted > 0 && accepted < LARGE);
	copied(&scene, id, accepted);
	memcpy(received, sent, LARGE);
	memset(sent, 0, LARGE);
	for (sum = 0; sum < (size_t)accepted;) {
		char part[4096];

		settle(scene.a, scene.b);
		size_t len = drain(&scene, part, sizeof(part));
		CHECK(len > 0 && !memcmp(part, received + sum, len));
		sum += len;
	}
	CHECK(sum == (size_t)accepted);
	/* Cancelled before any byte was accepted. */
	id = submit(scene.queue, sends(&scene, sent, 10));
	CHECK(towpath_queue_cancel(scene.queue, id) == 0);
	done(&scene, id, -1, ECANCELED);
	struct timespec past = in_ns(-1);
	struct towpath_operation late = sends(&scene, sent, 10);
	late.deadline = &past;
	done(&scene, submit(scene.queue, late), -1, ETIMEDOUT);
	/* More than any peer accepts at once. */
	size_t huge = 1ull << 32;
	char *zeros = mmap(NULL, huge, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(zeros != MAP_FAILED);
	/* With huge pages the check of the memory is fast; without them it takes longer. */
	madvise(zeros, huge, MADV_HUGEPAGE);
	id = submit(scene.queue, sends(&scene, zeros, huge));
	CHECK(now(scene.queue, &event, 1) == 0 && towpath_queue_cancel(scene.queue, id) == 0);
	accepted = progress(&scene, id);
	CHECK(accepted > 0 && accepted < LARGE);
	copied(&scene, id, accepted);
	CHECK(munmap(zeros, huge) == 0);
	end_scene(&scene);
}

/*
 * Sockets, instances and queues end with operations in progress: all memory comes back, or the
 * queue stays.
 */
static void ends(void)
{
	static char sent[LARGE];
	struct scene scene = begin_scene();
	struct towpath_event events[4];
	char bytes[16];

	uint64_t send = submit(scene.queue, sends(&scene, sent, LARGE));
	CHECK(now(scene.queue, events, 4) == 0 && towpath_close(scene.a, scene.client) == 0);
	int64_t accepted = progress(&scene, send);
	CHECK(accepted > 0 && now(scene.queue, events, 4) == 0);
	CHECK(towpath_queue_cancel(scene.queue, send) == 0);
	copied(&scene, send, accepted);
	end_scene(&scene);

	scene = begin_scene();
	send = submit(scene.queue, sends(&scene, sent, LARGE));
	uint64_t get = submit(scene.queue, receive(&scene, bytes, 16));
	CHECK(now(scene.queue, events, 4) == 0);
	towpath_free(scene.a);
	accepted = progress(&scene, send);
	copied(&scene, send, accepted);
	towpath_free(scene.b);
	done(&scene, get, -1, ECANCELED);
	CHECK(towpath_queue_close(scene.queue) == 0);

	/* The queue is closed first; a child of a fork does not affect it. */
	scene = begin_scene();
	int status;
	submit(scene.queue, sends(&scene, sent, LARGE));
	submit(scene.queue, receive(&scene, bytes, 16));
	submit(scene.queue, (struct towpath_operation) {
		.operation = TOWPATH_ACCEPT, .instance = scene.b, .fd = scene.listener,
	});
	CHECK(now(scene.queue, events, 4) == 0);
	pid_t child = fork();
	if (child == 0) {
		struct towpath_operation operation = receive(&scene, bytes, 16);

		CHECK(towpath_queue_submit(scene.queue, &operation, 1) == -1 && errno == EPERM);
		CHECK(towpath_queue_cancel(scene.queue, send) == -1 && errno == EPERM);
		CHECK(towpath_queue_close(scene.queue) == 0);
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	add(scene.queue, (struct towpath_change) { .source = TOWPATH_SOURCE_TIMER });
	end_scene(&scene);
}

/* Files are read, written and synchronised beside other events. */
static void files(void)
{
	static char written[3 << 20], bytes[4 << 20];
	struct scene scene = { .queue = towpath_queue_new(back_end) };
	char name[] = "/tmp/towpath-operations-XXXXXX";
	int file = mkstemp(name), fds[2];
	struct towpath_event event;

	CHECK(scene.queue && file >= 0 && unlink(name) == 0 && pipe(fds) == 0);
	for (size_t i = 0; i < sizeof(written); i++)
		written[i] = i * 31 + i / 251;
	struct towpath_operation out, in, syncs[2];
	towpath_prep_write(&out, file, written, sizeof(written), 5);
	towpath_prep_read(&in, file, bytes, sizeof(bytes), 6);
	towpath_prep_fsync(&syncs[0], file);
	towpath_prep_fdatasync(&syncs[1], file);
	done(&scene, submit(scene.queue, out), sizeof(written), 0);
	done(&scene, submit(scene.queue, in), sizeof(written) - 1, 0);
	CHECK(!memcmp(bytes, written + 1, sizeof(written) - 1) && !bytes[sizeof(written)]);
	in.offset = 1ll << 40;
	done(&scene, submit(scene.queue, in), 0, 0);
	for (int i = 0; i < 2; i++)
		done(&scene, submit(scene.queue, syncs[i]), 0, 0);
	/* Errors are reported when the operation is submitted, or at its end. */
	struct towpath_operation bad = in;
	bad.offset = -1;
	CHECK(no(scene.queue, bad) == EINVAL);
	bad = in, bad.flags = 1;
	CHECK(no(scene.queue, bad) == EINVAL);
	bad = in, bad.fd = fds[0];
	CHECK(no(scene.queue, bad) == ESPIPE);
	bad = in, bad.fd = -1;
	CHECK(no(scene.queue, bad) == EBADF);
	bad = in, bad.buffer = NULL;
	CHECK(no(scene.queue, bad) == EFAULT);
	bad = out, bad.buffer = NULL;
	CHECK(no(scene.queue, bad) == EFAULT);
	char *hole = map_hole();
	CHECK(munmap(hole, HOLE) == 0);
	bad.buffer = hole + HOLE / 2, bad.len = 1;
	CHECK(no(scene.queue, bad) == EFAULT);
	bad.operation = TOWPATH_READ;
	CHECK(no(scene.queue, bad) == EFAULT);
	bad.operation = TOWPATH_SEND, bad.buffer = bytes;
	CHECK(no(scene.queue, bad) == ENOTSOCK);
	int read_only = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	bad = out, bad.fd = read_only;
	done(&scene, submit(scene.queue, bad), -1, EBADF);
	/*
	 * A file that is closed at once, because the operation has a duplicate; cancelled
	 * operations are reported, too.
	 */
	in.offset = 5;
	uint64_t id = submit(scene.queue, in);
	CHECK(close(file) == 0);
	done(&scene, id, sizeof(written), 0);
	CHECK(!memcmp(bytes, written, sizeof(written)));
	in.fd = read_only, in.offset = 0, in.len = 1000;
	id = submit(scene.queue, in);
	CHECK(towpath_queue_cancel(scene.queue, id) == 0);
	event = next(scene.queue);
	CHECK(event.id == id && event.what == TOWPATH_DONE);
	CHECK(event.result == 1000 || (event.result == -1 && event.error == ECANCELED));
	/* The queue ends with operations in progress. */
	for (int i = 0; i < 10; i++)
		submit(scene.queue, in);
	CHECK(towpath_queue_close(scene.queue) == 0);
	CHECK(close(read_only) == 0 && close(fds[0]) == 0 && close(fds[1]) == 0);
}

/* How an operation ends: the last two are deadlines, in the past and in the near future. */
enum { CANCEL, CLOSE, PAST, SOON, WAYS };

/* Memory that an operation may use until its end. */
struct memory {
	struct msghdr message;
	struct iovec bytes;
	char text[64], rest[64];
};

/*
 * An operation that waits until packets are moved or, for a message, until the queue is waited on.
 */
static struct towpath_operation waits(struct scene *scene, int operation, struct memory *memory)
{
	struct towpath_operation waits = { .operation = operation, .instance = scene->a };

	switch (operation) {
	case TOWPATH_CONNECT:
		waits.fd = stream(scene->a);
		waits.buffer = &address, waits.len = sizeof(address);
		break;
	case TOWPATH_SENDMSG:
		waits.fd = towpath_socket(scene->a, AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
		waits.buffer = &memory->message, waits.len = sizeof(memory->message);
		memory->bytes = (struct iovec) { memory->text, sizeof(memory->text) };
		memory->message = (struct msghdr) {
			.msg_name = &address, .msg_namelen = sizeof(address),
			.msg_iov = &memory->bytes, .msg_iovlen = 1,
		};
		break;
	default:
		waits.instance = scene->b;
		waits.fd = operation == TOWPATH_ACCEPT ? scene->listener : scene->server;
	}
	return waits;
}

/* Ends one operation in one way: it ends once, with the reason, and does not take later bytes. */
static void cut_short(int operation, int way)
{
	struct scene scene = begin_scene();
	struct timespec at = in_ns(way == PAST ? -1 : 5000000);
	struct memory *memory = mmap(NULL, sizeof(*memory), PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int file = memfd_create("into", MFD_CLOEXEC);
	struct towpath_transfer move = {
		.fd = file, .count = 100, .rest = memory->rest, .rest_len = sizeof(memory->rest),
	};
	int is_late = way == PAST || way == SOON, is_closed = way == CLOSE;
	int is_move = operation == TOWPATH_RECVFILE || operation == TOWPATH_SPLICE;
	struct towpath_event event;
	char bytes[64];

	CHECK(memory != MAP_FAILED && file >= 0);
	if (operation == TOWPATH_SPLICE)
		move.instance = scene.a, move.fd = scene.client;
	settle(scene.a, scene.b);
	struct towpath_operation cut = waits(&scene, operation, memory);
	if (is_move)
		cut.buffer = &move, cut.len = sizeof(move);
	if (is_late)
		cut.deadline = &at;
	uint64_t id = submit(scene.queue, cut);
	CHECK(is_late || operation == TOWPATH_SENDMSG || now(scene.queue, &event, 1) == 0);
	if (way == CANCEL)
		CHECK(towpath_queue_cancel(scene.queue, id) == 0);
	if (is_closed)
		CHECK(towpath_close((struct towpath *)cut.instance, cut.fd) == 0);
	CHECK(over(scene.queue, id, is_move ? 0 : -1, is_late ? ETIMEDOUT : ECANCELED) == 0);
	CHECK(mprotect(memory, sizeof(*memory), PROT_NONE) == 0);
	CHECK(operation != TOWPATH_SENDMSG || towpath_output(scene.a, bytes, sizeof(bytes)) == 0);
	CHECK(towpath_write(scene.a, scene.client, "kept", 4) == 4);
	settle(scene.a, scene.b);
	CHECK(now(scene.queue, &event, 1) == 0 && lseek(file, 0, SEEK_END) == 0);
	ssize_t len = towpath_read(scene.b, scene.server, bytes, sizeof(bytes));
	CHECK(is_move && is_closed ? len == -1 && errno == EBADF : len == 4);
	/* A connection attempt continues. */
	int came = towpath_accept(scene.b, scene.listener, NULL, NULL) >= 0;
	CHECK(way == SOON || came == (operation == TOWPATH_CONNECT && way == CANCEL));
	end_scene(&scene);
	CHECK(munmap(memory, sizeof(*memory)) == 0 && close(file) == 0);
}

static void waiting(void)
{
	static const int operations[] = {
		TOWPATH_CONNECT, TOWPATH_ACCEPT, TOWPATH_SENDMSG, TOWPATH_RECVFILE, TOWPATH_SPLICE,
	};

	for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++) {
		for (int way = 0; way < WAYS; way++) {
			if (operations[i] != TOWPATH_SENDMSG || way != SOON)
				cut_short(operations[i], way);
		}
	}
}

/* A deadline of a file operation: it is carried out completely, or not at all. */
static void late_files(void)
{
	int past = 0;

	for (int i = 0; i < 8; i++) {
		struct towpath_queue *queue = towpath_queue_new(back_end);
		struct timespec at = in_ns(i % 2 ? 50000 : -1);
		int file = memfd_create("late", MFD_CLOEXEC), operation = TOWPATH_READ + i / 2;
		int moves = operation == TOWPATH_READ || operation == TOWPATH_WRITE;
		char *bytes = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct towpath_operation late = {
			.operation = operation, .fd = file, .buffer = moves ? bytes : NULL,
			.len = moves ? 4096 : 0, .deadline = &at,
		};

		CHECK(queue && file >= 0 && bytes != MAP_FAILED);
		CHECK(operation != TOWPATH_READ || ftruncate(file, 4096) == 0);
		memset(bytes, 1, 4096);
		uint64_t id = submit(queue, late);
		struct towpath_event event = next(queue);
		CHECK(event.id == id && event.what == TOWPATH_DONE && event.flags == TOWPATH_OVER);
		CHECK(event.result == -1 ? event.error == ETIMEDOUT : !event.error);
		CHECK(event.result == -1 || event.result == (moves ? 4096 : 0));
		past += event.error && !(i % 2);
		CHECK(bytes[4095] == !(operation == TOWPATH_READ && event.result > 0));
		CHECK(operation != TOWPATH_WRITE ||
		      lseek(file, 0, SEEK_END) == (event.result > 0 ? 4096 : 0));
		CHECK(munmap(bytes, 4096) == 0 && now(queue, &event, 1) == 0);
		CHECK(towpath_queue_cancel(queue, id) == -1 && errno == ESTALE);
		CHECK(close(file) == 0 && towpath_queue_close(queue) == 0);
	}
	/* A thread may be faster than the first wait, but not every time. */
	CHECK(past > 0);
}

static void cases(unsigned int which)
{
	back_end = which;
	wrong();
	receives();
	lends();
	ends();
	files();
	waiting();
	late_files();
}

int main(void)
{
	alarm(8 * PATIENCE_S);
	return on_both(cases);
}
