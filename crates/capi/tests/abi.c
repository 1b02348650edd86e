/*
 * Two instances in one process, back to back: a connection, bytes in both directions, and Linux's
 * errors. Every packet that leaves one is passed to the other.
 */
#define _GNU_SOURCE
#include "check.h"
#include "towpath.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

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

/* Datagrams that are not taken fill the send buffer, and all accepted ones arrive. */
static void nobody_takes(void)
{
	struct towpath *a = towpath_new("192.0.2.1/24", 1500);
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9) };
	static char bytes[1000], packet[1 << 16];
	int fd = towpath_socket(a, AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	int sent = 0, left = 0;

	CHECK(a && fd >= 0 && inet_pton(AF_INET, "192.0.2.2", &to.sin_addr) == 1);
	while (towpath_sendto(a, fd, bytes, sizeof(bytes), 0, (struct sockaddr *)&to, sizeof(to)) > 0)
		CHECK(++sent < 100000);
	CHECK(errno == EAGAIN && sent > 4096);
	while (towpath_output(a, packet, sizeof(packet)) > 0)
		left++;
	CHECK(left == sent);
	CHECK(towpath_sendto(a, fd, bytes, 1, 0, (struct sockaddr *)&to, sizeof(to)) == 1);
	towpath_free(a);
}

/*
 * Urgent data of `fd` arrives at `peer`, is reported by poll and epoll, and is read separately or
 * inline.
 */
static void urgent(struct towpath *client, int fd, struct towpath *server, int peer)
{
	struct pollfd polled = { .fd = peer, .events = POLLIN | POLLPRI };
	struct epoll_event event = { .events = EPOLLPRI, .data = { .fd = peer } };
	struct iovec pieces[2];
	struct msghdr message = { .msg_iov = pieces, .msg_iovlen = 2 };
	char bytes[8];
	int at_mark = -1, on = 1, set = towpath_epoll_create1(server, 0);

	/*
	 * An exclusive wait cannot be modified or made from another one, and is limited to some
	 * events.
	 */
	event.events = EPOLLIN | EPOLLPRI | EPOLLEXCLUSIVE;
	CHECK(towpath_epoll_ctl(server, set, EPOLL_CTL_ADD, peer, &event) == -1 && errno == EINVAL);
	event.events = EPOLLOUT | EPOLLEXCLUSIVE;
	CHECK(towpath_epoll_ctl(server, set, EPOLL_CTL_ADD, peer, &event) == 0);
	CHECK(towpath_epoll_ctl(server, set, EPOLL_CTL_MOD, peer, &event) == -1 && errno == EINVAL);
	CHECK(towpath_epoll_wait(server, set, &event, 1, 0) == 1 && event.events == EPOLLOUT);
	event.events = EPOLLIN;
	CHECK(towpath_epoll_ctl(server, set, EPOLL_CTL_MOD, peer, &event) == -1 && errno == EINVAL);
	CHECK(towpath_epoll_ctl(server, set, EPOLL_CTL_DEL, peer, NULL) == 0);
	event = (struct epoll_event) { .events = EPOLLPRI, .data = { .fd = peer } };
	CHECK(towpath_epoll_ctl(server, set, EPOLL_CTL_ADD, peer, &event) == 0);
	event.events = EPOLLPRI | EPOLLEXCLUSIVE;
	CHECK(towpath_epoll_ctl(server, set, EPOLL_CTL_MOD, peer, &event) == -1 && errno == EINVAL);
	CHECK(towpath_recv(server, peer, bytes, 1, MSG_OOB) == -1 && errno == EINVAL);
	CHECK(towpath_send(client, fd, "abU", 3, MSG_OOB) == 3);
	CHECK(towpath_send(client, fd, "cd", 2, 0) == 2);
	settle(client, server);
	CHECK(towpath_poll(server, &polled, 1, 0) == 1);
	CHECK(polled.revents == (POLLIN | POLLPRI));
	CHECK(towpath_epoll_wait(server, set, &event, 1, 0) == 1 && event.events == EPOLLPRI);
	/* One call ends before the mark, whatever buffers it has, and does not wait. */
	pieces[0] = (struct iovec) { .iov_base = bytes, .iov_len = 2 };
	pieces[1] = (struct iovec) { .iov_base = bytes + 2, .iov_len = 6 };
	CHECK(towpath_recvmsg(server, peer, &message, MSG_WAITALL) == 2);
	CHECK(!memcmp(bytes, "ab", 2));
	CHECK(towpath_ioctl(server, peer, SIOCATMARK, &at_mark) == 0 && at_mark == 1);
	CHECK(towpath_recvmsg(server, peer, &message, MSG_OOB | MSG_PEEK) == 1);
	CHECK(bytes[0] == 'U' && message.msg_flags & MSG_OOB);
	CHECK(towpath_recv(server, peer, bytes, 1, MSG_OOB | MSG_TRUNC) == 1 && bytes[0] == 'U');
	CHECK(towpath_recv(server, peer, bytes, 1, MSG_OOB) == -1 && errno == EINVAL);
	CHECK(towpath_poll(server, &polled, 1, 0) == 1 && polled.revents == POLLIN);
	CHECK(towpath_epoll_wait(server, set, &event, 1, 0) == 0);
	CHECK(towpath_read(server, peer, bytes, 8) == 2 && !memcmp(bytes, "cd", 2));
	CHECK(towpath_ioctl(server, peer, SIOCATMARK, &at_mark) == 0 && at_mark == 0);

	CHECK(towpath_setsockopt(server, peer, SOL_SOCKET, SO_OOBINLINE, &on, sizeof(on)) == 0);
	CHECK(towpath_send(client, fd, "eU", 2, MSG_OOB) == 2);
	settle(client, server);
	CHECK(towpath_recv(server, peer, bytes, 1, MSG_OOB) == -1 && errno == EINVAL);
	CHECK(towpath_read(server, peer, bytes, 8) == 1 && bytes[0] == 'e');
	CHECK(towpath_read(server, peer, bytes, 8) == 1 && bytes[0] == 'U');
	CHECK(towpath_close(server, set) == 0);
}

/* Received bytes are handed out in place, and stay until they are returned. */
static void lent(struct towpath *client, int fd, struct towpath *server, int peer)
{
	static char sent[4000];
	struct iovec pieces[16];
	struct msghdr message = { .msg_iov = pieces, .msg_iovlen = 16 };
	uint64_t token = 7, other;
	size_t count = 0;

	CHECK(towpath_recvmsg_lent(server, peer, &message, 0, &token) == -1 && errno == EAGAIN);
	for (size_t at = 0; at < sizeof(sent); at++)
		sent[at] = at % 251;
	CHECK(towpath_write(client, fd, sent, sizeof(sent)) == sizeof(sent));
	settle(client, server);
	CHECK(towpath_recvmsg_lent(server, peer, &message, MSG_PEEK, &token) == -1);
	CHECK(errno == EOPNOTSUPP);
	CHECK(towpath_recvmsg_lent(server, peer, NULL, 0, &token) == -1 && errno == EFAULT);
	CHECK(towpath_recvmsg_lent(server, peer, &message, 0, NULL) == -1 && errno == EFAULT);
	message.msg_iovlen = 1;
	CHECK(towpath_recvmsg_lent(server, peer, &message, 0, &other) == 1448);
	CHECK(message.msg_iovlen == 1 && other != 0);
	CHECK(towpath_return(server, other) == 0);
	message.msg_iovlen = 16;
	CHECK(towpath_recvmsg_lent(server, peer, &message, 0, &token) == sizeof(sent) - 1448);
	CHECK(token != 0 && token != other && message.msg_iovlen == 2);
	/* Later bytes do not affect them. */
	CHECK(towpath_write(client, fd, sent, 100) == 100);
	settle(client, server);
	CHECK(towpath_read(server, peer, sent, 100) == 100);
	for (size_t at = 0; at < message.msg_iovlen; at++) {
		CHECK(!memcmp(pieces[at].iov_base, sent + 1448 + count, pieces[at].iov_len));
		count += pieces[at].iov_len;
	}
	CHECK(count == sizeof(sent) - 1448);
	CHECK(towpath_return(server, token) == 0);
	CHECK(towpath_return(server, token) == -1 && errno == EINVAL);
	CHECK(towpath_return(server, other) == -1 && errno == EINVAL);
	CHECK(towpath_return(server, 0) == -1 && towpath_return(server, ~0ull) == -1);
}

/* IP_MTU, and which sockets believe routers' reports about it. */
static void check_mtu_options(struct towpath *of, int fd, int unconnected)
{
	socklen_t len = sizeof(int);
	int value = 0;

	CHECK(towpath_getsockopt(of, fd, IPPROTO_IP, IP_MTU, &value, &len) == 0);
	CHECK(value == 1500 && len == sizeof(int));
	CHECK(towpath_getsockopt(of, fd, IPPROTO_IPV6, IPV6_MTU, &value, &len) == 0);
	CHECK(value == 1500);
	CHECK(towpath_getsockopt(of, unconnected, IPPROTO_IP, IP_MTU, &value, &len) == -1);
	CHECK(errno == ENOTCONN);
	CHECK(towpath_setsockopt(of, fd, IPPROTO_IP, IP_MTU, &value, len) == -1);
	CHECK(errno == ENOPROTOOPT);
	CHECK(towpath_getsockopt(of, fd, IPPROTO_IP, IP_MTU_DISCOVER, &value, &len) == 0);
	CHECK(value == IP_PMTUDISC_WANT);
	for (value = IP_PMTUDISC_DONT - 1; value <= IP_PMTUDISC_OMIT + 1; value++) {
		int right = value >= IP_PMTUDISC_DONT && value <= IP_PMTUDISC_OMIT ? 0 : -1;
		CHECK(towpath_setsockopt(of, fd, IPPROTO_IP, IP_MTU_DISCOVER, &value, len) == right);
		CHECK(right == 0 || errno == EINVAL);
		CHECK(towpath_setsockopt(of, fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &value, len) ==
		      right);
		CHECK(right == 0 || errno == EINVAL);
	}
	value = IP_PMTUDISC_DO;
	CHECK(towpath_setsockopt(of, fd, IPPROTO_IP, IP_MTU_DISCOVER, &value, len) == 0);
	CHECK(towpath_getsockopt(of, fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &value, &len) == 0);
	CHECK(value == IPV6_PMTUDISC_OMIT);
	value = 1279;
	CHECK(towpath_setsockopt(of, fd, IPPROTO_IPV6, IPV6_MTU, &value, len) == -1);
	CHECK(errno == EINVAL);
	for (value = 1; value >= 0; value--) {
		const int set = value;
		CHECK(towpath_setsockopt(of, fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &set, len) == 0);
		CHECK(towpath_getsockopt(of, fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &value, &len) == 0);
		CHECK(value == set);
	}
}

/*
 * Limits of all sockets and of one, at which a call lends nothing, and lends again after the limit
 * is raised: four pages, of which a call of less than a page counts two; no notice at all. No
 * instance.
 */
static void limits(struct towpath *client, struct towpath *server, int fd, int peer)
{
	static char lent[3 * 4096], got[12000];
	int one = 1, none = 0;

	CHECK(towpath_setsockopt(client, fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)) == 0);
	CHECK(towpath_limit_lent(client, 131072, 4 * 4096) == 0);
	/* A call that would count 5 pages. The others are over when they return. */
	CHECK(towpath_send(client, fd, lent, 3 * 4096, MSG_ZEROCOPY) == -1 && errno == ENOBUFS);
	for (int call = 0; call < 3; call++)
		CHECK(towpath_send(client, fd, lent, 4000, MSG_ZEROCOPY) == 4000);
	settle(client, server);
	CHECK(towpath_read(server, peer, got, sizeof(got)) == 12000);
	settle(client, server);
	CHECK(towpath_limit_lent(client, 0, SIZE_MAX) == 0);
	CHECK(towpath_send(client, fd, lent, 1, MSG_ZEROCOPY) == -1 && errno == ENOBUFS);
	CHECK(towpath_limit_lent(client, 131072, SIZE_MAX) == 0);
	CHECK(towpath_send(client, fd, lent, 8000, MSG_ZEROCOPY) == 8000);
	settle(client, server);
	CHECK(towpath_read(server, peer, got, sizeof(got)) == 8000);
	settle(client, server);
	CHECK(towpath_limit_lent(NULL, 0, 0) == -1 && errno == EFAULT);
	CHECK(towpath_setsockopt(client, fd, SOL_SOCKET, SO_ZEROCOPY, &none, sizeof(none)) == 0);
}

/* Checks that exactly the calls `first` to `last` are reported, as copied. */
static void told(struct towpath *of, int fd, unsigned int first, unsigned int last)
{
	char control[128];
	struct msghdr message = { .msg_control = control, .msg_controllen = sizeof(control) };
	struct sock_extended_err error;

	CHECK(towpath_recvmsg(of, fd, &message, MSG_ERRQUEUE) == 0);
	CHECK(CMSG_FIRSTHDR(&message) && CMSG_FIRSTHDR(&message)->cmsg_type == IP_RECVERR);
	memcpy(&error, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(error));
	CHECK(error.ee_errno == 0 && error.ee_origin == SO_EE_ORIGIN_ZEROCOPY);
	CHECK(error.ee_code == SO_EE_CODE_ZEROCOPY_COPIED);
	CHECK(error.ee_info == first && error.ee_data == last);
	message.msg_controllen = sizeof(control);
	CHECK(towpath_recvmsg(of, fd, &message, MSG_ERRQUEUE) == -1 && errno == EAGAIN);
}

/*
 * A device without checksums: calls copy what they lend for them, which is no hit, and return it at
 * once, so that nothing is left to recall. Sizes of other versions of the structure are valid, other
 * sizes are not.
 */
static void stats(struct towpath *client, int fd, struct towpath *server, int peer)
{
	static char lent[3000], got[3000];
	struct { struct towpath_stats known; uint64_t later[2]; } newer;
	struct towpath_stats before, now;
	struct pollfd polled = { .fd = fd };
	int one = 1;

	CHECK(towpath_get_stats(client, &before, sizeof(before)) == 0);
	CHECK(before.carried > 0 && before.copied_socket_send > 0);
	CHECK(before.copied >= before.copied_socket_send && before.copied_checksum == 0);
	CHECK(before.lent == 0 && before.hits == 0 && before.oldest_us == 0);
	CHECK(towpath_setsockopt(client, fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)) == 0);
	CHECK(towpath_send(client, fd, lent, 1000, MSG_ZEROCOPY) == 1000);
	CHECK(towpath_poll(client, &polled, 1, 0) == 1 && polled.revents == POLLERR);
	told(client, fd, 0, 0);
	CHECK(towpath_poll(client, &polled, 1, 0) == 0);
	memset(lent, 1, sizeof(lent));
	settle(client, server);
	CHECK(towpath_read(server, peer, got, sizeof(got)) == 1000 && got[0] == 0 && got[999] == 0);
	settle(client, server);
	CHECK(towpath_get_stats(client, &now, sizeof(now)) == 0);
	CHECK(now.lent == 1000 && now.hits == 0 && now.copied_checksum == 1000);
	CHECK(now.carried == before.carried + 1000);
	CHECK(now.copied_socket_send == before.copied_socket_send);
	CHECK(now.copied_recall == 0 && now.lent_calls == 0 && now.lent_bytes == 0);

	CHECK(towpath_send(client, fd, lent, 2000, MSG_ZEROCOPY) == 2000);
	CHECK(towpath_recall(client, fd, 1, 1) == 0);
	memset(&newer, 0xff, sizeof(newer));
	CHECK(towpath_get_stats(client, (void *)&newer, sizeof(newer)) == 0);
	CHECK(newer.later[0] == 0 && newer.later[1] == 0);
	CHECK(newer.known.lent_calls == 0 && newer.known.oldest_us == 0);
	CHECK(newer.known.lent == 3000 && newer.known.copied_checksum == 3000);
	CHECK(newer.known.recalls == 0 && newer.known.copied_recall == 0);
	CHECK(newer.known.recalls_starved == 0 && newer.known.dropped_link_gone == 0);
	/* A program of the first version, which knew sixteen fields. */
	memset(&now, 0xff, sizeof(now));
	CHECK(towpath_get_stats(client, &now, 16 * sizeof(uint64_t)) == 0);
	CHECK(now.copied_checksum == newer.known.copied_checksum && now.recalls == UINT64_MAX);
	settle(client, server);
	CHECK(towpath_read(server, peer, got, sizeof(got)) == 2000);
	CHECK(towpath_setsockopt(client, fd, SOL_SOCKET, SO_ZEROCOPY, &(int){ 0 }, sizeof(int)) == 0);

	memset(&now, 0xff, sizeof(now));
	CHECK(towpath_get_stats(client, &now, 2 * sizeof(uint64_t)) == 0);
	CHECK(now.carried == newer.known.carried && now.lent == UINT64_MAX);
	CHECK(towpath_get_stats(client, &now, 0) == -1 && errno == EINVAL);
	CHECK(towpath_get_stats(client, &now, 12) == -1 && errno == EINVAL);
	CHECK(towpath_get_stats(client, &now, 1 << 20) == -1 && errno == E2BIG);
	CHECK(towpath_get_stats(client, NULL, sizeof(now)) == -1 && errno == EFAULT);
	CHECK(towpath_get_stats(NULL, &now, sizeof(now)) == -1 && errno == EFAULT);
	limits(client, server, fd, peer);
}

/*
 * Calls that send all or a part return their memory themselves. When their own side ends the
 * connection, nothing more is reported; the socket and its numbers continue.
 */
static void disconnected(struct towpath *client, struct towpath *server, int listener)
{
	static char memory[200000], got[200000];
	const struct sockaddr nobody = { .sa_family = AF_UNSPEC };
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(80) };
	int fd = towpath_socket(client, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	struct pollfd polled = { .fd = fd };
	struct towpath_stats stats;

	at.sin_addr.s_addr = inet_addr("192.0.2.1");
	CHECK(towpath_setsockopt(client, fd, SOL_SOCKET, SO_ZEROCOPY, &(int){ 1 }, sizeof(int)) == 0);
	for (unsigned int turn = 0; turn < 2; turn++) {
		CHECK(towpath_connect(client, fd, (struct sockaddr *)&at, sizeof(at)) == -1 && errno == EINPROGRESS);
		settle(client, server);
		int accepted = towpath_accept(server, listener, NULL, NULL);
		CHECK(accepted >= 0);
		/* Some bytes are in flight, some are not sent yet. */
		CHECK(towpath_send(client, fd, memory, 1000, MSG_ZEROCOPY) == 1000);
		CHECK(towpath_send(client, fd, memory, sizeof(memory), MSG_ZEROCOPY) > 0);
		CHECK(towpath_poll(client, &polled, 1, 0) == 1 && polled.revents == POLLERR);
		told(client, fd, 2 * turn, 2 * turn + 1);
		CHECK(towpath_get_stats(client, &stats, sizeof(stats)) == 0 && stats.lent_calls == 0);
		CHECK(towpath_connect(client, fd, &nobody, sizeof(nobody)) == 0);
		CHECK(towpath_recvmsg(client, fd, &(struct msghdr){ 0 }, MSG_ERRQUEUE) == -1 && errno == EAGAIN);
		settle(client, server);
		while (towpath_read(server, accepted, got, sizeof(got)) > 0)
			;
		CHECK(errno == ECONNRESET);
		CHECK(towpath_close(server, accepted) == 0);
	}
	CHECK(towpath_close(client, fd) == 0);
}

/* The child of a fork cannot use the instance; the parent continues to use it. */
static void forked(struct towpath *of, int fd)
{
	struct towpath_operation operation;
	struct towpath_change change = {
		.command = TOWPATH_ADD, .source = TOWPATH_SOURCE_FD, .instance = of, .ident = fd, .events = EPOLLIN,
	};
	char byte;
	int status;

	towpath_prep_recv(&operation, of, fd, &byte, 1, 0);
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		struct towpath_queue *queue = towpath_queue_new(0);

		CHECK(towpath_read(of, fd, &byte, 1) == -1 && errno == EPERM);
		CHECK(towpath_socket(of, AF_INET, SOCK_STREAM, 0) == -1 && errno == EPERM);
		CHECK(towpath_output(of, &byte, 1) == -1 && errno == EPERM);
		CHECK(towpath_close(of, fd) == -1 && errno == EPERM);
		CHECK(queue && towpath_queue_submit(queue, &operation, 1) == 0 && operation.error == EPERM);
		CHECK(towpath_queue_change(queue, &change, 1) == 0 && change.error == EPERM);
		CHECK(towpath_queue_close(queue) == 0);
		towpath_free(of);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(towpath_read(of, fd, &byte, 1) == -1 && errno == EAGAIN);
}

int main(void)
{
	struct towpath *server = towpath_new("192.0.2.1/24 2001:db8::1/64", 1500);
	struct towpath *client = towpath_new("192.0.2.2/24", 1500);
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(80) };
	struct sockaddr_in peer;
	socklen_t len = sizeof(peer);
	char bytes[8];

	nobody_takes();
	CHECK(server && client);
	CHECK(towpath_new("nonsense", 1500) == NULL && errno == EINVAL);
	at.sin_addr.s_addr = inet_addr("192.0.2.1");

	int listener = towpath_socket(server, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(listener >= 0);
	CHECK(towpath_bind(server, listener, (struct sockaddr *)&at, sizeof(at)) == 0);
	CHECK(towpath_setsockopt(server, listener, SOL_SOCKET, SO_ZEROCOPY, &(int){ 1 },
				 sizeof(int)) == 0);
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
	/* The accepted socket lends as its listener does. */
	int lends = 0;
	len = sizeof(lends);
	CHECK(towpath_getsockopt(server, accepted, SOL_SOCKET, SO_ZEROCOPY, &lends, &len) == 0);
	CHECK(lends == 1);

	CHECK(towpath_write(client, fd, "towpath", 7) == 7);
	CHECK(towpath_write(client, fd, NULL, 7) == -1 && errno == EFAULT);
	settle(client, server);
	CHECK(towpath_recv(server, accepted, bytes, 7, MSG_PEEK) == 7);
	CHECK(towpath_read(server, accepted, bytes, 8) == 7 && !memcmp(bytes, "towpath", 7));
	CHECK(towpath_read(server, accepted, bytes, 8) == -1 && errno == EAGAIN);

	lent(client, fd, server, accepted);
	urgent(client, fd, server, accepted);
	stats(client, fd, server, accepted);
	disconnected(client, server, listener);
	forked(server, accepted);

	struct tcp_info info;
	len = sizeof(info);
	CHECK(towpath_getsockopt(client, fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0);
	CHECK(info.tcpi_state == TCP_ESTABLISHED);
	int unconnected = towpath_socket(client, AF_INET, SOCK_STREAM, 0);
	check_mtu_options(client, fd, unconnected);
	CHECK(towpath_close(client, unconnected) == 0);

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
