/*
 * Raw IP sockets of an instance on a TAP device and of the kernel: each scene runs over IPv4 and
 * IPv6, once with the kernel as the server and once with the instance; and both return the same
 * errors for invalid calls.
 *
 * Runs in its own network namespace. Exit code 77: not possible on this machine.
 */
#define _GNU_SOURCE
#include "answers.h"

#include <linux/errqueue.h>
#include <linux/icmp.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>

#ifndef SOL_RAW
#define SOL_RAW 255
#endif
#ifndef ICMP_FILTER
#define ICMP_FILTER 1
#endif
#ifndef ICMP6_FILTER
#define ICMP6_FILTER 1
#endif

/* Longest run time of this program, in seconds. */
#define PATIENCE 300
/* A protocol for experiments (RFC 3692), which neither side uses. */
#define OTHER 253

static unsigned char out[70000], in[70000];

static int raw_of(struct end *end, int domain, int protocol)
{
	struct timeval limit = { .tv_sec = 10 };
	int fd = CALL(end, socket, domain, SOCK_RAW, protocol);

	CHECK(fd >= 0);
	CHECK(CALL(end, setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
	return fd;
}

/* Bytes of the IP header at the start of received packets. */
static int header_of(int domain)
{
	return domain == AF_INET ? 20 : 0;
}

/* Packets of an unknown protocol arrive whole, with the header over IPv4. */
static void packets(struct scene *scene)
{
	static const int sizes[] = { 0, 1, 1480, 9000 };
	int head = header_of(scene->domain);
	int server = raw_of(scene->server, scene->domain, OTHER);
	int client = raw_of(scene->client, scene->domain, OTHER);
	union address to, own, from;
	socklen_t len = address_of(scene->server, scene->domain, 0, &to);

	address_of(scene->client, scene->domain, 0, &own);
	for (int i = 0; i < (int)sizeof(out); i++)
		out[i] = i * 7 % 251;
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		socklen_t from_len = sizeof(from);

		CHECK(CALL(scene->client, sendto, client, out, sizes[i], 0, &to.any, len) == sizes[i]);
		CHECK(CALL(scene->server, recvfrom, server, in, sizeof(in), 0, &from.any,
			   &from_len) == head + sizes[i]);
		CHECK(memcmp(in + head, out, sizes[i]) == 0);
		CHECK(from_len == len && memcmp(&from, &own, len) == 0);
		CHECK(head == 0 || (in[0] == 0x45 && in[9] == OTHER));
	}
	if (scene->server->towpath) {
		/* The packet in place, behind its header, without a copy. */
		unsigned char header[TOWPATH_HEADERS_MAX];
		struct iovec pieces[18] = { { header, sizeof(header) } };
		struct msghdr message = { .msg_iov = pieces, .msg_iovlen = 18 };
		int first = head ? 1 : 0;
		uint64_t token;

		CHECK(CALL(scene->client, sendto, client, out, 1000, 0, &to.any, len) == 1000);
		CHECK(towpath_recvmsg_lent(scene->server->towpath, server, &message, 0, &token) == head + 1000);
		CHECK((int)message.msg_iovlen == first + 1 && pieces[first].iov_len == 1000 && token);
		CHECK(!head || (pieces[0].iov_base == header && (int)pieces[0].iov_len == head && header[9] == OTHER));
		CHECK(memcmp(pieces[first].iov_base, out, 1000) == 0);
		CHECK(towpath_return(scene->server->towpath, token) == 0);
	}
	CHECK(CALL(scene->client, close, client) == 0 && CALL(scene->server, close, server) == 0);
}

static uint16_t sum_of(const unsigned char *bytes, int len)
{
	uint32_t sum = 0;

	for (int i = 0; i < len; i += 2)
		sum += bytes[i] << 8 | (i + 1 < len ? bytes[i + 1] : 0);
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* A ping: only the answer passes the filter; for ICMPv6 the socket computes the checksum. */
static void echo(struct scene *scene)
{
	int v4 = scene->domain == AF_INET, head = header_of(scene->domain);
	int client = raw_of(scene->client, scene->domain, v4 ? IPPROTO_ICMP : IPPROTO_ICMPV6);
	unsigned char message[64] = { v4 ? 8 : 128, 0, 0, 0, 0x12, 0x34, 0, 1, 'p', 'i', 'n', 'g' };
	union address to;
	socklen_t len = address_of(scene->server, scene->domain, 0, &to);

	if (v4) {
		uint32_t blocked = ~(1u << 0);
		uint16_t sum = htons(sum_of(message, sizeof(message)));
		memcpy(message + 2, &sum, 2);
		CHECK(CALL(scene->client, setsockopt, client, SOL_RAW, ICMP_FILTER, &blocked, 4) == 0);
	} else {
		struct icmp6_filter filter;
		ICMP6_FILTER_SETBLOCKALL(&filter);
		ICMP6_FILTER_SETPASS(129, &filter);
		CHECK(CALL(scene->client, setsockopt, client, IPPROTO_ICMPV6, ICMP6_FILTER, &filter,
			   sizeof(filter)) == 0);
	}
	CHECK(CALL(scene->client, connect, client, &to.any, len) == 0);
	CHECK(CALL(scene->client, send, client, message, sizeof(message), 0) == sizeof(message));
	CHECK(CALL(scene->client, recv, client, in, sizeof(in), 0) == head + (int)sizeof(message));
	CHECK(in[head] == (v4 ? 0 : 129));
	CHECK(memcmp(in + head + 4, message + 4, sizeof(message) - 4) == 0);
	CHECK(CALL(scene->client, close, client) == 0);
}

/* A packet with its own header is sent unchanged, except that the header is completed. */
static void headers(struct scene *scene)
{
	if (scene->domain != AF_INET)
		return;
	int server = raw_of(scene->server, AF_INET, OTHER);
	int client = raw_of(scene->client, AF_INET, IPPROTO_RAW);
	unsigned char packet[120] = { 0x45, 0x10, 1, 2, 0, 0, 0, 0, 9, OTHER };
	union address to, own;
	socklen_t len = address_of(scene->server, AF_INET, 0, &to);

	address_of(scene->client, AF_INET, 0, &own);
	memcpy(packet + 16, &to.v4.sin_addr, 4);
	memset(packet + 20, 7, 100);
	CHECK(CALL(scene->client, sendto, client, packet, 120, 0, &to.any, len) == 120);
	CHECK(CALL(scene->server, recv, server, in, sizeof(in), 0) == 120);
	CHECK(in[1] == 0x10 && in[2] == 0 && in[3] == 120 && in[8] == 9 && in[9] == OTHER);
	CHECK(memcmp(in + 12, &own.v4.sin_addr, 4) == 0 && sum_of(in, 20) == 0);
	CHECK(memcmp(in + 20, packet + 20, 100) == 0);
	CHECK(CALL(scene->client, close, client) == 0 && CALL(scene->server, close, server) == 0);
}

/* Raw sockets of the instance lend; those of the kernel do not. */
static void lending(struct scene *scene)
{
	int one = 1, head = header_of(scene->domain);
	int client = raw_of(scene->client, scene->domain, OTHER);
	int server = raw_of(scene->server, scene->domain, OTHER);
	union address to;
	socklen_t len = address_of(scene->server, scene->domain, 0, &to);
	int set = CALL(scene->client, setsockopt, client, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one));

	if (!scene->client->towpath) {
		CHECK(set == -1 && errno == EOPNOTSUPP);
	} else {
		char control[128];
		struct msghdr message = { .msg_control = control, .msg_controllen = sizeof(control) };
		struct pollfd polled = { .fd = client };
		struct sock_extended_err notice;

		CHECK(set == 0);
		memset(out, 7, 5000);
		CHECK(CALL(scene->client, sendto, client, out, 5000, MSG_ZEROCOPY, &to.any, len) == 5000);
		CHECK(CALL(scene->client, poll, &polled, 1, 30000) == 1 && polled.revents & POLLERR);
		CHECK(CALL(scene->client, recvmsg, client, &message, MSG_ERRQUEUE) == 0);
		memcpy(&notice, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(notice));
		CHECK(notice.ee_origin == SO_EE_ORIGIN_ZEROCOPY && notice.ee_code == 0);
		CHECK(notice.ee_info == 0 && notice.ee_data == 0);
		memset(out, 0, 5000);
		CHECK(CALL(scene->server, recv, server, in, sizeof(in), 0) == head + 5000);
		for (int i = 0; i < 5000; i++)
			CHECK(in[head + i] == 7);
	}
	CHECK(CALL(scene->client, close, client) == 0 && CALL(scene->server, close, server) == 0);
}

/* Invalid calls of all kinds, and some valid ones, for their effects. */
static void ask(struct end *end, struct end *peer, int domain, struct answers *answers)
{
	int v4 = domain == AF_INET, sink = raw_of(peer, domain, OTHER);
	int fd = raw_of(end, domain, OTHER);
	int icmp = raw_of(end, domain, v4 ? IPPROTO_ICMP : IPPROTO_ICMPV6);
	union address to, own, foreign, zero = { 0 };
	socklen_t len = address_of(peer, domain, 0, &to);

	address_of(end, domain, 5, &own);
	address_of(peer, domain, 5, &foreign);
	SAY(CALL(end, socket, domain, SOCK_RAW, 0));
	SAY(CALL(end, socket, domain, SOCK_RAW, -1));
	SAY(CALL(end, socket, domain, SOCK_RAW, 300));
	SAY(option(end, fd, SOL_SOCKET, SO_TYPE));
	SAY(option(end, fd, SOL_SOCKET, SO_PROTOCOL));
	SAY(option(end, fd, SOL_SOCKET, SO_DOMAIN));
	SAY(CALL(end, send, fd, "x", 1, 0));
	SAY(CALL(end, sendto, fd, "x", 1, MSG_OOB, &to.any, len));
	SAY(CALL(end, sendto, fd, out, 65516 + 20 * !v4, 0, &to.any, len));
	SAY(CALL(end, sendto, fd, out, 65536, 0, &to.any, len));
	SAY(CALL(end, sendto, fd, "x", 1, 0, &zero.any, v4 ? 8 : 20));
	SAY(CALL(end, bind, fd, &foreign.any, len));
	SAY(CALL(end, bind, fd, &own.any, len));
	SAY(CALL(end, bind, fd, &own.any, len));
	SAY(CALL(end, listen, fd, 1));
	SAY(CALL(end, connect, fd, &to.any, len));
	SAY(CALL(end, send, fd, "x", 1, 0));
	SAY(setting(end, fd, IPPROTO_UDP, 103, 100));
	SAY(setting(end, fd, SOL_RAW, ICMP_FILTER, 1));
	SAY(setting(end, fd, SOL_RAW, 99, 1));
	SAY(option(end, fd, SOL_RAW, 99));
	if (v4) {
		SAY(option(end, fd, IPPROTO_IP, IP_HDRINCL));
		SAY(setting(end, fd, IPPROTO_IP, IP_HDRINCL, 1));
		SAY(option(end, fd, IPPROTO_IP, IP_HDRINCL));
		SAY(CALL(end, sendto, fd, out, 1501, 0, &to.any, len));
		memset(out, 0, 2000);
		SAY(CALL(end, sendto, fd, out, 20, 0, &to.any, len));
		SAY(CALL(end, sendto, fd, "\x45", 1, 0, &to.any, len));
		SAY(setting(end, fd, IPPROTO_IP, IP_HDRINCL, 0));
		SAY(option(end, icmp, SOL_RAW, ICMP_FILTER));
		SAY(setting(end, icmp, SOL_RAW, ICMP_FILTER, 5));
		SAY(option(end, icmp, SOL_RAW, ICMP_FILTER));
	} else {
		SAY(option(end, fd, IPPROTO_IPV6, IPV6_CHECKSUM));
		SAY(setting(end, fd, IPPROTO_IPV6, IPV6_CHECKSUM, 3));
		SAY(setting(end, fd, IPPROTO_IPV6, IPV6_CHECKSUM, 2));
		SAY(option(end, fd, IPPROTO_IPV6, IPV6_CHECKSUM));
		SAY(CALL(end, sendto, fd, "xyz", 3, 0, &to.any, len));
		SAY(CALL(end, sendto, fd, "wxyz", 4, 0, &to.any, len));
		SAY(setting(end, fd, IPPROTO_IPV6, IPV6_CHECKSUM, -1));
		SAY(option(end, fd, IPPROTO_IPV6, IPV6_CHECKSUM));
		SAY(option(end, icmp, IPPROTO_IPV6, IPV6_CHECKSUM));
		SAY(setting(end, icmp, IPPROTO_IPV6, IPV6_CHECKSUM, 2));
		SAY(option(end, icmp, IPPROTO_ICMPV6, ICMP6_FILTER));
	}
	/* Receives everything, so that nothing is left for the next comparison. */
	CHECK(CALL(end, send, fd, "end", 3, 0) == 3);
	do
		CHECK(CALL(peer, recv, sink, in, sizeof(in), 0) > 0);
	while (memcmp(in + header_of(domain), "end", 3) != 0);
	SAY(CALL(end, shutdown, fd, SHUT_RDWR));
	SAY(CALL(end, send, fd, "x", 1, 0));
	SAY(CALL(end, close, fd));
	CHECK(CALL(end, close, icmp) == 0 && CALL(peer, close, sink) == 0);
}

static void same_answers(struct end *ours, struct end *kernel, int domain)
{
	static struct answers first, second;

	first.count = second.count = 0;
	ask(kernel, ours, domain, &first);
	ask(ours, kernel, domain, &second);
	compare(&first, &second, domain == AF_INET ? "IPv4" : "IPv6");
}

static void play(struct scene *scene)
{
	packets(scene);
	echo(scene);
	headers(scene);
	lending(scene);
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
	same_answers(&ours, &kernel, AF_INET);
	same_answers(&ours, &kernel, AF_INET6);
	towpath_free(instance);
	puts("ok");
	return 0;
}
