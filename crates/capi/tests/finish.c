/*
 * Written data arrives within a bounded time although its socket is closed and its instance ends;
 * and a program can wait for that. The peer is the kernel, over a TAP device in a separate network
 * namespace.
 *
 * Exit code 77: not possible on this machine.
 */
#define _GNU_SOURCE
#include "tap.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <pthread.h>

unsigned int if_nametoindex(const char *name);

/* Longest run time of this program, in seconds. */
#define PATIENCE 120
#define WRITTEN (1 << 20)

/* The byte at an offset of the written data. */
static unsigned char at(size_t place)
{
	return place * 7 + place / 251;
}

/* Makes a connection from the instance to a socket of the kernel, which is returned. */
static int connect_both(struct towpath *instance, int *fd)
{
	struct end kernel = { NULL };
	union address to;
	socklen_t len = address_of(&kernel, AF_INET, 80, &to);
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0), small = 4096;

	CHECK(listener >= 0);
	CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
	/* Much of the data should wait in the instance. */
	CHECK(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)) == 0);
	CHECK(bind(listener, &to.any, len) == 0 && listen(listener, 1) == 0);
	*fd = towpath_socket(instance, AF_INET, SOCK_STREAM, 0);
	CHECK(*fd >= 0 && towpath_connect(instance, *fd, &to.any, len) == 0);
	int peer = accept(listener, NULL, NULL);
	CHECK(peer >= 0 && close(listener) == 0);
	return peer;
}

/* Fills the send buffer. Returns the number of bytes that it accepted. */
static size_t write_some(struct towpath *instance, int fd)
{
	static unsigned char bytes[WRITTEN];
	int room = WRITTEN;

	for (size_t i = 0; i < WRITTEN; i++)
		bytes[i] = at(i);
	CHECK(towpath_setsockopt(instance, fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)) == 0);
	ssize_t count = towpath_send(instance, fd, bytes, WRITTEN, MSG_DONTWAIT);
	CHECK(count > 100000);
	return count;
}

/* Reads to the end of the stream. Returns the number of bytes. */
static size_t read_all(int peer)
{
	static unsigned char bytes[10000];
	size_t received = 0;
	ssize_t count;

	while ((count = read(peer, bytes, sizeof(bytes))) > 0) {
		for (ssize_t i = 0; i < count; i++)
			CHECK(bytes[i] == at(received + i));
		received += count;
	}
	CHECK(count == 0);
	return received;
}

static void *read_late(void *argument)
{
	size_t *received = argument;
	int peer = *received;

	usleep(300000);
	*received = read_all(peer);
	CHECK(close(peer) == 0);
	return NULL;
}

static struct towpath_stats stats_of(struct towpath *instance)
{
	struct towpath_stats stats;

	CHECK(towpath_get_stats(instance, &stats, sizeof(stats)) == 0);
	return stats;
}

/* An instance ends after all data has arrived, whether its sockets were closed before or not. */
static void ends(const struct towpath_config *config, int closes)
{
	struct towpath *instance = towpath_attach("tap0", config);
	pthread_t reader;
	int fd;

	CHECK(instance);
	configure("tap0");
	size_t received = connect_both(instance, &fd), written = write_some(instance, fd);
	CHECK(pthread_create(&reader, NULL, read_late, &received) == 0);
	if (closes)
		CHECK(towpath_close(instance, fd) == 0);
	towpath_free(instance);
	CHECK(pthread_join(reader, NULL) == 0);
	CHECK(received == written);
}

/* A wait ends in time, reports what is left, and ends at once when nothing is left. */
static void finishes(const struct towpath_config *config)
{
	struct towpath *instance = towpath_attach("tap0", config);
	pthread_t reader;
	int fd;

	CHECK(instance && towpath_finish(instance, 0) == 0);
	CHECK(towpath_finish(NULL, 0) == -1 && errno == EFAULT);
	configure("tap0");
	size_t received = connect_both(instance, &fd), written = write_some(instance, fd);
	CHECK(towpath_finish(instance, 0) == -1 && errno == ETIMEDOUT);
	CHECK(towpath_close(instance, fd) == 0);
	CHECK(towpath_finish(instance, 20) == -1 && errno == ETIMEDOUT);
	struct towpath_stats stats = stats_of(instance);
	CHECK(stats.sending == 1 && stats.unacknowledged_bytes > 0);
	CHECK(stats.unacknowledged_bytes <= written);
	CHECK(pthread_create(&reader, NULL, read_late, &received) == 0);
	CHECK(towpath_finish(instance, -1) == 0);
	stats = stats_of(instance);
	CHECK(stats.sending == 0 && stats.unacknowledged_bytes == 0);
	CHECK(pthread_join(reader, NULL) == 0 && received == written);
	towpath_free(instance);
}

/* A peer that never reads does not delay the end of an instance beyond the configured time. */
static void gives_up(struct towpath_config config)
{
	int lingers[] = { -1, 100 };

	for (int i = 0; i < 2; i++) {
		int fd;

		config.linger = lingers[i];
		struct towpath *instance = towpath_attach("tap0", &config);
		CHECK(instance);
		configure("tap0");
		int peer = connect_both(instance, &fd);
		write_some(instance, fd);
		towpath_free(instance);
		CHECK(close(peer) == 0);
	}
	config.zerocopy_auto = 2;
	CHECK(!towpath_attach("tap0", &config) && errno == EINVAL);
}

/* Deletes an interface (rtnetlink(7)). */
static void delete_device(const char *name)
{
	struct { struct nlmsghdr header; struct ifinfomsg link; } request = {
		.header = {
			.nlmsg_len = sizeof(request), .nlmsg_type = RTM_DELLINK,
			.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK,
		},
		.link = { .ifi_index = if_nametoindex(name) },
	};
	struct { struct nlmsghdr header; struct nlmsgerr error; } answer;
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

	CHECK(fd >= 0 && request.link.ifi_index > 0);
	CHECK(send(fd, &request, sizeof(request), 0) == sizeof(request));
	CHECK(recv(fd, &answer, sizeof(answer), 0) > 0 && answer.error.error == 0);
	CHECK(close(fd) == 0);
}

/* Without a device nothing can arrive, and no call waits. */
static void has_no_device(const struct towpath_config *config)
{
	struct towpath *instance = towpath_attach("tap0", config);
	int fd;

	CHECK(instance);
	configure("tap0");
	int peer = connect_both(instance, &fd);
	write_some(instance, fd);
	CHECK(towpath_finish(instance, 0) == -1 && errno == ETIMEDOUT);
	delete_device("tap0");
	CHECK(towpath_finish(instance, -1) == 0);
	CHECK(stats_of(instance).unacknowledged_bytes > 0);
	towpath_free(instance);
	CHECK(close(peer) == 0);
}

int main(void)
{
	struct towpath_config config = CONFIG;

	if (!begin(PATIENCE))
		return NOT_POSSIBLE;
	ends(&config, 1);
	ends(&config, 0);
	finishes(&config);
	gives_up(config);
	has_no_device(&config);
	puts("ok");
	return 0;
}
