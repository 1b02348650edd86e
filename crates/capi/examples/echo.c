/*
 * An echo server on an event queue: one thread, any number of connections, until SIGINT or SIGTERM.
 *
 *     cc crates/capi/examples/echo.c $(pkg-config --cflags --libs towpath) -o echo
 *     echo tap0 192.0.2.2/24 7
 *
 * The server receives a peer's bytes into a buffer of that connection and lends them from there:
 * the stack copies them once on the way in and not at all on the way out. The buffer is reused when
 * the peer has acknowledged the bytes.
 */
#include <towpath.h>

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EVENTS 64
#define BUFFER_BYTES (64 << 10)

struct peer;

struct server {
	struct towpath *net;
	struct towpath_queue *queue;
	int listener;
	/* Open connections, and all connections served. */
	unsigned long open, served;
	/* The open connections. */
	struct peer *peers;
};

/* A connection, which has one operation at a time. */
struct peer {
	int fd;
	/* It sends; otherwise it receives. */
	int sends;
	struct peer *next, **place;
	char buffer[BUFFER_BYTES];
};

static int failed(const char *what)
{
	perror(what);
	return -1;
}

static int submit(struct server *server, struct towpath_operation *operation)
{
	return towpath_queue_submit(server->queue, operation, 1) == 1 ? 0 : -1;
}

/* Receives the next bytes, or sends the received ones. */
static int go_on(struct server *server, struct peer *peer, size_t len)
{
	struct towpath_operation operation;

	peer->sends = len > 0;
	if (peer->sends)
		towpath_prep_send(&operation, server->net, peer->fd, peer->buffer, len);
	else
		towpath_prep_recv(&operation, server->net, peer->fd, peer->buffer, BUFFER_BYTES, 0);
	operation.data.ptr = peer;
	return submit(server, &operation);
}

static void end(struct server *server, struct peer *peer)
{
	towpath_close(server->net, peer->fd);
	*peer->place = peer->next;
	if (peer->next)
		peer->next->place = peer->place;
	free(peer);
	server->open--;
}

static void begin(struct server *server, int fd)
{
	struct peer *peer = malloc(sizeof(*peer));

	server->served++;
	if (!peer) {
		towpath_close(server->net, fd);
		return;
	}
	server->open++;
	peer->fd = fd;
	peer->next = server->peers;
	peer->place = &server->peers;
	if (peer->next)
		peer->next->place = &peer->next;
	server->peers = peer;
	if (go_on(server, peer, 0) != 0)
		end(server, peer);
}

/* False if the server should end. */
static int handle(struct server *server, const struct towpath_event *event)
{
	struct peer *peer = event->data.ptr;

	if (event->what == TOWPATH_SIGNALLED)
		return 0;
	if (!peer) {
		if (event->what == TOWPATH_PROGRESS) {
			begin(server, event->result);
			return 1;
		}
		fprintf(stderr, "accept: %s\n", strerror(event->error));
		return 0;
	}
	/* The acceptance of all bytes of a buffer does not make the buffer free again. */
	if (event->what == TOWPATH_DONE
	    && (event->result <= 0 || go_on(server, peer, peer->sends ? 0 : event->result) != 0))
		end(server, peer);
	return 1;
}

static int serve(struct server *server, int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct towpath_event events[EVENTS];
	struct towpath_operation accepts;
	struct towpath_change signals[] = {
		{ .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_SIGNAL, .ident = SIGINT },
		{ .command = TOWPATH_ADD, .source = TOWPATH_SOURCE_SIGNAL, .ident = SIGTERM },
	};

	if (towpath_queue_change(server->queue, signals, 2) != 2)
		return failed("signals");
	server->listener = towpath_socket(server->net, AF_INET, SOCK_STREAM, 0);
	if (towpath_bind(server->net, server->listener, (struct sockaddr *)&at, sizeof(at)) != 0
	    || towpath_listen(server->net, server->listener, 128) != 0)
		return failed("listen");
	towpath_prep_accept(&accepts, server->net, server->listener, SOCK_NONBLOCK);
	if (submit(server, &accepts) != 0)
		return failed("accept");
	for (;;) {
		int count = towpath_queue_wait(server->queue, events, 1, EVENTS, NULL);

		if (count < 0)
			return failed("wait");
		for (int i = 0; i < count; i++)
			if (!handle(server, &events[i]))
				return 0;
	}
}

int main(int argc, char **argv)
{
	struct towpath_config config = { .size = sizeof(config) };
	struct server server = { 0 };

	if (argc != 4) {
		fprintf(stderr, "usage: %s DEVICE ADDRESS/LENGTH PORT\n", argv[0]);
		return 2;
	}
	config.addresses = argv[2];
	server.net = towpath_attach(argv[1], &config);
	server.queue = towpath_queue_new(0);
	int status = server.net && server.queue ? serve(&server, atoi(argv[3])) : failed(argv[1]);
	fprintf(stderr, "%lu connections, %lu of them open\n", server.served, server.open);
	/* The buffers belong to the program again when the queue is closed. */
	while (server.queue && towpath_queue_close(server.queue) != 0)
		fprintf(stderr, "waiting for memory\n");
	while (server.peers)
		end(&server, server.peers);
	towpath_free(server.net);
	return status ? 1 : 0;
}
