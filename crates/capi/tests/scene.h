/*
 * Common to the C programs that test operations of event queues on two instances and the kernel:
 * connections, and operations on their ends.
 */
#ifndef SCENE_H
#define SCENE_H

#include "queue.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

static unsigned int back_end;

/* Two instances with a connection between them, and a connection over the kernel's loopback. */
struct scene {
	struct towpath_queue *queue;
	struct towpath *a, *b;
	int client, server;
	int kernel[2];
};

static inline int stream(struct towpath *instance)
{
	int fd = towpath_socket(instance, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

	CHECK(fd >= 0);
	return fd;
}

static inline void connect_kernel(int ends[2])
{
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	socklen_t len = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(listener >= 0 && bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
	ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(ends[0] >= 0 && connect(ends[0], (struct sockaddr *)&address, len) == 0);
	ends[1] = accept(listener, NULL, NULL);
	CHECK(ends[1] >= 0 && close(listener) == 0);
}

static inline struct scene begin_scene(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(80) };
	struct scene scene = {
		.queue = towpath_queue_new(back_end),
		.a = towpath_new("192.0.2.1/24", 1500), .b = towpath_new("192.0.2.2/24", 1500),
	};

	CHECK(scene.queue && scene.a && scene.b);
	CHECK(inet_pton(AF_INET, "192.0.2.2", &address.sin_addr) == 1);
	int listener = stream(scene.b);
	CHECK(towpath_bind(scene.b, listener, (struct sockaddr *)&address, sizeof(address)) == 0);
	CHECK(towpath_listen(scene.b, listener, 1) == 0);
	scene.client = stream(scene.a);
	CHECK(towpath_connect(scene.a, scene.client, (struct sockaddr *)&address, sizeof(address)) == -1);
	CHECK(errno == EINPROGRESS);
	settle(scene.a, scene.b);
	scene.server = towpath_accept4(scene.b, listener, NULL, NULL, SOCK_NONBLOCK);
	CHECK(scene.server >= 0 && towpath_close(scene.b, listener) == 0);
	connect_kernel(scene.kernel);
	return scene;
}

static inline void end_scene(struct scene *scene)
{
	CHECK(towpath_queue_close(scene->queue) == 0);
	towpath_free(scene->a);
	towpath_free(scene->b);
	CHECK(close(scene->kernel[0]) == 0 && close(scene->kernel[1]) == 0);
}

/* An operation on the client, the server, or an end of the kernel's connection. */
static inline struct towpath_operation on_client(struct scene *scene, int operation, void *buffer, size_t len)
{
	return (struct towpath_operation) {
		.operation = operation, .instance = scene->a, .fd = scene->client, .buffer = buffer, .len = len,
		.flags = operation == TOWPATH_RECV ? MSG_WAITALL : 0,
	};
}

static inline struct towpath_operation on_server(struct scene *scene, int operation, void *buffer, size_t len)
{
	struct towpath_operation of = on_client(scene, operation, buffer, len);

	of.instance = scene->b, of.fd = scene->server;
	return of;
}

static inline struct towpath_operation on_kernel(struct scene *scene, int end, int operation, void *buffer, size_t len)
{
	struct towpath_operation of = on_client(scene, operation, buffer, len);

	of.instance = NULL, of.fd = scene->kernel[end];
	return of;
}

/* Moves packets, then waits for the next event. */
static inline struct towpath_event step(struct scene *scene)
{
	struct timespec patience = later(), moment;
	struct towpath_event event;
	int found;

	do {
		/* On a busy machine a delayed ACK or a retransmission can be due. */
		towpath_run_timers(scene->a);
		towpath_run_timers(scene->b);
		settle(scene->a, scene->b);
		moment = in_ns(1000000);
		found = towpath_queue_wait(scene->queue, &event, 1, 1, &moment);
		CHECK(found >= 0 && moment.tv_sec <= patience.tv_sec);
	} while (!found);
	return event;
}

#endif
