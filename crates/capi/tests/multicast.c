/*
 * Multicast between an instance on a TAP device and the kernel: datagrams to groups in both
 * directions, the instance's reports and its answers to queries as the kernel receives them, and
 * the same errors as the kernel for invalid calls.
 *
 * Runs in its own network namespace. Exit code 77: not possible on this machine.
 */
#define _GNU_SOURCE
#include "answers.h"

#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#ifndef IP_MULTICAST_ALL
#define IP_MULTICAST_ALL 49
#endif
#ifndef IPV6_MULTICAST_ALL
#define IPV6_MULTICAST_ALL 29
#endif

/* <net/if.h>, which declares this, contradicts <linux/if.h>. */
unsigned int if_nametoindex(const char *name);

/* Longest run time of this program, in seconds. */
#define PATIENCE 120
#define GROUP_V4 "239.1.2.3"
#define GROUP_V6 "ff15::1:2:3"
#define LIST(list) (list), sizeof(list) / sizeof(*(list))

static unsigned char in[70000];

/* Index of the interface between both, as this end knows it. */
static int index_of(struct end *end)
{
	return end->towpath ? 1 : (int)if_nametoindex("tap0");
}

static void group_of(int domain, int port, union address *group)
{
	memset(group, 0, sizeof(*group));
	group->any.sa_family = domain;
	if (domain == AF_INET) {
		group->v4.sin_port = htons(port);
		inet_pton(AF_INET, GROUP_V4, &group->v4.sin_addr);
	} else {
		group->v6.sin6_port = htons(port);
		inet_pton(AF_INET6, GROUP_V6, &group->v6.sin6_addr);
	}
}

/* Joins or leaves the group, naming the interface by its index. */
static int change(struct end *end, int fd, int domain, int joins)
{
	union address group;

	group_of(domain, 0, &group);
	if (domain == AF_INET) {
		struct ip_mreqn with = { group.v4.sin_addr, { 0 }, index_of(end) };
		return CALL(end, setsockopt, fd, IPPROTO_IP,
			    joins ? IP_ADD_MEMBERSHIP : IP_DROP_MEMBERSHIP, &with, sizeof(with));
	}
	struct ipv6_mreq with = { group.v6.sin6_addr, index_of(end) };
	return CALL(end, setsockopt, fd, IPPROTO_IPV6,
		    joins ? IPV6_JOIN_GROUP : IPV6_LEAVE_GROUP, &with, sizeof(with));
}

/* A socket that shares the port, bound to all addresses or to the group. */
static int member(struct end *end, int domain, int port, int to_group)
{
	struct timeval limit = { .tv_sec = 10 };
	union address at = { 0 };
	int fd = CALL(end, socket, domain, SOCK_DGRAM, 0), on = 1;

	CHECK(fd >= 0);
	group_of(domain, port, &at);
	if (!to_group && domain == AF_INET)
		at.v4.sin_addr.s_addr = 0;
	else if (!to_group)
		at.v6.sin6_addr = in6addr_any;
	CHECK(CALL(end, setsockopt, fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
	CHECK(CALL(end, setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
	CHECK(CALL(end, bind, fd, &at.any, domain == AF_INET ? sizeof(at.v4) : sizeof(at.v6)) == 0);
	return fd;
}

/* A socket that sends to the group by the interface between both. */
static int sender(struct end *end, int domain)
{
	int fd = CALL(end, socket, domain, SOCK_DGRAM, 0), index = index_of(end);
	struct ip_mreqn by = { .imr_ifindex = index };

	CHECK(fd >= 0);
	if (domain == AF_INET)
		CHECK(CALL(end, setsockopt, fd, IPPROTO_IP, IP_MULTICAST_IF, &by, sizeof(by)) == 0);
	else
		CHECK(CALL(end, setsockopt, fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, &index,
			   sizeof(index)) == 0);
	return fd;
}

/* A datagram to the group reaches all members of the other end, and only while they are members. */
static void play(struct scene *scene)
{
	static const int sizes[] = { 1, 1000, 5000 };
	struct end *from = scene->client, *to = scene->server;
	int domain = scene->domain, v4 = domain == AF_INET, ttl = 3, on = 1;
	int wild = member(to, domain, 700, 0), exact = member(to, domain, 700, 1);
	int own = member(from, domain, 700, 0), fd = sender(from, domain);
	union address group, name, expected;
	socklen_t len = v4 ? sizeof(group.v4) : sizeof(group.v6), name_len;

	group_of(domain, 700, &group);
	CHECK(change(to, wild, domain, 1) == 0 && change(from, own, domain, 1) == 0);
	CHECK(CALL(from, setsockopt, fd, v4 ? IPPROTO_IP : IPPROTO_IPV6,
		   v4 ? IP_MULTICAST_TTL : IPV6_MULTICAST_HOPS, &ttl, sizeof(ttl)) == 0);
	CHECK(CALL(to, setsockopt, exact, v4 ? IPPROTO_IP : IPPROTO_IPV6,
		   v4 ? IP_RECVTTL : IPV6_RECVHOPLIMIT, &on, sizeof(on)) == 0);
	CHECK(CALL(to, setsockopt, exact, v4 ? IPPROTO_IP : IPPROTO_IPV6,
		   v4 ? IP_PKTINFO : IPV6_RECVPKTINFO, &on, sizeof(on)) == 0);
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		static unsigned char out[5000];
		char control[256];
		struct iovec piece = { in, sizeof(in) };
		struct msghdr message = {
			.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
			.msg_controllen = sizeof(control),
		};
		int seen = 0;

		memset(out, 'a' + i, sizeof(out));
		CHECK(CALL(from, sendto, fd, out, sizes[i], 0, &group.any, len) == sizes[i]);
		name_len = sizeof(name);
		CHECK(CALL(to, recvfrom, wild, in, sizeof(in), 0, &name.any, &name_len) == sizes[i]);
		CHECK(memcmp(in, out, sizes[i]) == 0);
		address_of(from, domain, 0, &expected);
		if (v4)
			CHECK(name.v4.sin_addr.s_addr == expected.v4.sin_addr.s_addr);
		else
			CHECK(memcmp(&name.v6.sin6_addr, &expected.v6.sin6_addr, 16) == 0);
		CHECK(CALL(to, recvmsg, exact, &message, 0) == sizes[i]);
		for (struct cmsghdr *told = CMSG_FIRSTHDR(&message); told;
		     told = CMSG_NXTHDR(&message, told)) {
			struct in_pktinfo v4_info;
			struct in6_pktinfo v6_info;
			int limit;

			address_of(to, domain, 0, &expected);
			if (v4 && told->cmsg_type == IP_PKTINFO) {
				memcpy(&v4_info, CMSG_DATA(told), sizeof(v4_info));
				CHECK(v4_info.ipi_addr.s_addr == group.v4.sin_addr.s_addr);
				CHECK(v4_info.ipi_spec_dst.s_addr == expected.v4.sin_addr.s_addr);
				CHECK(v4_info.ipi_ifindex == index_of(to));
				seen |= 1;
			} else if (!v4 && told->cmsg_type == IPV6_PKTINFO) {
				memcpy(&v6_info, CMSG_DATA(told), sizeof(v6_info));
				CHECK(memcmp(&v6_info.ipi6_addr, &group.v6.sin6_addr, 16) == 0);
				seen |= 1;
			} else {
				memcpy(&limit, CMSG_DATA(told), sizeof(limit));
				CHECK(limit == ttl);
				seen |= 2;
			}
		}
		CHECK(seen == 3);
		/* The sender's own end is a member too. */
		CHECK(CALL(from, recv, own, in, sizeof(in), 0) == sizes[i]);
	}
	/* Without a loop only the other end receives. */
	on = 0;
	CHECK(CALL(from, setsockopt, fd, v4 ? IPPROTO_IP : IPPROTO_IPV6,
		   v4 ? IP_MULTICAST_LOOP : IPV6_MULTICAST_LOOP, &on, sizeof(on)) == 0);
	CHECK(CALL(from, sendto, fd, "x", 1, 0, &group.any, len) == 1);
	CHECK(CALL(to, recv, wild, in, sizeof(in), 0) == 1);
	CHECK(CALL(to, recv, exact, in, sizeof(in), 0) == 1);
	CHECK(CALL(from, recv, own, in, sizeof(in), MSG_DONTWAIT) == -1 && errno == EAGAIN);
	/* A unicast datagram behind one to the group without members arrives alone. */
	CHECK(change(to, wild, domain, 0) == 0);
	CHECK(CALL(from, sendto, fd, "lost", 4, 0, &group.any, len) == 4);
	address_of(to, domain, 700, &expected);
	CHECK(CALL(from, sendto, fd, "x", 1, 0, &expected.any, len) == 1);
	CHECK(CALL(to, recv, wild, in, sizeof(in), 0) == 1);
	CHECK(CALL(to, recv, exact, in, sizeof(in), MSG_DONTWAIT) == -1 && errno == EAGAIN);
	CHECK(CALL(to, close, wild) == 0 && CALL(to, close, exact) == 0);
	CHECK(CALL(from, close, own) == 0 && CALL(from, close, fd) == 0);
}

/* A raw socket of the kernel that receives what is sent to these groups. */
static int listens(int domain, const char *const *groups, int count)
{
	int v4 = domain == AF_INET, index = if_nametoindex("tap0");
	int fd = socket(domain, SOCK_RAW, v4 ? IPPROTO_IGMP : IPPROTO_ICMPV6);
	struct timeval limit = { .tv_sec = 20 };

	CHECK(fd >= 0);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
	for (int i = 0; i < count; i++) {
		struct ip_mreqn v4_with = { .imr_ifindex = index };
		struct ipv6_mreq v6_with = { .ipv6mr_interface = index };

		if (v4) {
			inet_pton(AF_INET, groups[i], &v4_with.imr_multiaddr);
			CHECK(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &v4_with,
					 sizeof(v4_with)) == 0);
		} else {
			inet_pton(AF_INET6, groups[i], &v6_with.ipv6mr_multiaddr);
			CHECK(setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &v6_with,
					 sizeof(v6_with)) == 0);
		}
	}
	return fd;
}

/*
 * Waits for a message of the instance of type `kind` about the group, and of a record of type
 * `record` if that is not 0. False if none comes within the time limit of the socket.
 */
static int hears(int fd, int domain, int kind, int record)
{
	int v4 = domain == AF_INET, size = v4 ? 4 : 16;
	union address group, own, from;
	const void *wanted = v4 ? (void *)&group.v4.sin_addr : (void *)&group.v6.sin6_addr;

	group_of(domain, 0, &group);
	address_of(&(struct end){ (struct towpath *)1 }, domain, 0, &own);
	for (;;) {
		socklen_t from_len = sizeof(from);
		ssize_t len = recvfrom(fd, in, sizeof(in), 0, &from.any, &from_len);
		unsigned char *message = in;

		if (len < 0 && errno == EAGAIN)
			return 0;
		CHECK(len > 0);
		if (v4) {
			int header = (in[0] & 15) * 4;

			if (from.v4.sin_addr.s_addr != own.v4.sin_addr.s_addr)
				continue;
			CHECK(in[8] == 1 && header == 24 && memcmp(in + 20, "\x94\4\0", 4) == 0);
			message += header;
			len -= header;
		} else if (!IN6_IS_ADDR_UNSPECIFIED(&from.v6.sin6_addr)) {
			/* The instance has no link-local address; the kernel has. */
			continue;
		}
		if (message[0] != kind)
			continue;
		if (!record) {
			CHECK(len == (v4 ? 8 : 24));
			if (memcmp(message + len - size, wanted, size) == 0)
				return 1;
			continue;
		}
		for (int at = 8; at + 4 + size <= len; at += 4 + size)
			if (message[at] == record && memcmp(message + at + 4, wanted, size) == 0)
				return 1;
	}
}

/* Sends a query of the kernel, with a router alert and a TTL of 1. */
static void ask(int fd, int domain, const void *query, size_t len, int with_alert)
{
	union address to = { 0 };
	int ttl = 1, index = if_nametoindex("tap0"), at = 2;
	struct ip_mreqn by = { .imr_ifindex = index };

	to.any.sa_family = domain;
	if (domain == AF_INET) {
		inet_pton(AF_INET, "224.0.0.1", &to.v4.sin_addr);
		CHECK(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &by, sizeof(by)) == 0);
		CHECK(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_TTL, &ttl, sizeof(ttl)) == 0);
		CHECK(setsockopt(fd, IPPROTO_IP, IP_OPTIONS, "\x94\4\0",
				 with_alert ? 4 : 0) == 0);
		CHECK(sendto(fd, query, len, 0, &to.any, sizeof(to.v4)) == (ssize_t)len);
	} else {
		inet_pton(AF_INET6, "ff02::1", &to.v6.sin6_addr);
		to.v6.sin6_scope_id = index;
		/* The checksum of ICMPv6 is at this offset, and the kernel computes it. */
		CHECK(setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, &index, sizeof(index)) == 0);
		CHECK(setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, &ttl, sizeof(ttl)) == 0);
		CHECK(setsockopt(fd, IPPROTO_IPV6, IPV6_HOPOPTS, "\0\0\5\2\0\0\1",
				 with_alert ? 8 : 0) == 0);
		CHECK(sendto(fd, query, len, 0, &to.any, sizeof(to.v6)) == (ssize_t)len && at);
	}
}

/* Fills in the checksum of an IGMP message. */
static void sum(unsigned char *message, size_t len)
{
	unsigned int total = 0;

	for (size_t at = 0; at < len; at += 2)
		total += message[at] << 8 | message[at + 1];
	while (total >> 16)
		total = (total & 0xffff) + (total >> 16);
	message[2] = ~total >> 8;
	message[3] = ~total;
}

/* The kernel receives reports of joins, of leaves and of answers, in the version of its queries. */
static void reports(struct towpath *instance, int domain)
{
	static const char *const v4_groups[] = { "224.0.0.22", "224.0.0.2", GROUP_V4 };
	static const char *const v6_groups[] = { "ff02::16", "ff02::2", GROUP_V6 };
	struct timeval soon = { .tv_sec = 1 };
	struct end ours = { instance };
	int v4 = domain == AF_INET, current = v4 ? 0x22 : 143;
	int fd = v4 ? listens(domain, LIST(v4_groups)) : listens(domain, LIST(v6_groups));
	int own = member(&ours, domain, 701, 0);
	unsigned char v4_query[12] = { 0x11, 5, 0, 0, 0, 0, 0, 0, 2, 125 };
	unsigned char v6_query[28] = { 130, 0, 0, 0, 1, 0, [24] = 2, 125 };

	CHECK(change(&ours, own, domain, 1) == 0);
	CHECK(hears(fd, domain, current, 4));
	CHECK(hears(fd, domain, current, 4));
	sum(v4_query, sizeof(v4_query));
	ask(fd, domain, v4 ? v4_query : v6_query, v4 ? sizeof(v4_query) : sizeof(v6_query), 1);
	CHECK(hears(fd, domain, current, 2));
	/* Without a router alert there is no answer: the next report is that of the leave. */
	ask(fd, domain, v4 ? v4_query : v6_query, v4 ? sizeof(v4_query) : sizeof(v6_query), 0);
	CHECK(change(&ours, own, domain, 0) == 0);
	CHECK(hears(fd, domain, current, 3));
	/* A querier of an older version. */
	CHECK(change(&ours, own, domain, 1) == 0);
	memset(v4_query + 2, 0, 2);
	sum(v4_query, 8);
	/* The kernel is a member too. If it reports first, the instance has nothing to add. */
	CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon)) == 0);
	for (int tries = 1;; tries++) {
		ask(fd, domain, v4 ? v4_query : v6_query, v4 ? 8 : 24, 1);
		if (hears(fd, domain, v4 ? 0x16 : 131, 0))
			break;
		CHECK(tries < 20);
	}
	CHECK(CALL(&ours, close, own) == 0);
	CHECK(hears(fd, domain, v4 ? 0x17 : 132, 0));
	CHECK(close(fd) == 0);
}

/* Calls with wrong arguments, and values of options. */
static void wrong(struct end *end, int domain, int type, struct answers *answers)
{
	static const int v4_names[] = { IP_MULTICAST_TTL, IP_MULTICAST_LOOP, IP_MULTICAST_ALL };
	static const int v6_names[] = { IPV6_MULTICAST_HOPS, IPV6_MULTICAST_LOOP,
					IPV6_MULTICAST_ALL };
	static const int numbers[] = { 0, 1, 2, 128, 255, 256, -1, -2 };
	static const char *const addresses[] = { "0.0.0.0", "10.0.0.1", "239.1.1.1", "224.0.0.1",
						 "255.255.255.255", "223.255.255.255" };
	static const char *const v6_addresses[] = { "::", "fd00::1", "ff02::fb", "ff0e::1",
						    "ff01::5" };
	static const int indices[] = { 0, 1, 77, -1 };
	int fd = CALL(end, socket, domain, type, 0), v6 = domain == AF_INET6;
	union address own;

	CHECK(fd >= 0);
	address_of(end, AF_INET, 0, &own);
	for (int i = 0; i < 3; i++) {
		SAY(option(end, fd, IPPROTO_IP, v4_names[i]));
		for (unsigned n = 0; n < sizeof(numbers) / sizeof(*numbers); n++) {
			SAY(setting(end, fd, IPPROTO_IP, v4_names[i], numbers[n]));
			SAY(option(end, fd, IPPROTO_IP, v4_names[i]));
		}
		for (int len = 0; len < 3; len++)
			SAY(CALL(end, setsockopt, fd, IPPROTO_IP, v4_names[i], "\1\0\0", len));
		if (!v6)
			continue;
		SAY(option(end, fd, IPPROTO_IPV6, v6_names[i]));
		for (unsigned n = 0; n < sizeof(numbers) / sizeof(*numbers); n++) {
			SAY(setting(end, fd, IPPROTO_IPV6, v6_names[i], numbers[n]));
			SAY(option(end, fd, IPPROTO_IPV6, v6_names[i]));
		}
		SAY(CALL(end, setsockopt, fd, IPPROTO_IPV6, v6_names[i], "\1\0\0", 3));
	}
	for (int len = 0; len <= 12; len++) {
		struct ip_mreqn with = { { 0 }, own.v4.sin_addr, 0 };

		inet_pton(AF_INET, "239.7.7.7", &with.imr_multiaddr);
		SAY(CALL(end, setsockopt, fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &with, len));
		SAY(CALL(end, setsockopt, fd, IPPROTO_IP, IP_DROP_MEMBERSHIP, &with, len));
		memset(&with.imr_multiaddr, 0, sizeof(with.imr_multiaddr));
		if (len >= 8 || len < 4)
			SAY(CALL(end, setsockopt, fd, IPPROTO_IP, IP_MULTICAST_IF, &with, len));
	}
	for (unsigned i = 0; i < sizeof(addresses) / sizeof(*addresses); i++) {
		for (int by = 0; by < 2; by++) {
			struct ip_mreqn with = { 0 }, elsewhere;

			inet_pton(AF_INET, addresses[i], &with.imr_multiaddr);
			elsewhere = with;
			inet_pton(AF_INET, "10.99.0.1", &elsewhere.imr_address);
			if (by)
				with.imr_ifindex = index_of(end);
			else
				with.imr_address = own.v4.sin_addr;
			SAY(CALL(end, setsockopt, fd, IPPROTO_IP, IP_DROP_MEMBERSHIP, &with, 12));
			SAY(CALL(end, setsockopt, fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &elsewhere, 12));
			SAY(CALL(end, setsockopt, fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &with, 12));
			SAY(CALL(end, setsockopt, fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &with, 12));
			SAY(CALL(end, setsockopt, fd, IPPROTO_IP, IP_DROP_MEMBERSHIP, &elsewhere, 12));
			SAY(CALL(end, setsockopt, fd, IPPROTO_IP, IP_DROP_MEMBERSHIP, &with, 12));
			with.imr_ifindex = 77;
			SAY(CALL(end, setsockopt, fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &with, 12));
			SAY(CALL(end, setsockopt, fd, IPPROTO_IP, IP_DROP_MEMBERSHIP, &with, 12));
			SAY(CALL(end, setsockopt, fd, IPPROTO_IP, IP_MULTICAST_IF, &with, 12));
		}
	}
	/* More groups than a socket may join. */
	for (int i = 0; i < 22; i++) {
		struct ip_mreqn with = { .imr_ifindex = index_of(end) };

		with.imr_multiaddr.s_addr = htonl(0xef080800 + i);
		SAY(CALL(end, setsockopt, fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &with, 12));
	}
	for (unsigned i = 0; i < sizeof(v6_addresses) / sizeof(*v6_addresses); i++) {
		for (unsigned n = 0; n < sizeof(indices) / sizeof(*indices); n++) {
			struct ipv6_mreq with = { .ipv6mr_interface = indices[n] };

			/* Without an interface the kernel asks its routes. */
			if (indices[n] == 0)
				continue;
			if (indices[n] == 1)
				with.ipv6mr_interface = index_of(end);
			inet_pton(AF_INET6, v6_addresses[i], &with.ipv6mr_multiaddr);
			SAY(CALL(end, setsockopt, fd, IPPROTO_IPV6, IPV6_LEAVE_GROUP, &with, 20));
			SAY(CALL(end, setsockopt, fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &with, 19));
			SAY(CALL(end, setsockopt, fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &with, 20));
			SAY(CALL(end, setsockopt, fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &with, 20));
			SAY(CALL(end, setsockopt, fd, IPPROTO_IPV6, IPV6_LEAVE_GROUP, &with, 20));
			if (v6 && indices[n] != 1)
				SAY(setting(end, fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, indices[n]));
		}
	}
	/* Sources are not filtered; only what the kernel refuses too is compared. */
	SAY(CALL(end, setsockopt, fd, IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP, "", 0) == -1);
	CHECK(CALL(end, close, fd) == 0);
}

/* Two sockets at one port of a group, with and without leave to share it. */
static void share(struct end *end, struct answers *answers)
{
	static const char *const addresses[] = { GROUP_V4, "239.9.9.9", "0.0.0.0", NULL };

	for (int options = 0; options < 16; options++) {
		for (int i = 0; i < 4; i++) {
			int first = CALL(end, socket, AF_INET, SOCK_DGRAM, 0);
			int second = CALL(end, socket, AF_INET, SOCK_DGRAM, 0);
			union address at;

			CHECK(first >= 0 && second >= 0);
			setting(end, first, SOL_SOCKET, SO_REUSEADDR, options & 1);
			setting(end, second, SOL_SOCKET, SO_REUSEADDR, options >> 1 & 1);
			setting(end, first, SOL_SOCKET, SO_REUSEPORT, options >> 2 & 1);
			setting(end, second, SOL_SOCKET, SO_REUSEPORT, options >> 3 & 1);
			group_of(AF_INET, 702, &at);
			SAY(CALL(end, bind, first, &at.any, sizeof(at.v4)));
			address_of(end, AF_INET, 702, &at);
			if (addresses[i])
				inet_pton(AF_INET, addresses[i], &at.v4.sin_addr);
			SAY(CALL(end, bind, second, &at.any, sizeof(at.v4)));
			CHECK(CALL(end, close, first) == 0 && CALL(end, close, second) == 0);
		}
	}
}

int main(void)
{
	static const int domains[] = { AF_INET, AF_INET6 }, types[] = { SOCK_DGRAM, SOCK_STREAM };
	static struct answers answers[2];
	struct towpath_config config = CONFIG;

	if (!begin(PATIENCE))
		return NOT_POSSIBLE;
	struct towpath *instance = towpath_attach("tap0", &config);
	CHECK(instance);
	configure("tap0");
	struct end ends[] = { { NULL }, { instance } };
	for (int i = 0; i < 2; i++) {
		for (int type = 0; type < 2; type++) {
			for (int side = 0; side < 2; side++) {
				answers[side].count = 0;
				wrong(&ends[side], domains[i], types[type], &answers[side]);
			}
			compare(&answers[0], &answers[1], type ? "stream" : "datagram");
		}
	}
	for (int side = 0; side < 2; side++) {
		answers[side].count = 0;
		share(&ends[side], &answers[side]);
	}
	compare(&answers[0], &answers[1], "shared ports");
	each_way(instance, play);
	reports(instance, AF_INET);
	reports(instance, AF_INET6);
	towpath_free(instance);
	puts("ok");
	return 0;
}
