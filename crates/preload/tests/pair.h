/*
 * Common to the programs: streams between a socket of the stack and a socket of the kernel in the
 * same process, as system calls that are made directly are not replaced.
 */
#ifndef PAIR_H
#define PAIR_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHECK(condition)                                                                    \
	do {                                                                                \
		if (!(condition)) {                                                         \
			fprintf(stderr, "%d: %s: errno %d\n", __LINE__, #condition, errno); \
			_exit(1);                                                           \
		}                                                                           \
	} while (0)
#define FAILS(call, error) CHECK((call) == -1 && errno == (error))

#define KERNEL "192.0.2.1"
#define OURS "192.0.2.2"

struct pair {
	/* The socket of the stack, and its peer in the kernel. */
	int ours, peer;
};

static inline int kernel_socket(int type)
{
	return syscall(SYS_socket, AF_INET, type, 0);
}

static inline struct sockaddr_in at(const char *address, int port)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_port = htons(port) };

	inet_pton(AF_INET, address, &name.sin_addr);
	return name;
}

static inline struct sockaddr *any(struct sockaddr_in *name)
{
	return (struct sockaddr *)name;
}

static inline void both_listen(int fd, const char *address, struct sockaddr_in *name)
{
	socklen_t len = sizeof(*name);

	*name = at(address, 0);
	CHECK(fd >= 0 && bind(fd, any(name), len) == 0 && listen(fd, 8) == 0);
	CHECK(getsockname(fd, any(name), &len) == 0 && name->sin_port != 0);
}

/* A stream to a socket of the kernel. */
static inline struct pair stream(void)
{
	struct sockaddr_in name;
	struct pair pair;
	int listener = kernel_socket(SOCK_STREAM);

	both_listen(listener, KERNEL, &name);
	pair.ours = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(pair.ours >= 0 && connect(pair.ours, any(&name), sizeof(name)) == 0);
	pair.peer = accept(listener, NULL, NULL);
	CHECK(pair.peer >= 0 && close(listener) == 0);
	return pair;
}

static inline void end(struct pair pair)
{
	CHECK(close(pair.ours) == 0 && close(pair.peer) == 0);
}

static inline void works(struct pair pair)
{
	char buffer[8];

	CHECK(write(pair.ours, "ping", 4) == 4 && recv(pair.peer, buffer, 4, MSG_WAITALL) == 4);
	CHECK(memcmp(buffer, "ping", 4) == 0);
	CHECK(write(pair.peer, "pong", 4) == 4 && recv(pair.ours, buffer, 4, MSG_WAITALL) == 4);
	CHECK(memcmp(buffer, "pong", 4) == 0);
}

#endif
