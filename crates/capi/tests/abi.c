/*
 * Two instances in one process, back to back: a connection, bytes both ways, errors as Linux has
 * them. Every packet that leaves one is given to the other.
 */
#define _GNU_SOURCE
#include "check.h"
#include "towpath.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Moves packets until neither side has any. */
static void settle(struct towpath *a, struct towpath *b)
{
	static char packet[1 << 16];
	ssize_t len;
	int moved = 1;

	for (int turn = 0; moved && turn < 1000; turn++) {
		moved = 0;
		while ((len = towpath_output(a, packet, sizeof(packet))) > 0) {
			CHECK(towpath_input(b, packet, len) == 0);
			moved = 1;
		}
		while ((len = towpath_output(b, packet, sizeof(packet))) > 0) {
			CHECK(towpath_input(a, packet, len) == 0);
			moved = 1;
		}
	}
	CHECK(!moved);
}

int main(void)
{
	struct towpath *server = towpath_new("192.0.2.1/24 2001:db8::1/64", 1500);
	struct towpath *client = towpath_new("192.0.2.2/24", 1500);
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(80) };
	struct sockaddr_in peer;
	socklen_t len = sizeof(peer);
	char bytes[8];

	CHECK(server && client);
	CHECK(towpath_new("nonsense", 1500) == NULL && errno == EINVAL);
	at.sin_addr.s_addr = inet_addr("192.0.2.1");

	int listener = towpath_socket(server, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(listener >= 0);
	CHECK(towpath_bind(server, listener, (struct sockaddr *)&at, sizeof(at)) == 0);
	CHECK(towpath_listen(server, listener, 1) == 0);
	CHECK(towpath_accept(server, listener, NULL, NULL) == -1 && errno == EAGAIN);

	int fd = towpath_socket(client, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(fd >= 0 && fcntl(fd, F_GETFD) >= 0);
	CHECK(towpath_listen(server, fd, 1) == -1 && errno == EBADF);
	CHECK(towpath_read(client, fd, bytes, 1) == -1 && errno == ENOTCONN);
	CHECK(towpath_connect(client, fd, (struct sockaddr *)&at, sizeof(at)) == -1);
	CHECK(errno == EINPROGRESS);
	settle(client, server);
	struct pollfd polled = { .fd = fd, .events = POLLIN | POLLOUT };
	CHECK(towpath_poll(client, &polled, 1, 0) == 1 && polled.revents == POLLOUT);

	int accepted = towpath_accept4(server, listener, (struct sockaddr *)&peer, &len,
				       SOCK_NONBLOCK);
	CHECK(accepted >= 0 && len == sizeof(peer));
	CHECK(peer.sin_addr.s_addr == inet_addr("192.0.2.2"));

	CHECK(towpath_write(client, fd, "towpath", 7) == 7);
	CHECK(towpath_write(client, fd, NULL, 7) == -1 && errno == EFAULT);
	settle(client, server);
	CHECK(towpath_recv(server, accepted, bytes, 7, MSG_PEEK) == 7);
	CHECK(towpath_read(server, accepted, bytes, 8) == 7 && !memcmp(bytes, "towpath", 7));
	CHECK(towpath_read(server, accepted, bytes, 8) == -1 && errno == EAGAIN);

	struct tcp_info info;
	len = sizeof(info);
	CHECK(towpath_getsockopt(client, fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0);
	CHECK(info.tcpi_state == TCP_ESTABLISHED);

	CHECK(towpath_shutdown(client, fd, SHUT_WR) == 0);
	CHECK(towpath_write(client, fd, "x", 1) == -1 && errno == EPIPE);
	settle(client, server);
	CHECK(towpath_read(server, accepted, bytes, 8) == 0);
	CHECK(towpath_close(server, accepted) == 0);
	settle(client, server);
	CHECK(towpath_close(client, fd) == 0 && towpath_close(client, fd) == -1 && errno == EBADF);
	towpath_free(client);
	towpath_free(server);
	puts("ok");
	return 0;
}
