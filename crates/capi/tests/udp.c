/*
 * Datagrams between an instance on a TAP device and the kernel's UDP: every scene runs over IPv4
 * and IPv6, once with the kernel as the server and once with the instance; and both return the same
 * errors for invalid calls.
 *
 * Runs in its own network namespace. Exit code 77: not possible on this machine.
 */
#define _GNU_SOURCE
#include "answers.h"

#include <linux/errqueue.h>
#include <pthread.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef SOL_UDP
#define SOL_UDP 17
#endif

/* Longest run time of this program, in seconds. */
#define PATIENCE 300
#define BYTES_MAX 70000
#define PAGE 4096

static unsigned char out[BYTES_MAX], in[BYTES_MAX];

static int socket_at(struct end *end, int domain, int port)
{
	union address at;
	socklen_t len = address_of(end, domain, port, &at);
	struct timeval limit = { .tv_sec = 10 };
	int fd = CALL(end, socket, domain, SOCK_DGRAM, 0), bytes = 1 << 20;

	CHECK(fd >= 0);
	CHECK(CALL(end, bind, fd, &at.any, len) == 0);
	CHECK(CALL(end, setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
	CHECK(CALL(end, setsockopt, fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)) == 0);
	return fd;
}

static void set_int(struct end *end, int fd, int level, int name, int value)
{
	CHECK(CALL(end, setsockopt, fd, level, name, &value, sizeof(value)) == 0);
}

/* Every size arrives whole and comes back, in fragments if necessary. */
static void echo(struct scene *scene)
{
	static const int sizes[] = { 0, 1, 1000, 1452, 1473, 20000, 65507 };
	int server = socket_at(scene->server, scene->domain, 100);
	int client = socket_at(scene->client, scene->domain, 101);
	union address to, from;
	socklen_t to_len = address_of(scene->server, scene->domain, 100, &to), from_len;

	for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		int len = sizes[i], next;

		for (int at = 0; at < len; at++)
			out[at] = at * 7 % 251;
		CHECK(CALL(scene->client, sendto, client, out, len, 0, &to.any, to_len) == len);
		struct pollfd polled = { .fd = server, .events = POLLIN };
		CHECK(CALL(scene->server, poll, &polled, 1, 30000) == 1);
		CHECK(polled.revents == POLLIN);
		CHECK(CALL(scene->server, ioctl, server, FIONREAD, &next) == 0 && next == len);
		CHECK(CALL(scene->server, recv, server, in, 1, MSG_PEEK | MSG_TRUNC) == len);
		from_len = sizeof(from);
		memset(in, 0, sizeof(in));
		CHECK(CALL(scene->server, recvfrom, server, in, sizeof(in), 0, &from.any,
			   &from_len) == len);
		CHECK(memcmp(in, out, len) == 0 && from_len == to_len);
		union address expected;
		address_of(scene->client, scene->domain, 101, &expected);
		CHECK(memcmp(&from, &expected, from_len) == 0);
		CHECK(CALL(scene->server, sendto, server, in, len, 0, &from.any, from_len) == len);
		memset(in, 0, sizeof(in));
		CHECK(CALL(scene->client, recv, client, in, sizeof(in), 0) == len);
		CHECK(memcmp(in, out, len) == 0);
	}
	CHECK(CALL(scene->server, recv, server, in, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	CHECK(CALL(scene->client, close, client) == 0);
	CHECK(CALL(scene->server, close, server) == 0);
}

/* A port without a socket: reported to a connected socket, with all details if requested. */
static void refused(struct scene *scene)
{
	int v4 = scene->domain == AF_INET;
	int client = socket_at(scene->client, scene->domain, 102);
	struct pollfd polled = { .fd = client };
	union address to, name;
	socklen_t to_len = address_of(scene->server, scene->domain, 9, &to);
	char control[256];
	struct iovec piece = { in, sizeof(in) };
	struct msghdr message = {
		.msg_name = &name, .msg_namelen = sizeof(name), .msg_iov = &piece,
		.msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control),
	};

	CHECK(CALL(scene->client, connect, client, &to.any, to_len) == 0);
	CHECK(CALL(scene->client, send, client, "hello", 5, 0) == 5);
	CHECK(CALL(scene->client, poll, &polled, 1, 30000) == 1 && polled.revents == POLLERR);
	CHECK(CALL(scene->client, recv, client, in, 1, 0) == -1 && errno == ECONNREFUSED);
	CHECK(CALL(scene->client, poll, &polled, 1, 0) == 0);

	set_int(scene->client, client, v4 ? IPPROTO_IP : IPPROTO_IPV6,
		v4 ? IP_RECVERR : IPV6_RECVERR, 1);
	CHECK(CALL(scene->client, recvmsg, client, &message, MSG_ERRQUEUE) == -1);
	CHECK(errno == EAGAIN);
	CHECK(CALL(scene->client, send, client, "hello", 5, 0) == 5);
	CHECK(CALL(scene->client, poll, &polled, 1, 30000) == 1 && polled.revents == POLLERR);
	CHECK(CALL(scene->client, recvmsg, client, &message, MSG_ERRQUEUE) == 5);
	CHECK(memcmp(in, "hello", 5) == 0 && message.msg_flags == MSG_ERRQUEUE);
	CHECK(message.msg_namelen == to_len && memcmp(&name, &to, to_len) == 0);
	struct cmsghdr *told = CMSG_FIRSTHDR(&message);
	CHECK(told && told->cmsg_level == (v4 ? IPPROTO_IP : IPPROTO_IPV6));
	CHECK(told->cmsg_type == (v4 ? IP_RECVERR : IPV6_RECVERR));
	CHECK(told->cmsg_len == CMSG_LEN(sizeof(struct sock_extended_err) + to_len));
	struct sock_extended_err error;
	memcpy(&error, CMSG_DATA(told), sizeof(error));
	CHECK(error.ee_errno == ECONNREFUSED);
	CHECK(error.ee_origin == (v4 ? SO_EE_ORIGIN_ICMP : SO_EE_ORIGIN_ICMP6));
	CHECK(error.ee_type == (v4 ? 3 : 1) && error.ee_code == (v4 ? 3 : 4));
	union address offender, expected;
	memcpy(&offender, CMSG_DATA(told) + sizeof(error), to_len);
	address_of(scene->server, scene->domain, 0, &expected);
	CHECK(memcmp(&offender, &expected, to_len) == 0);
	/* Reading the error also clears the pending error of the socket. */
	CHECK(CALL(scene->client, recv, client, in, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	CHECK(CALL(scene->client, close, client) == 0);
}

/*
 * Sends 20,001 bytes as datagrams of 1,000, selected once by a socket option and once by the
 * message.
 */
static void send_segments(struct scene *scene, int client, int by_message)
{
	union address to;
	socklen_t to_len = address_of(scene->server, scene->domain, 103, &to);
	union { char bytes[CMSG_SPACE(sizeof(uint16_t))]; struct cmsghdr header; } control = { 0 };
	struct iovec pieces[2] = { { out, 5000 }, { out + 5000, 15001 } };
	struct msghdr message = {
		.msg_name = &to, .msg_namelen = to_len, .msg_iov = pieces, .msg_iovlen = 2,
	};
	uint16_t size = 1000;

	if (by_message) {
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
		control.header.cmsg_level = SOL_UDP;
		control.header.cmsg_type = UDP_SEGMENT;
		control.header.cmsg_len = CMSG_LEN(sizeof(size));
		memcpy(CMSG_DATA(&control.header), &size, sizeof(size));
	} else {
		set_int(scene->client, client, SOL_UDP, UDP_SEGMENT, size);
	}
	CHECK(CALL(scene->client, sendmsg, client, &message, 0) == 20001);
	set_int(scene->client, client, SOL_UDP, UDP_SEGMENT, 0);
}

/* A super-packet leaves whole, and arrives as datagrams or as few large ones. */
static void segments(struct scene *scene)
{
	int server = socket_at(scene->server, scene->domain, 103);
	int client = socket_at(scene->client, scene->domain, 104);
	int got = 0, count = 0, largest = 0;

	for (int at = 0; at < 20001; at++)
		out[at] = at * 11 % 249;
	send_segments(scene, client, 0);
	for (; got < 20001; count++) {
		int len = CALL(scene->server, recv, server, in, sizeof(in), 0);
		CHECK(len == (got < 20000 ? 1000 : 1) && memcmp(in, out + got, len) == 0);
		got += len;
	}
	CHECK(count == 21);
	set_int(scene->server, server, SOL_UDP, UDP_GRO, 1);
	send_segments(scene, client, 1);
	for (got = 0; got < 20001;) {
		char control[64];
		struct iovec piece = { in, sizeof(in) };
		struct msghdr message = {
			.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
			.msg_controllen = sizeof(control),
		};
		int size = 0, len = CALL(scene->server, recvmsg, server, &message, 0);
		struct cmsghdr *told = CMSG_FIRSTHDR(&message);

		CHECK(len > 0 && memcmp(in, out + got, len) == 0);
		if (told) {
			CHECK(told->cmsg_level == SOL_UDP && told->cmsg_type == UDP_GRO);
			CHECK(told->cmsg_len == CMSG_LEN(sizeof(size)));
			memcpy(&size, CMSG_DATA(told), sizeof(size));
			CHECK(size == 1000);
		}
		got += len;
		if (len > largest)
			largest = len;
	}
	CHECK(largest > 1000);
	CHECK(CALL(scene->client, close, client) == 0);
	CHECK(CALL(scene->server, close, server) == 0);
}

/*
 * A server that is bound to all addresses learns the destination address, answers from it, and sees
 * how the datagram was sent.
 */
static void packet_information(struct scene *scene)
{
	int v4 = scene->domain == AF_INET, level = v4 ? IPPROTO_IP : IPPROTO_IPV6;
	int server = CALL(scene->server, socket, scene->domain, SOCK_DGRAM, 0);
	int client = socket_at(scene->client, scene->domain, 106), seen = 0;
	union address any = { .any.sa_family = scene->domain }, to, from;
	socklen_t len = address_of(scene->server, scene->domain, 105, &to);
	char control[256];
	struct iovec piece = { in, sizeof(in) };
	struct msghdr message = {
		.msg_name = &from, .msg_namelen = sizeof(from), .msg_iov = &piece,
		.msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control),
	};

	any.v4.sin_port = htons(105);
	CHECK(CALL(scene->server, bind, server, &any.any, len) == 0);
	set_int(scene->server, server, level, v4 ? IP_PKTINFO : IPV6_RECVPKTINFO, 1);
	set_int(scene->server, server, level, v4 ? IP_RECVTTL : IPV6_RECVHOPLIMIT, 1);
	set_int(scene->server, server, level, v4 ? IP_RECVTOS : IPV6_RECVTCLASS, 1);
	set_int(scene->client, client, level, v4 ? IP_TTL : IPV6_UNICAST_HOPS, 33);
	set_int(scene->client, client, level, v4 ? IP_TOS : IPV6_TCLASS, 0x28);
	CHECK(CALL(scene->client, sendto, client, "x", 1, 0, &to.any, len) == 1);
	CHECK(CALL(scene->server, recvmsg, server, &message, 0) == 1);
	CHECK(message.msg_flags == 0);
	for (struct cmsghdr *told = CMSG_FIRSTHDR(&message); told;
	     told = CMSG_NXTHDR(&message, told)) {
		unsigned char *data = CMSG_DATA(told);

		CHECK(told->cmsg_level == level);
		if (told->cmsg_type == (v4 ? IP_PKTINFO : IPV6_PKTINFO)) {
			size_t size = v4 ? sizeof(struct in_pktinfo) : sizeof(struct in6_pktinfo);

			CHECK(told->cmsg_len == CMSG_LEN(size));
			CHECK(v4 ? !memcmp(data + 8, &to.v4.sin_addr, 4)
				 : !memcmp(data, &to.v6.sin6_addr, 16));
			seen |= 1;
		} else if (told->cmsg_type == (v4 ? IP_TTL : IPV6_HOPLIMIT)) {
			CHECK(told->cmsg_len == CMSG_LEN(4) && data[0] == 33);
			seen |= 2;
		} else if (told->cmsg_type == (v4 ? IP_TOS : IPV6_TCLASS)) {
			CHECK(told->cmsg_len == (v4 ? CMSG_LEN(1) : CMSG_LEN(4)));
			CHECK(data[0] == 0x28);
			seen |= 4;
		} else {
			CHECK(!"a message that was not asked for");
		}
	}
	CHECK(seen == 7);
	/* Sends the received control messages back, reduced to the address to answer from. */
	struct cmsghdr *told = CMSG_FIRSTHDR(&message);
	if (told->cmsg_type == (v4 ? IP_PKTINFO : IPV6_PKTINFO)) {
		message.msg_controllen = CMSG_ALIGN(told->cmsg_len);
		piece.iov_len = 1;
		CHECK(CALL(scene->server, sendmsg, server, &message, 0) == 1);
		CHECK(CALL(scene->client, recv, client, in, 1, 0) == 1);
	}
	CHECK(CALL(scene->client, close, client) == 0);
	CHECK(CALL(scene->server, close, server) == 0);
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

/* A thread that waits for a datagram, and its result. */
struct waiter {
	struct end *end;
	int fd, got;
};

static void *wait_for_one(void *argument)
{
	struct waiter *waiter = argument;
	char bytes[8];

	waiter->got = CALL(waiter->end, recv, waiter->fd, bytes, sizeof(bytes), 0);
	return NULL;
}

/*
 * Waits end: in time, with a datagram, with the end of receiving; and each edge is reported once.
 */
static void waits(struct scene *scene)
{
	int server = socket_at(scene->server, scene->domain, 107);
	int client = socket_at(scene->client, scene->domain, 108);
	struct waiter waiter = { scene->server, server, -2 };
	struct timeval limit = { .tv_usec = 50000 };
	union address to;
	socklen_t len = address_of(scene->server, scene->domain, 107, &to);
	pthread_t thread;
	char byte;

	CHECK(pthread_create(&thread, NULL, wait_for_one, &waiter) == 0);
	usleep(20000);
	CHECK(CALL(scene->client, sendto, client, "abc", 3, 0, &to.any, len) == 3);
	CHECK(pthread_join(thread, NULL) == 0 && waiter.got == 3);

	int set = CALL(scene->server, epoll_create1, 0);
	struct epoll_event event = { .events = EPOLLIN | EPOLLET, .data.fd = 7 };
	CHECK(CALL(scene->server, epoll_ctl, set, EPOLL_CTL_ADD, server, &event) == 0);
	CHECK(CALL(scene->server, epoll_wait, set, &event, 1, 0) == 0);
	for (int i = 0; i < 2; i++) {
		CHECK(CALL(scene->client, sendto, client, "x", 1, 0, &to.any, len) == 1);
		CHECK(CALL(scene->server, epoll_wait, set, &event, 1, 30000) == 1);
		CHECK(event.events == EPOLLIN && event.data.fd == 7);
		CHECK(CALL(scene->server, epoll_wait, set, &event, 1, 0) == 0);
	}
	CHECK(CALL(scene->server, close, set) == 0);
	CHECK(CALL(scene->server, recv, server, &byte, 1, 0) == 1);
	CHECK(CALL(scene->server, recv, server, &byte, 1, 0) == 1);

	CHECK(CALL(scene->client, setsockopt, client, SOL_SOCKET, SO_RCVTIMEO, &limit,
		   sizeof(limit)) == 0);
	double begun = seconds();
	CHECK(CALL(scene->client, recv, client, &byte, 1, 0) == -1 && errno == EAGAIN);
	CHECK(seconds() - begun >= 0.049);

	waiter.got = -2;
	CHECK(pthread_create(&thread, NULL, wait_for_one, &waiter) == 0);
	usleep(20000);
	CHECK(CALL(scene->server, shutdown, server, SHUT_RD) == -1 && errno == ENOTCONN);
	CHECK(pthread_join(thread, NULL) == 0 && waiter.got == 0);
	CHECK(CALL(scene->client, close, client) == 0);
	CHECK(CALL(scene->server, close, server) == 0);
}

/* An IPv6 socket accepts IPv4 and shows it as mapped addresses. */
static void mapped(struct end *end, struct end *peer)
{
	int fd = CALL(end, socket, AF_INET6, SOCK_DGRAM, 0), other = socket_at(peer, AF_INET, 109);
	union address any = { .v6 = { .sin6_family = AF_INET6, .sin6_port = htons(109) } };
	union address to, from, own;
	socklen_t len = sizeof(from), to_len = address_of(end, AF_INET, 109, &to);

	CHECK(CALL(end, bind, fd, &any.any, sizeof(any.v6)) == 0);
	CHECK(CALL(peer, sendto, other, "x", 1, 0, &to.any, to_len) == 1);
	CHECK(CALL(end, recvfrom, fd, in, 1, 0, &from.any, &len) == 1);
	CHECK(len == sizeof(from.v6) && IN6_IS_ADDR_V4MAPPED(&from.v6.sin6_addr));
	CHECK(CALL(end, sendto, fd, "y", 1, 0, &from.any, len) == 1);
	CHECK(CALL(peer, recv, other, in, 2, 0) == 1 && in[0] == 'y');
	/* With a plain IPv4 address, and connected. */
	to_len = address_of(peer, AF_INET, 109, &to);
	CHECK(CALL(end, sendto, fd, "z", 1, 0, &to.any, to_len) == 1);
	CHECK(CALL(peer, recv, other, in, 2, 0) == 1 && in[0] == 'z');
	CHECK(CALL(end, connect, fd, &to.any, to_len) == 0);
	CHECK(CALL(end, send, fd, "c", 1, 0) == 1);
	CHECK(CALL(peer, recv, other, in, 2, 0) == 1 && in[0] == 'c');
	len = sizeof(own);
	CHECK(CALL(end, getsockname, fd, &own.any, &len) == 0);
	CHECK(IN6_IS_ADDR_V4MAPPED(&own.v6.sin6_addr));
	set_int(end, fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
	CHECK(CALL(end, close, fd) == 0 && CALL(peer, close, other) == 0);
}

/* A datagram of several calls goes to the address of the first one. */
static void several_calls(struct scene *scene)
{
	int server = socket_at(scene->server, scene->domain, 114);
	int client = socket_at(scene->client, scene->domain, 115);
	union address to, other;
	socklen_t len = address_of(scene->server, scene->domain, 114, &to);

	address_of(scene->server, scene->domain, 9, &other);
	CHECK(CALL(scene->client, sendto, client, "ab", 2, MSG_MORE, &to.any, len) == 2);
	int bad = CALL(scene->client, sendto, client, "cd", 2, MSG_MORE, &other.any, 3);
	/* Only IPv6 checks the address. */
	CHECK(scene->domain == AF_INET ? bad == 2 : bad == -1 && errno == EINVAL);
	if (bad < 0)
		CHECK(CALL(scene->client, sendto, client, "cd", 2, MSG_MORE, &other.any, len) == 2);
	CHECK(CALL(scene->server, recv, server, in, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	CHECK(CALL(scene->client, send, client, "ef", 2, 0) == 2);
	CHECK(CALL(scene->server, recv, server, in, 9, 0) == 6 && !memcmp(in, "abcdef", 6));
	CHECK(CALL(scene->client, sendto, client, out, 60000, MSG_MORE, &to.any, len) == 60000);
	CHECK(CALL(scene->client, send, client, out, 6000, 0) == -1 && errno == EMSGSIZE);
	CHECK(CALL(scene->client, send, client, out, 1, 0) == -1 && errno == EDESTADDRREQ);
	set_int(scene->client, client, SOL_UDP, UDP_CORK, 1);
	CHECK(CALL(scene->client, sendto, client, "x", 1, 0, &to.any, len) == 1);
	CHECK(CALL(scene->client, sendto, client, "y", 1, 0, &to.any, len) == 1);
	set_int(scene->client, client, SOL_UDP, UDP_CORK, 0);
	CHECK(CALL(scene->server, recv, server, in, 9, 0) == 2 && !memcmp(in, "xy", 2));
	CHECK(CALL(scene->client, close, client) == 0);
	CHECK(CALL(scene->server, close, server) == 0);
}

/*
 * Datagrams that a small buffer cannot hold are lost, and the next one reports how many were lost.
 */
static void losses(struct scene *scene)
{
	int server = socket_at(scene->server, scene->domain, 116), got = 0;
	int client = socket_at(scene->client, scene->domain, 117);
	int last = socket_at(scene->server, scene->domain, 118);
	union address to, to_last;
	socklen_t len = address_of(scene->server, scene->domain, 116, &to);
	struct pollfd polled = { .fd = server, .events = POLLIN };
	uint32_t lost = 0;

	address_of(scene->server, scene->domain, 118, &to_last);

	set_int(scene->server, server, SOL_SOCKET, SO_RCVBUF, 1);
	set_int(scene->server, server, SOL_SOCKET, SO_RXQ_OVFL, 1);
	for (int i = 0; i < 50; i++)
		CHECK(CALL(scene->client, sendto, client, out, 1000 + i, 0, &to.any, len) == 1000 + i);
	/* When this datagram has arrived, all earlier ones have arrived or were lost. */
	CHECK(CALL(scene->client, sendto, client, "y", 1, 0, &to_last.any, len) == 1);
	CHECK(CALL(scene->server, recv, last, in, sizeof(in), 0) == 1);
	while (CALL(scene->server, recv, server, in, sizeof(in), MSG_DONTWAIT) >= 1000)
		got++;
	CHECK(got >= 1 && got < 50);
	CHECK(CALL(scene->client, sendto, client, "x", 1, 0, &to.any, len) == 1);
	CHECK(CALL(scene->server, poll, &polled, 1, 30000) == 1);
	char control[64];
	struct iovec piece = { in, sizeof(in) };
	struct msghdr message = {
		.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
		.msg_controllen = sizeof(control),
	};
	CHECK(CALL(scene->server, recvmsg, server, &message, 0) == 1);
	struct cmsghdr *told = CMSG_FIRSTHDR(&message);
	CHECK(told && told->cmsg_level == SOL_SOCKET && told->cmsg_type == SO_RXQ_OVFL);
	memcpy(&lost, CMSG_DATA(told), sizeof(lost));
	CHECK(lost == 50U - got);
	CHECK(CALL(scene->client, close, client) == 0);
	CHECK(CALL(scene->server, close, server) == 0 && CALL(scene->server, close, last) == 0);
}

/*
 * Reads notices of lent memory until `wanted` calls from `next` on are reported, in order. Returns
 * the number of the call after them, or -1 if there is no notice.
 */
static int64_t returned(struct end *end, int fd, int domain, uint32_t next, uint32_t wanted)
{
	uint32_t until = next + wanted;

	while (next != until) {
		char control[128];
		struct msghdr message = { .msg_control = control, .msg_controllen = sizeof(control) };
		struct pollfd polled = { .fd = fd };
		struct sock_extended_err notice;
		int v4 = domain == AF_INET;

		if (CALL(end, poll, &polled, 1, 30000) != 1)
			return -1;
		CHECK(polled.revents == POLLERR);
		CHECK(CALL(end, recvmsg, fd, &message, MSG_ERRQUEUE | MSG_PEEK) == 0);
		CHECK(message.msg_flags == MSG_ERRQUEUE && message.msg_namelen == 0);
		struct cmsghdr *told = CMSG_FIRSTHDR(&message);
		CHECK(told && told->cmsg_level == (v4 ? SOL_IP : SOL_IPV6));
		CHECK(told->cmsg_type == (v4 ? IP_RECVERR : IPV6_RECVERR));
		CHECK(told->cmsg_len == CMSG_LEN(sizeof(notice) + (v4 ? sizeof(struct sockaddr_in)
								      : sizeof(struct sockaddr_in6))));
		memcpy(&notice, CMSG_DATA(told), sizeof(notice));
		CHECK(notice.ee_origin == SO_EE_ORIGIN_ZEROCOPY && notice.ee_errno == 0);
		CHECK(notice.ee_info == next);
		/* The instance has copied nothing; the kernel copies for a TAP device. */
		CHECK(!end->towpath || notice.ee_code == 0);
		next = notice.ee_data + 1;
	}
	/* Notices are not errors, and none is left. */
	struct msghdr none = { 0 };
	CHECK(CALL(end, recvmsg, fd, &none, MSG_ERRQUEUE) == -1 && errno == EAGAIN);
	int error = -1;
	CHECK(CALL(end, getsockopt, fd, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){ 4 }) == 0);
	CHECK(error == 0);
	return next;
}

#define LENT 8
#define LENT_BYTES 65507

/* Lent datagrams of every size arrive unchanged, although their memory changes once it is back. */
static void lending(struct scene *scene)
{
	static unsigned char buffers[LENT][LENT_BYTES];
	static const int sizes[] = { 0, 1, 100, 1452, 1473, 9000, 40000, LENT_BYTES };
	int server = socket_at(scene->server, scene->domain, 120);
	int client = socket_at(scene->client, scene->domain, 121);
	union address to;
	socklen_t len = address_of(scene->server, scene->domain, 120, &to);
	struct end *end = scene->client;
	int64_t next = 0;

	set_int(end, client, SOL_SOCKET, SO_ZEROCOPY, 1);
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < LENT; i++) {
			memset(buffers[i], round * LENT + i + 1, sizes[i]);
			CHECK(CALL(end, sendto, client, buffers[i], sizes[i], MSG_ZEROCOPY, &to.any,
				   len) == sizes[i]);
		}
		next = returned(end, client, scene->domain, next, LENT);
		CHECK(next == (round + 1) * LENT);
		memset(buffers, 0, sizeof(buffers));
		for (int i = 0; i < LENT; i++) {
			CHECK(CALL(scene->server, recv, server, in, sizeof(in), 0) == sizes[i]);
			for (int at = 0; at < sizes[i]; at++)
				CHECK(in[at] == round * LENT + i + 1);
		}
	}
	/* Several calls are one datagram and one notice. */
	for (int i = 0; i < 3; i++) {
		memset(buffers[i], 'a' + i, 1000);
		CHECK(CALL(end, sendto, client, buffers[i], 100, MSG_ZEROCOPY | (i < 2 ? MSG_MORE : 0),
			   &to.any, len) == 100);
		struct pollfd polled = { .fd = client };
		CHECK(i == 2 || CALL(end, poll, &polled, 1, 0) == 0);
	}
	char control[128];
	struct msghdr message = { .msg_control = control, .msg_controllen = sizeof(control) };
	struct pollfd polled = { .fd = client };
	CHECK(CALL(end, poll, &polled, 1, 30000) == 1);
	CHECK(CALL(end, recvmsg, client, &message, MSG_ERRQUEUE) == 0);
	struct sock_extended_err notice;
	memcpy(&notice, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(notice));
	CHECK(notice.ee_info == next && notice.ee_data == next + 2);
	CHECK(CALL(scene->server, recv, server, in, sizeof(in), 0) == 300);
	CHECK(in[0] == 'a' && in[99] == 'a' && in[100] == 'b' && in[299] == 'c');
	next += 3;
	/* A super-packet is one call; the peer receives the datagrams. */
	set_int(end, client, SOL_UDP, UDP_SEGMENT, 1000);
	memset(buffers[0], 7, 20001);
	CHECK(CALL(end, sendto, client, buffers[0], 20001, MSG_ZEROCOPY, &to.any, len) == 20001);
	next = returned(end, client, scene->domain, next, 1);
	memset(buffers[0], 0, 20001);
	for (int i = 0; i <= 20; i++) {
		CHECK(CALL(scene->server, recv, server, in, sizeof(in), 0) == (i < 20 ? 1000 : 1));
		CHECK(in[0] == 7);
	}
	/* A closed socket gets no notices. */
	CHECK(CALL(end, sendto, client, buffers[0], 1000, MSG_ZEROCOPY, &to.any, len) == 1000);
	CHECK(CALL(end, close, client) == 0);
	CHECK(CALL(scene->server, recv, server, in, sizeof(in), 0) == 1000);
	CHECK(CALL(scene->server, close, server) == 0);
}

/* Lends with the term in a control message, of which `size` bytes are passed. */
static ssize_t lend_for(struct end *end, int fd, const union address *to, socklen_t len, void *bytes,
			int term, size_t size, int flags)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec piece = { bytes, 1000 };
	struct msghdr message = { .msg_name = (void *)to, .msg_namelen = len, .msg_iov = &piece,
				  .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = CMSG_SPACE(size) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	*header = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = TOWPATH_SO_ZEROCOPY_TERM,
				    .cmsg_len = CMSG_LEN(size) };
	memcpy(CMSG_DATA(header), &term, size);
	return CALL(end, sendmsg, fd, &message, flags);
}

/*
 * A datagram that waits for more data keeps memory no longer than its call's term, even if the
 * socket's term is longer, and arrives unchanged. Invalid terms are rejected and lend nothing.
 */
static void terms(struct scene *scene)
{
	static unsigned char bytes[1000];
	struct end *end = scene->client;
	int server = socket_at(scene->server, scene->domain, 124);
	int client = socket_at(end, scene->domain, 125);
	union address to;
	socklen_t len = address_of(scene->server, scene->domain, 124, &to);
	struct towpath_stats before, after;

	if (!end->towpath)
		return;
	set_int(end, client, SOL_SOCKET, SO_ZEROCOPY, 1);
	set_int(end, client, SOL_SOCKET, TOWPATH_SO_ZEROCOPY_TERM, 60000);
	CHECK(lend_for(end, client, &to, len, bytes, -1, 4, MSG_ZEROCOPY) == -1 && errno == EINVAL);
	CHECK(lend_for(end, client, &to, len, bytes, 1, 3, MSG_ZEROCOPY) == -1 && errno == EINVAL);
	CHECK(towpath_get_stats(end->towpath, &before, sizeof(before)) == 0);
	CHECK(before.lent_calls == 0);
	memset(bytes, 'a', sizeof(bytes));
	CHECK(lend_for(end, client, &to, len, bytes, 20, 4, MSG_ZEROCOPY | MSG_MORE) == 1000);
	/* The loan ends when the bytes are copied: at the end of the term or a little later. */
	for (int i = 0; i < 5000; i++) {
		CHECK(towpath_get_stats(end->towpath, &after, sizeof(after)) == 0);
		if (after.copied_recall > before.copied_recall)
			break;
		usleep(1000);
	}
	CHECK(after.copied_recall == before.copied_recall + 1000);
	CHECK(after.terms_fired == before.terms_fired + 1);
	memset(bytes, 'b', sizeof(bytes));
	/* Without the flag the term has no effect. */
	CHECK(lend_for(end, client, &to, len, bytes, 20, 4, 0) == 1000);
	CHECK(CALL(scene->server, recv, server, in, sizeof(in), 0) == 2000);
	for (int at = 0; at < 2000; at++)
		CHECK(in[at] == (at < 1000 ? 'a' : 'b'));
	struct msghdr message = { .msg_control = in, .msg_controllen = 128 };
	struct pollfd polled = { .fd = client };
	struct sock_extended_err notice;
	CHECK(CALL(end, poll, &polled, 1, 30000) == 1);
	CHECK(CALL(end, recvmsg, client, &message, MSG_ERRQUEUE) == 0);
	memcpy(&notice, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(notice));
	CHECK(notice.ee_info == 0 && notice.ee_data == 0);
	CHECK(notice.ee_code == SO_EE_CODE_ZEROCOPY_COPIED);
	CHECK(CALL(end, close, client) == 0 && CALL(scene->server, close, server) == 0);
}

/* Sends with one control message. */
static int message_with(struct end *end, int fd, union address *to, socklen_t len, int level,
			int type, const void *data, size_t size, size_t claimed)
{
	union { char bytes[128]; struct cmsghdr header; } control = { 0 };
	struct iovec piece = { out, 3000 };
	struct msghdr message = {
		.msg_name = to, .msg_namelen = len, .msg_iov = &piece, .msg_iovlen = 1,
		.msg_control = &control, .msg_controllen = CMSG_SPACE(size),
	};

	control.header.cmsg_level = level;
	control.header.cmsg_type = type;
	control.header.cmsg_len = claimed;
	memcpy(CMSG_DATA(&control.header), data, size);
	return CALL(end, sendmsg, fd, &message, 0);
}

/* Control messages of sends, of every length. */
static void ask_messages(struct end *end, struct end *peer, int domain, struct answers *answers)
{
	int v4 = domain == AF_INET, level = v4 ? IPPROTO_IP : IPPROTO_IPV6;
	int sink = socket_at(peer, domain, 112), fd = socket_at(end, domain, 113);
	unsigned char data[64] = { 0 };
	union address to, own, zero = { 0 };
	socklen_t len = address_of(peer, domain, 112, &to);
	static const int numbers[] = { 0, 1, 64, 255, 256, -1, -2 };

#define WITH(level, type, data, size, claimed) \
	SAY(message_with(end, fd, &to, len, level, type, data, size, claimed))

	for (size_t size = 0; size < 40; size++) {
		WITH(SOL_UDP, UDP_SEGMENT, "\xe8\x03\0", size < 4 ? size : 4,
		     CMSG_LEN(size < 4 ? size : 4));
		WITH(level, v4 ? IP_PKTINFO : IPV6_PKTINFO, data, size, CMSG_LEN(size));
		WITH(level, v4 ? IP_TTL : IPV6_HOPLIMIT, "\x40\0\0", size < 4 ? size : 4,
		     CMSG_LEN(size < 4 ? size : 4));
	}
	for (size_t claimed = 0; claimed < 40; claimed += 3)
		WITH(SOL_UDP, UDP_SEGMENT, "\xe8\x03", 2, claimed);
	for (unsigned i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
		WITH(level, v4 ? IP_TTL : IPV6_HOPLIMIT, &numbers[i], 4, CMSG_LEN(4));
		WITH(level, v4 ? IP_TOS : IPV6_TCLASS, &numbers[i], 4, CMSG_LEN(4));
	}
	WITH(SOL_UDP, 99, data, 4, CMSG_LEN(4));
	WITH(level, 99, data, 4, CMSG_LEN(4));
	WITH(SOL_SOCKET, SCM_CREDENTIALS + 90, data, 4, CMSG_LEN(4));
	/* From the peer's address, and from the own. */
	address_of(end, domain, 0, &own);
	for (int i = 0; i < 2; i++) {
		union address *from = i ? &own : &to;

		if (v4)
			memcpy(data + 4, &from->v4.sin_addr, 4);
		else
			memcpy(data, &from->v6.sin6_addr, 16);
		WITH(level, v4 ? IP_PKTINFO : IPV6_PKTINFO, data, v4 ? 12 : 20,
		     CMSG_LEN(v4 ? 12 : 20));
	}
	SAY(CALL(end, sendmsg, fd, &(struct msghdr){ 0 }, 0));
	SAY(CALL(end, sendto, fd, "x", 1, 0, &zero.any, sizeof(zero)));
	CHECK(CALL(end, close, fd) == 0 && CALL(peer, close, sink) == 0);
}

/* Invalid lent sends, and which calls get numbers. */
static void ask_lending(struct end *end, struct end *peer, int domain, struct answers *answers)
{
	static unsigned char pages[64][8192];
	int sink = socket_at(peer, domain, 122), fd = socket_at(end, domain, 123);
	union address to, zero;
	socklen_t len = address_of(peer, domain, 122, &to);
	struct iovec pieces[64];
	struct msghdr message = { .msg_name = &to, .msg_namelen = len, .msg_iov = pieces };
	int64_t next = 0;

#define LEND(count) (message.msg_iovlen = (count), CALL(end, sendmsg, fd, &message, MSG_ZEROCOPY))
#define TOLD(wanted) SAY(next = returned(end, fd, domain, next, wanted))

	address_of(peer, domain, 0, &zero);
	for (int i = 0; i < 64; i++)
		pieces[i] = (struct iovec){ pages[i], 1 };
	SAY(option(end, fd, SOL_SOCKET, SO_ZEROCOPY));
	SAY(LEND(1));
	SAY(CALL(end, recvmsg, fd, &(struct msghdr){ 0 }, MSG_ERRQUEUE));
	SAY(setting(end, fd, SOL_SOCKET, SO_ZEROCOPY, 2));
	SAY(setting(end, fd, SOL_SOCKET, SO_ZEROCOPY, -1));
	SAY(setting(end, fd, SOL_SOCKET, SO_ZEROCOPY, 1));
	SAY(option(end, fd, SOL_SOCKET, SO_ZEROCOPY));
	SAY(LEND(17));
	SAY(LEND(18));
	SAY(LEND(64));
	TOLD(1);
	/* Empty ranges do not count, and no range at all is an empty datagram. */
	pieces[0].iov_len = 0;
	SAY(LEND(18));
	SAY(LEND(1));
	SAY(LEND(0));
	TOLD(3);
	pieces[0].iov_len = 1;
	pieces[3].iov_base = NULL;
	SAY(LEND(4));
	pieces[3].iov_base = pages[3];
	SAY(CALL(end, sendto, fd, NULL, 1, MSG_ZEROCOPY, &to.any, len));
	/*
	 * Pages that are mapped, that cannot be read, that are unmapped, and that lie beyond the
	 * end of their file.
	 */
	unsigned char *some = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int file = memfd_create("short", 0);
	CHECK(some != MAP_FAILED && file >= 0 && mprotect(some + PAGE, PAGE, PROT_NONE) == 0);
	CHECK(munmap(some + 2 * PAGE, PAGE) == 0);
	CHECK(mmap(some + 3 * PAGE, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED);
	for (int page = 0; page < 4; page++)
		SAY(CALL(end, sendto, fd, some + page * PAGE + 8, 100, MSG_ZEROCOPY, &to.any, len));
	SAY(CALL(end, sendto, fd, some + PAGE - 8, 16, MSG_ZEROCOPY, &to.any, len));
	TOLD(1);
	CHECK(munmap(some, 4 * PAGE) == 0 && close(file) == 0);
	SAY(CALL(end, sendto, fd, out, 65508 + 20 * (domain == AF_INET6), MSG_ZEROCOPY, &to.any, len));
	SAY(CALL(end, sendto, fd, out, 65536, MSG_ZEROCOPY, &to.any, len));
	SAY(CALL(end, sendto, fd, out, 1, MSG_ZEROCOPY, &zero.any, len));
	SAY(CALL(end, send, fd, out, 1, MSG_ZEROCOPY));
	SAY(setting(end, fd, SOL_UDP, UDP_SEGMENT, 10));
	SAY(CALL(end, sendto, fd, out, 1281, MSG_ZEROCOPY, &to.any, len));
	SAY(setting(end, fd, SOL_UDP, UDP_SEGMENT, 1500));
	SAY(CALL(end, sendto, fd, out, 4000, MSG_ZEROCOPY, &to.any, len));
	SAY(setting(end, fd, SOL_UDP, UDP_SEGMENT, 0));
	SAY(CALL(end, send, fd, out, 1, MSG_ZEROCOPY));
	SAY(CALL(end, connect, fd, &to.any, len));
	SAY(CALL(end, send, fd, out, 1, MSG_ZEROCOPY));
	/* The two calls that could not be segmented are reported, too. */
	TOLD(3);
	/* If the room for a notice is too small, the notice is lost. */
	char control[32];
	struct msghdr small = { .msg_control = control, .msg_controllen = sizeof(control) };
	struct pollfd polled = { .fd = fd };
	SAY(CALL(end, send, fd, out, 1, MSG_ZEROCOPY));
	SAY(CALL(end, poll, &polled, 1, 30000));
	SAY(CALL(end, recvmsg, fd, &small, MSG_ERRQUEUE));
	SAY(small.msg_flags);
	SAY(small.msg_controllen);
	SAY(CALL(end, recvmsg, fd, &small, MSG_ERRQUEUE));
	next++;
	SAY(CALL(end, shutdown, fd, SHUT_WR));
	SAY(CALL(end, send, fd, out, 1, MSG_ZEROCOPY));
	SAY(setting(end, fd, SOL_SOCKET, SO_ZEROCOPY, 0));
	SAY(option(end, fd, SOL_SOCKET, SO_ZEROCOPY));
	CHECK(CALL(end, close, fd) == 0 && CALL(peer, close, sink) == 0);
}

/* Invalid calls of all kinds, and some valid ones, for their effects. */
static void ask(struct end *end, struct end *peer, int domain, struct answers *answers)
{
	union address own, to, foreign, zero, unspecified = { 0 }, odd = { .any.sa_family = 99 };
	socklen_t len = address_of(end, domain, 110, &own);
	int v4 = domain == AF_INET, level = v4 ? IPPROTO_IP : IPPROTO_IPV6;
	int fd = CALL(end, socket, domain, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	char byte;

	/* The peer has a socket there, so that it does not report errors in between. */
	int sink = socket_at(peer, domain, 111);

	address_of(peer, domain, 111, &to);
	address_of(peer, domain, 110, &foreign);
	address_of(peer, domain, 0, &zero);
	CHECK(fd >= 0);
	SAY(CALL(end, socket, domain, SOCK_DGRAM, IPPROTO_TCP));
	SAY(CALL(end, socket, domain, SOCK_STREAM, IPPROTO_UDP));
	struct pollfd polled = { .fd = fd, .events = ~0 };
	SAY(CALL(end, poll, &polled, 1, 0));
	SAY(polled.revents);
	SAY(CALL(end, recv, fd, &byte, 1, 0));
	SAY(CALL(end, send, fd, "x", 1, 0));
	SAY(CALL(end, write, fd, "x", 1));
	SAY(CALL(end, listen, fd, 1));
	SAY(CALL(end, accept, fd, NULL, NULL));
	SAY(CALL(end, getpeername, fd, &(union address){ 0 }.any, &(socklen_t){ 28 }));
	SAY(CALL(end, bind, fd, &own.any, len));
	SAY(CALL(end, bind, fd, &own.any, len - 1 - 4 * !v4));
	int other = CALL(end, socket, domain, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	for (socklen_t short_len = 0; short_len < len; short_len++) {
		SAY(CALL(end, connect, other, &to.any, short_len));
		SAY(CALL(end, sendto, other, "x", 1, 0, &to.any, short_len));
	}
	SAY(CALL(end, bind, other, &own.any, len));
	SAY(CALL(end, bind, other, &foreign.any, len));
	SAY(CALL(end, bind, other, &odd.any, len));
	SAY(CALL(end, sendto, fd, "x", 1, 0, &zero.any, len));
	SAY(CALL(end, sendto, fd, "x", 1, 0, &odd.any, len));
	SAY(CALL(end, sendto, fd, out, 65508 + 20 * !v4, 0, &to.any, len));
	SAY(CALL(end, sendto, fd, out, 65536, 0, &to.any, len));
	SAY(CALL(end, sendto, fd, "x", 1, MSG_OOB, &to.any, len));
	SAY(CALL(end, sendto, fd, NULL, 1, 0, &to.any, len));
	SAY(CALL(end, connect, fd, &odd.any, len));
	SAY(setting(end, fd, SOL_UDP, UDP_SEGMENT, -1));
	SAY(setting(end, fd, SOL_UDP, UDP_SEGMENT, 65536));
	SAY(setting(end, fd, SOL_UDP, UDP_SEGMENT, 1500));
	SAY(option(end, fd, SOL_UDP, UDP_SEGMENT));
	SAY(CALL(end, sendto, fd, out, 4000, 0, &to.any, len));
	SAY(setting(end, fd, SOL_UDP, UDP_SEGMENT, 10));
	SAY(CALL(end, sendto, fd, out, 1281, 0, &to.any, len));
	SAY(setting(end, fd, SOL_UDP, UDP_SEGMENT, 0));
	SAY(setting(end, fd, SOL_UDP, 99, 0));
	SAY(option(end, fd, SOL_UDP, 99));
	SAY(setting(end, fd, IPPROTO_TCP, TCP_NODELAY, 1));
	SAY(setting(end, fd, level, v4 ? IP_TTL : IPV6_UNICAST_HOPS, 256));
	SAY(setting(end, fd, level, v4 ? IP_TTL : IPV6_UNICAST_HOPS, -2));
	SAY(setting(end, fd, level, v4 ? IP_TTL : IPV6_UNICAST_HOPS, -1));
	SAY(option(end, fd, level, v4 ? IP_TTL : IPV6_UNICAST_HOPS));
	SAY(setting(end, fd, level, v4 ? IP_MTU_DISCOVER : IPV6_MTU_DISCOVER, 9));
	SAY(option(end, fd, level, v4 ? IP_MTU : IPV6_MTU));
	SAY(setting(end, fd, level, v4 ? IP_MTU_DISCOVER : IPV6_MTU_DISCOVER, IP_PMTUDISC_DO));
	SAY(CALL(end, sendto, fd, out, 1473, 0, &to.any, len));
	SAY(CALL(end, setsockopt, fd, SOL_UDP, UDP_SEGMENT, &len, 2));
	SAY(option(end, fd, SOL_SOCKET, SO_TYPE));
	SAY(option(end, fd, SOL_SOCKET, SO_PROTOCOL));
	SAY(option(end, fd, SOL_SOCKET, SO_DOMAIN));
	SAY(option(end, fd, SOL_SOCKET, SO_ACCEPTCONN));
	SAY(CALL(end, connect, fd, &to.any, len));
	SAY(option(end, fd, level, v4 ? IP_MTU : IPV6_MTU));
	SAY(CALL(end, getpeername, fd, &(union address){ 0 }.any, &(socklen_t){ 28 }));
	SAY(CALL(end, connect, fd, &unspecified.any, len));
	SAY(CALL(end, getpeername, fd, &(union address){ 0 }.any, &(socklen_t){ 28 }));
	SAY(CALL(end, shutdown, fd, 9));
	SAY(CALL(end, shutdown, fd, SHUT_WR));
	SAY(CALL(end, sendto, fd, "x", 1, 0, &to.any, len));
	SAY(CALL(end, shutdown, fd, SHUT_RD));
	SAY(CALL(end, poll, &polled, 1, 0));
	SAY(polled.revents);
	SAY(CALL(end, recv, fd, &byte, 1, 0));
	SAY(CALL(end, fcntl, fd, F_SETFL, 0));
	SAY(CALL(end, recv, fd, &byte, 1, 0));
	SAY(CALL(end, close, other));
	SAY(CALL(end, close, fd));
	SAY(CALL(end, sendto, fd, "x", 1, 0, &to.any, len));
	CHECK(CALL(peer, close, sink) == 0);
}

static void same_answers(struct end *ours, struct end *kernel, int domain)
{
	static struct answers first, second;

	first.count = second.count = 0;
	ask(kernel, ours, domain, &first);
	ask_messages(kernel, ours, domain, &first);
	ask_lending(kernel, ours, domain, &first);
	ask(ours, kernel, domain, &second);
	ask_messages(ours, kernel, domain, &second);
	ask_lending(ours, kernel, domain, &second);
	compare(&first, &second, domain == AF_INET ? "IPv4" : "IPv6");
}

/*
 * Several messages in a call: as many as are available. An error of a later one is reported later.
 */
static void several_messages(struct scene *scene)
{
	enum { COUNT = 5 };
	int server = socket_at(scene->server, scene->domain, 116);
	int client = socket_at(scene->client, scene->domain, 117);
	union address to;
	socklen_t len = address_of(scene->server, scene->domain, 116, &to);
	unsigned char bytes[COUNT] = { 10, 11, 12, 13, 14 };
	struct iovec pieces[COUNT], places[COUNT];
	struct mmsghdr sent[COUNT] = { 0 }, got[COUNT] = { 0 };
	struct timespec limit = { .tv_sec = 5 }, wrong = { .tv_nsec = 1000000000 };

	for (int i = 0; i < COUNT; i++) {
		pieces[i] = (struct iovec){ bytes, i + 1 };
		places[i] = (struct iovec){ in + 10 * i, 10 };
		sent[i].msg_hdr = (struct msghdr){ .msg_name = &to, .msg_namelen = len,
						   .msg_iov = &pieces[i], .msg_iovlen = 1 };
		got[i].msg_hdr = (struct msghdr){ .msg_iov = &places[i], .msg_iovlen = 1 };
	}
	CHECK(CALL(scene->client, sendmmsg, client, sent, 0, 0) == 0);
	CHECK(CALL(scene->client, sendmmsg, -1, sent, 0, 0) == -1 && errno == EBADF);
	CHECK(CALL(scene->client, sendmmsg, client, sent, 3, 0) == 3);
	CHECK(sent[0].msg_len == 1 && sent[2].msg_len == 3);
	/* All requested messages. */
	CHECK(CALL(scene->server, recvmmsg, server, got, 3, 0, &limit) == 3);
	CHECK(got[0].msg_len == 1 && got[1].msg_len == 2 && got[2].msg_len == 3);
	CHECK(in[22] == 12 && limit.tv_sec < 5);
	/* The fourth message has no address. */
	sent[3].msg_hdr.msg_name = NULL;
	sent[3].msg_hdr.msg_namelen = 0;
	CHECK(CALL(scene->client, sendmmsg, client, sent + 2, 3, 0) == 1);
	CHECK(CALL(scene->client, sendmmsg, client, sent + 3, 2, 0) == -1 && errno == EDESTADDRREQ);
	/* Available messages, at least one. */
	CHECK(CALL(scene->server, recvmmsg, server, got, COUNT, MSG_WAITFORONE, NULL) == 1);
	CHECK(CALL(scene->server, recvmmsg, server, got, COUNT, MSG_DONTWAIT, NULL) == -1 &&
	      errno == EAGAIN);
	CHECK(CALL(scene->server, recvmmsg, server, got, 1, 0, &wrong) == -1 && errno == EINVAL);
	CHECK(CALL(scene->server, recvmmsg, server, got, 0, 0, NULL) == 0);
	CHECK(CALL(scene->server, recvmmsg, -1, got, 1, 0, NULL) == -1 && errno == EBADF);
	/* A timeout that has expired after the first message. */
	limit = (struct timespec){ 0 };
	CHECK(CALL(scene->client, sendmmsg, client, sent, 2, 0) == 2);
	CHECK(CALL(scene->server, recvmmsg, server, got, 2, 0, &limit) == 1);
	CHECK(CALL(scene->server, recv, server, in, 10, 0) == 2);
	/* A pending error comes before messages. */
	len = address_of(scene->server, scene->domain, 9, &to);
	CHECK(CALL(scene->client, connect, client, &to.any, len) == 0);
	CHECK(CALL(scene->client, send, client, "x", 1, 0) == 1);
	struct pollfd polled = { .fd = client };
	CHECK(CALL(scene->client, poll, &polled, 1, 30000) == 1 && polled.revents == POLLERR);
	CHECK(CALL(scene->client, recvmmsg, client, got, 1, 0, NULL) == -1 &&
	      errno == ECONNREFUSED);
	CHECK(CALL(scene->client, close, client) == 0);
	CHECK(CALL(scene->server, close, server) == 0);
}

static void play(struct scene *scene)
{
	echo(scene);
	refused(scene);
	segments(scene);
	packet_information(scene);
	waits(scene);
	several_calls(scene);
	several_messages(scene);
	losses(scene);
	lending(scene);
	terms(scene);
}

int main(void)
{
	struct towpath_config config = CONFIG;

	if (!begin(PATIENCE))
		return NOT_POSSIBLE;
	struct towpath *instance = towpath_attach("tap0", &config);
	CHECK(instance);
	configure("tap0");
	struct end ours = { instance }, kernel = { NULL };

	each_way(instance, play);
	mapped(&ours, &kernel);
	mapped(&kernel, &ours);
	same_answers(&ours, &kernel, AF_INET);
	same_answers(&ours, &kernel, AF_INET6);
	towpath_free(instance);
	puts("ok");
	return 0;
}
