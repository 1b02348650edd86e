/*
 * Packet sockets of an instance on a TAP device and of the kernel: frames in both directions, for
 * which both sides report the same; and both return the same errors for invalid calls.
 *
 * Runs in its own network namespace. Exit code 77: not possible on this machine.
 */
#define _GNU_SOURCE
#include "answers.h"

#include <linux/errqueue.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if_arp.h>
#include <poll.h>
#include <sched.h>

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

/* Longest run time of this program, in seconds. */
#define PATIENCE 300
/* An EtherType for experiments (IEEE 802). */
#define OTHER 0x88b5
/* An index without a link. */
#define NO_LINK 999

static unsigned char out[3000], in[70000];
static int kernel_link;

static int link_of(struct end *end)
{
	return end->towpath ? 1 : kernel_link;
}

static struct sockaddr_ll name_of(struct end *end, int protocol, const unsigned char *address)
{
	struct sockaddr_ll name = {
		.sll_family = AF_PACKET,
		.sll_protocol = htons(protocol),
		.sll_ifindex = link_of(end),
	};

	if (address) {
		name.sll_halen = ETH_ALEN;
		memcpy(name.sll_addr, address, ETH_ALEN);
	}
	return name;
}

/* Makes a socket bound to the link of its side. Fills in the link-layer address. */
static int packet_of(struct end *end, int type, int protocol, unsigned char *address)
{
	struct timeval limit = { .tv_sec = 10 };
	struct sockaddr_ll own = name_of(end, protocol, NULL);
	socklen_t len = sizeof(own);
	int fd = CALL(end, socket, AF_PACKET, type, 0);

	CHECK(fd >= 0);
	CHECK(CALL(end, setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
	CHECK(CALL(end, bind, fd, (struct sockaddr *)&own, sizeof(own)) == 0);
	CHECK(CALL(end, getsockname, fd, (struct sockaddr *)&own, &len) == 0);
	CHECK(len == 18 && own.sll_family == AF_PACKET && own.sll_ifindex == link_of(end));
	CHECK(own.sll_protocol == htons(protocol) && own.sll_hatype == ARPHRD_ETHER);
	CHECK(own.sll_halen == ETH_ALEN);
	if (address)
		memcpy(address, own.sll_addr, ETH_ALEN);
	return fd;
}

/* Receives a frame of the protocol, and skips others. */
static int take(struct end *end, int fd, int kind, const unsigned char *source)
{
	for (;;) {
		struct sockaddr_ll from;
		socklen_t len = sizeof(from);
		int got = CALL(end, recvfrom, fd, in, sizeof(in), 0, (struct sockaddr *)&from, &len);

		CHECK(got >= 0 && len == sizeof(from));
		if (from.sll_protocol != htons(OTHER))
			continue;
		CHECK(from.sll_family == AF_PACKET && from.sll_ifindex == link_of(end));
		CHECK(from.sll_hatype == ARPHRD_ETHER && from.sll_pkttype == kind);
		CHECK(from.sll_halen == ETH_ALEN && memcmp(from.sll_addr, source, ETH_ALEN) == 0);
		return got;
	}
}

/* Frames from one side to the other, given as whole frames and as payloads. */
static void frames(struct end *to, struct end *from)
{
	static const unsigned char all[] = { 255, 255, 255, 255, 255, 255 };
	static const unsigned char some[] = { 1, 0, 0x5e, 0, 0, 9 }, other[] = { 2, 9, 9, 9, 9, 9 };
	unsigned char there[ETH_ALEN], here[ETH_ALEN];
	int whole = packet_of(to, SOCK_RAW, OTHER, there);
	int payload = packet_of(to, SOCK_DGRAM, ETH_P_ALL, NULL);
	int maker = packet_of(from, SOCK_RAW, OTHER, here);
	int sender = packet_of(from, SOCK_DGRAM, ETH_P_ALL, NULL);
	int watcher = packet_of(from, SOCK_RAW, ETH_P_ALL, NULL);
	struct { const unsigned char *address; int kind; } stations[] = {
		{ there, PACKET_HOST },
		{ all, PACKET_BROADCAST },
		{ some, PACKET_MULTICAST },
		{ other, PACKET_OTHERHOST },
	};

	for (int i = 0; i < (int)sizeof(out); i++)
		out[i] = i * 7 % 251;
	for (int i = 0; i < 8; i++) {
		struct sockaddr_ll name = name_of(from, OTHER, stations[i / 2].address);
		int len = i / 2 * 400 + 46, kind = stations[i / 2].kind, frame = len + ETH_HLEN;
		unsigned char header[ETH_HLEN] = { 0 };

		memcpy(header, name.sll_addr, ETH_ALEN);
		memcpy(header + 6, here, ETH_ALEN);
		header[12] = OTHER >> 8, header[13] = OTHER & 255;
		if (i % 2) {
			struct iovec parts[] = { { header, sizeof(header) }, { out, len } };
			struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
			CHECK(CALL(from, sendmsg, maker, &message, 0) == frame);
		} else {
			CHECK(CALL(from, sendto, sender, out, len, 0, (struct sockaddr *)&name,
				   sizeof(name)) == len);
		}
		CHECK(take(to, whole, kind, here) == frame);
		CHECK(memcmp(in, header, ETH_HLEN) == 0 && memcmp(in + ETH_HLEN, out, len) == 0);
		CHECK(take(to, payload, kind, here) == len && memcmp(in, out, len) == 0);
		CHECK(take(from, watcher, PACKET_OUTGOING, here) == frame);
		CHECK(memcmp(in, header, ETH_HLEN) == 0 && memcmp(in + ETH_HLEN, out, len) == 0);
	}
	struct tpacket_stats stats;
	socklen_t len = sizeof(stats);
	CHECK(CALL(to, getsockopt, whole, SOL_PACKET, PACKET_STATISTICS, &stats, &len) == 0);
	CHECK(len == sizeof(stats) && stats.tp_packets == 8 && stats.tp_drops == 0);
	CHECK(CALL(to, recv, whole, in, sizeof(in), MSG_DONTWAIT) == -1 && errno == EAGAIN);
	CHECK(CALL(from, recv, maker, in, sizeof(in), MSG_DONTWAIT) == -1 && errno == EAGAIN);
	CHECK(CALL(to, close, whole) == 0 && CALL(to, close, payload) == 0);
	CHECK(CALL(from, close, maker) == 0 && CALL(from, close, sender) == 0);
	CHECK(CALL(from, close, watcher) == 0);
}

/* Packet sockets of the instance lend; those of the kernel do not. */
static void lending(struct end *to, struct end *from)
{
	unsigned char there[ETH_ALEN], here[ETH_ALEN];
	int one = 1, taker = packet_of(to, SOCK_DGRAM, OTHER, there);
	int sender = packet_of(from, SOCK_DGRAM, OTHER, here);
	struct sockaddr_ll name = name_of(from, OTHER, there);
	char control[128];
	struct msghdr message = { .msg_control = control, .msg_controllen = sizeof(control) };
	struct pollfd polled = { .fd = sender };
	struct sock_extended_err notice;

	CHECK(CALL(from, setsockopt, sender, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)) == 0);
	memset(out, 7, 1500);
	CHECK(CALL(from, sendto, sender, out, 1500, MSG_ZEROCOPY, (struct sockaddr *)&name,
		   sizeof(name)) == 1500);
	CHECK(CALL(from, poll, &polled, 1, 30000) == 1 && polled.revents & POLLERR);
	CHECK(CALL(from, recvmsg, sender, &message, MSG_ERRQUEUE) == 0);
	memcpy(&notice, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(notice));
	CHECK(notice.ee_origin == SO_EE_ORIGIN_ZEROCOPY && notice.ee_code == 0);
	memset(out, 0, 1500);
	CHECK(take(to, taker, PACKET_HOST, here) == 1500);
	for (int i = 0; i < 1500; i++)
		CHECK(in[i] == 7);
	CHECK(CALL(to, close, taker) == 0 && CALL(from, close, sender) == 0);
}

/* A filter for frames of OTHER that begin with `first`: all of their bytes, or 20. */
static void attach(struct end *end, int fd, int first, int all)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 12),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OTHER, 0, 3),
		BPF_STMT(BPF_LD | BPF_B | BPF_ABS, ETH_HLEN),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, first, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, all ? 0xffff : 20),
		BPF_STMT(BPF_RET | BPF_K, 0),
	};
	struct sock_fprog program = { 6, code };

	CHECK(CALL(end, setsockopt, fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) == 0);
}

/* A filter selects and truncates frames, with the same result on both sides. */
static void filters(struct end *to, struct end *from)
{
	unsigned char there[ETH_ALEN], here[ETH_ALEN];
	int taker = packet_of(to, SOCK_RAW, OTHER, there), one = 1;
	int sender = packet_of(from, SOCK_DGRAM, OTHER, here);
	struct sockaddr_ll name = name_of(from, OTHER, there);
	int lens[] = { 500 + ETH_HLEN, 20, 300 + ETH_HLEN };

	for (int round = 0; round < 3; round++) {
		if (round == 2)
			CHECK(CALL(to, setsockopt, taker, SOL_SOCKET, SO_DETACH_FILTER, &one, sizeof(one)) == 0);
		else
			attach(to, taker, 5, round == 0);
		/*
		 * The filter accepts the second of two frames; in the last round both are received.
		 */
		for (int i = 0; i < 2; i++) {
			memset(out, 4 + i, 500);
			int len = i ? 500 : 300;
			CHECK(CALL(from, sendto, sender, out, len, 0, (struct sockaddr *)&name, sizeof(name)) == len);
		}
		CHECK(take(to, taker, PACKET_HOST, here) == lens[round]);
		CHECK(in[ETH_HLEN] == (round == 2 ? 4 : 5));
		if (round == 2)
			CHECK(take(to, taker, PACKET_HOST, here) == 500 + ETH_HLEN);
	}
	CHECK(CALL(to, recv, taker, in, sizeof(in), MSG_DONTWAIT) == -1 && errno == EAGAIN);
	CHECK(CALL(to, close, taker) == 0 && CALL(from, close, sender) == 0);
}

/* The instance hands out received and sent frames in place, with their headers. */
static void sniffs(struct end *ours, struct end *kernel)
{
	unsigned char there[ETH_ALEN], here[ETH_ALEN], headers[TOWPATH_HEADERS_MAX];
	int sniffer = packet_of(ours, SOCK_RAW, ETH_P_ALL, there);
	int own = packet_of(ours, SOCK_DGRAM, OTHER, NULL), other = packet_of(kernel, SOCK_DGRAM, OTHER, here);
	struct end *makers[] = { kernel, ours };
	int fds[] = { other, own };
	unsigned char *addresses[] = { there, here };
	uint64_t tokens[2];
	struct iovec kept[2];

	attach(ours, sniffer, 6, 1);
	for (int i = 0; i < 2; i++) {
		struct sockaddr_ll name = name_of(makers[i], OTHER, addresses[i]), from;
		struct iovec pieces[18] = { { headers, sizeof(headers) } };
		struct msghdr message = {
			.msg_name = &from, .msg_namelen = sizeof(from), .msg_iov = pieces, .msg_iovlen = 18,
		};
		size_t sum = 0;

		for (int at = 0; at < 1400; at++)
			out[at] = at * 7 % 251 + i;
		out[0] = 6;
		CHECK(CALL(makers[i], sendto, fds[i], out, 1400, 0, (struct sockaddr *)&name, sizeof(name)) == 1400);
		/* Too little room, and none: the frame stays in the queue. */
		struct pollfd polled = { .fd = sniffer, .events = POLLIN };
		CHECK(CALL(ours, poll, &polled, 1, 60000) == 1);
		pieces[0].iov_len--;
		CHECK(towpath_recvmsg_lent(ours->towpath, sniffer, &message, 0, &tokens[i]) == -1 && errno == EMSGSIZE);
		pieces[0].iov_len++, message.msg_iovlen = 0;
		CHECK(towpath_recvmsg_lent(ours->towpath, sniffer, &message, 0, &tokens[i]) == -1 && errno == EMSGSIZE);
		message.msg_iovlen = 1;
		CHECK(towpath_recvmsg_lent(ours->towpath, sniffer, &message, 0, &tokens[i]) == -1 && errno == EMSGSIZE);
		message.msg_iovlen = 18, pieces[0].iov_base = NULL;
		CHECK(towpath_recvmsg_lent(ours->towpath, sniffer, &message, 0, &tokens[i]) == -1 && errno == EFAULT);
		pieces[0].iov_base = headers;
		CHECK(towpath_recvmsg_lent(ours->towpath, sniffer, &message, 0, &tokens[i]) == 1400 + ETH_HLEN);
		CHECK(from.sll_pkttype == (i ? PACKET_OUTGOING : PACKET_HOST));
		CHECK(message.msg_iovlen >= 2 && tokens[i] && pieces[0].iov_base == headers);
		CHECK(pieces[0].iov_len >= ETH_HLEN && headers[12] == OTHER >> 8);
		for (size_t piece = 0; piece < message.msg_iovlen; piece++) {
			memcpy(in + sum, pieces[piece].iov_base, pieces[piece].iov_len);
			sum += pieces[piece].iov_len;
		}
		CHECK(sum == 1400 + ETH_HLEN && !memcmp(in + ETH_HLEN, out, 1400));
		kept[i] = pieces[1];
	}
	/* Pieces that are held do not change, even when frames arrive and the socket is closed. */
	CHECK(CALL(ours, close, sniffer) == 0);
	for (int i = 0; i < 2; i++) {
		CHECK(((unsigned char *)kept[i].iov_base)[kept[i].iov_len - 1] == 1399 * 7 % 251 + i);
		CHECK(towpath_return(ours->towpath, tokens[i]) == 0);
		CHECK(towpath_return(ours->towpath, tokens[i]) == -1 && errno == EINVAL);
	}
	CHECK(CALL(ours, close, own) == 0 && CALL(kernel, close, other) == 0);
}

/* Invalid calls, and some valid ones, for their effects. */
static void ask(struct end *end, struct answers *answers)
{
	static const unsigned char nobody[] = { 2, 9, 9, 9, 9, 9 };
	struct sockaddr_ll to = name_of(end, OTHER, nobody), bare = name_of(end, OTHER, NULL);
	struct sockaddr_ll gone = to, foreign = to, own;
	struct sockaddr *any = (struct sockaddr *)&to;
	socklen_t len = sizeof(to);
	int raw = CALL(end, socket, AF_PACKET, SOCK_RAW, htons(OTHER));
	int payload = CALL(end, socket, AF_PACKET, SOCK_DGRAM, 0);

	gone.sll_ifindex = NO_LINK;
	foreign.sll_family = AF_INET;
	CHECK(raw >= 0 && payload >= 0);
	SAY(CALL(end, socket, AF_PACKET, SOCK_STREAM, 0));
	SAY(option(end, raw, SOL_SOCKET, SO_TYPE));
	SAY(option(end, payload, SOL_SOCKET, SO_TYPE));
	SAY(option(end, raw, SOL_SOCKET, SO_DOMAIN));
	SAY(option(end, raw, SOL_SOCKET, SO_PROTOCOL));
	SAY(CALL(end, getsockname, raw, (struct sockaddr *)&own, &len));
	SAY(len);
	SAY(own.sll_ifindex == link_of(end));
	len = sizeof(to);
	SAY(CALL(end, getpeername, raw, (struct sockaddr *)&own, &len));
	len = sizeof(to);
	SAY(CALL(end, send, raw, out, 60, 0));
	SAY(CALL(end, sendto, raw, out, 60, 0, any, 11));
	SAY(CALL(end, sendto, raw, out, 60, 0, any, 19));
	to.sll_halen = 9;
	SAY(CALL(end, sendto, raw, out, 60, 0, any, len));
	to.sll_halen = ETH_ALEN;
	SAY(CALL(end, sendto, raw, out, 60, 0, (struct sockaddr *)&gone, len));
	SAY(CALL(end, sendto, raw, out, 60, 0, any, len));
	SAY(CALL(end, sendto, raw, out, 14, 0, any, len));
	SAY(CALL(end, sendto, raw, out, 13, 0, any, len));
	SAY(CALL(end, sendto, raw, out, 0, 0, any, len));
	SAY(CALL(end, sendto, raw, out, 1514, 0, any, len));
	SAY(CALL(end, sendto, raw, out, 1515, 0, any, len));
	SAY(CALL(end, sendto, raw, out, 1519, 0, any, len));
	out[12] = 0x81, out[13] = 0;
	SAY(CALL(end, sendto, raw, out, 1518, 0, any, len));
	SAY(CALL(end, sendto, raw, out, 1519, 0, any, len));
	out[12] = out[13] = 0;
	SAY(CALL(end, sendto, payload, out, 1500, 0, any, len));
	SAY(CALL(end, sendto, payload, out, 1505, 0, any, len));
	SAY(CALL(end, sendto, payload, out, 0, 0, any, len));
	SAY(CALL(end, bind, raw, any, 19));
	SAY(CALL(end, bind, raw, (struct sockaddr *)&foreign, len));
	SAY(CALL(end, bind, raw, (struct sockaddr *)&gone, len));
	SAY(CALL(end, bind, raw, (struct sockaddr *)&bare, len));
	SAY(CALL(end, send, raw, out, 60, 0));
	SAY(CALL(end, listen, raw, 1));
	SAY(CALL(end, connect, raw, any, len));
	SAY(CALL(end, shutdown, raw, SHUT_RDWR));
	SAY(option(end, raw, SOL_PACKET, PACKET_IGNORE_OUTGOING));
	SAY(setting(end, raw, SOL_PACKET, PACKET_IGNORE_OUTGOING, 2));
	SAY(setting(end, raw, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1));
	SAY(option(end, raw, SOL_PACKET, PACKET_IGNORE_OUTGOING));
	SAY(setting(end, raw, SOL_PACKET, 99, 1));
	SAY(option(end, raw, SOL_PACKET, 99));
	SAY(setting(end, raw, IPPROTO_IP, IP_TTL, 1));
	SAY(option(end, raw, IPPROTO_IP, IP_TTL));
	struct sock_filter code[] = { BPF_STMT(BPF_RET | BPF_K, 0), BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 0) };
	struct sock_fprog program = { 1, code }, none = { 0, code }, nowhere = { 1, NULL }, endless = { 2, code };
	SAY(setting(end, raw, SOL_SOCKET, SO_DETACH_FILTER, 0));
	SAY(CALL(end, setsockopt, raw, SOL_SOCKET, SO_DETACH_FILTER, &program, 2));
	SAY(CALL(end, setsockopt, raw, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program) - 1));
	SAY(CALL(end, setsockopt, raw, SOL_SOCKET, SO_ATTACH_FILTER, &program, 2));
	SAY(CALL(end, setsockopt, raw, SOL_SOCKET, SO_ATTACH_FILTER, &none, sizeof(none)));
	SAY(CALL(end, setsockopt, raw, SOL_SOCKET, SO_ATTACH_FILTER, &nowhere, sizeof(nowhere)));
	SAY(CALL(end, setsockopt, raw, SOL_SOCKET, SO_ATTACH_FILTER, &endless, sizeof(endless)));
	SAY(CALL(end, setsockopt, raw, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)));
	SAY(CALL(end, setsockopt, raw, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)));
	SAY(setting(end, raw, SOL_SOCKET, SO_DETACH_FILTER, 0));
	SAY(setting(end, raw, SOL_SOCKET, SO_DETACH_FILTER, 0));
	SAY(CALL(end, recv, payload, in, 1, MSG_DONTWAIT));
	SAY(CALL(end, close, raw));
	SAY(CALL(end, close, payload));
}

static void same_answers(struct end *ours, struct end *kernel)
{
	static struct answers first, second;

	ask(kernel, &first);
	ask(ours, &second);
	compare(&first, &second, "packet sockets");
}

int main(void)
{
	struct towpath_config config = CONFIG;
	struct ifreq request = { .ifr_name = "tap0" };

	if (!begin(PATIENCE))
		return NOT_POSSIBLE;
	struct towpath *instance = towpath_attach("tap0", &config);
	CHECK(instance);
	configure("tap0");
	struct end ours = { instance }, kernel = { NULL };
	int any = socket(AF_INET, SOCK_DGRAM, 0);

	CHECK(any >= 0 && ioctl(any, SIOCGIFINDEX, &request) == 0 && close(any) == 0);
	kernel_link = request.ifr_ifindex;
	frames(&kernel, &ours);
	frames(&ours, &kernel);
	lending(&kernel, &ours);
	filters(&kernel, &ours);
	filters(&ours, &kernel);
	sniffs(&ours, &kernel);
	same_answers(&ours, &kernel);
	towpath_free(instance);
	puts("ok");
	return 0;
}
