/*
 * Common to the C programs that talk to the kernel over a TAP device: the side that makes a call,
 * the addresses of both sides, the setup, and the kernel's side of the device. Includes the headers
 * for that.
 */
#ifndef TAP_H
#define TAP_H

#include "check.h"
#include "towpath.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define KERNEL_V4 "192.0.2.1"
#define OURS_V4 "192.0.2.2"
#define KERNEL_V6 "2001:db8::1"
#define OURS_V6 "2001:db8::2"

#define CONFIG                                                                             \
	{                                                                                  \
		.size = sizeof(struct towpath_config),                                     \
		.addresses = OURS_V4 "/24 " OURS_V6 "/64",                                 \
		.gateways = KERNEL_V4 " " KERNEL_V6,                                       \
	}

/* Exit code of a program that cannot run on this machine. */
#define NOT_POSSIBLE 77

/* The side that makes the calls: an instance, or the kernel if there is none. */
struct end {
	struct towpath *towpath;
};

#define CALL(end, name, ...) \
	((end)->towpath ? towpath_##name((end)->towpath, __VA_ARGS__) : name(__VA_ARGS__))

union address {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

struct scene {
	struct end *server;
	struct end *client;
	int domain;
};

static inline socklen_t address_of(struct end *end, int domain, int port, union address *address)
{
	memset(address, 0, sizeof(*address));
	if (domain == AF_INET) {
		address->v4.sin_family = AF_INET;
		address->v4.sin_port = htons(port);
		inet_pton(AF_INET, end->towpath ? OURS_V4 : KERNEL_V4, &address->v4.sin_addr);
		return sizeof(address->v4);
	}
	address->v6.sin6_family = AF_INET6;
	address->v6.sin6_port = htons(port);
	inet_pton(AF_INET6, end->towpath ? OURS_V6 : KERNEL_V6, &address->v6.sin6_addr);
	return sizeof(address->v6);
}

/*
 * Sets up a separate network namespace, and an alarm after `seconds`. False if there is no
 * namespace or no device.
 */
static inline int begin(unsigned int seconds)
{
	alarm(seconds);
	if (unshare(CLONE_NEWNET) == 0 && access("/dev/net/tun", R_OK | W_OK) == 0)
		return 1;
	fprintf(stderr, "%s\n", strerror(errno));
	return 0;
}

/* Configures the addresses of the kernel's side of the device. */
static void configure(const char *name)
{
	struct { struct in6_addr address; uint32_t prefix_len; int index; } v6;
	struct ifreq request = { 0 };
	struct sockaddr_in *at = (struct sockaddr_in *)&request.ifr_addr;
	int four = socket(AF_INET, SOCK_DGRAM, 0), six = socket(AF_INET6, SOCK_DGRAM, 0);
	char path[128];

	CHECK(four >= 0 && six >= 0);
	strcpy(request.ifr_name, name);
	/* The IPv6 address should be usable at once. */
	snprintf(path, sizeof(path), "/proc/sys/net/ipv6/conf/%s/accept_dad", name);
	int file = open(path, O_WRONLY);
	CHECK(file >= 0 && write(file, "0", 1) == 1 && close(file) == 0);
	at->sin_family = AF_INET;
	inet_pton(AF_INET, KERNEL_V4, &at->sin_addr);
	CHECK(ioctl(four, SIOCSIFADDR, &request) == 0);
	inet_pton(AF_INET, "255.255.255.0", &at->sin_addr);
	CHECK(ioctl(four, SIOCSIFNETMASK, &request) == 0);
	request.ifr_flags = IFF_UP | IFF_RUNNING;
	CHECK(ioctl(four, SIOCSIFFLAGS, &request) == 0);
	CHECK(ioctl(four, SIOCGIFINDEX, &request) == 0);
	inet_pton(AF_INET6, KERNEL_V6, &v6.address);
	v6.prefix_len = 64;
	v6.index = request.ifr_ifindex;
	CHECK(ioctl(six, SIOCSIFADDR, &v6) == 0);
	/*
	 * The address is usable when the kernel has noticed that the link is up, which may take a
	 * second.
	 */
	union address own = { .v6 = { .sin6_family = AF_INET6, .sin6_addr = v6.address } };
	for (int tries = 0; bind(six, &own.any, sizeof(own.v6)) != 0; tries++) {
		CHECK(errno == EADDRNOTAVAIL && tries < 500);
		usleep(10000);
	}
	CHECK(close(four) == 0 && close(six) == 0);
}

/* Sets the kernel's side of tap0. While it is down, what the instance sends is lost. */
static inline void set_link(int up)
{
	struct ifreq request = { 0 };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	strcpy(request.ifr_name, "tap0");
	CHECK(fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &request) == 0);
	request.ifr_flags = up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP;
	CHECK(ioctl(fd, SIOCSIFFLAGS, &request) == 0 && close(fd) == 0);
}

/* Runs `play` over IPv4 and IPv6, once with the kernel as the server and once with the instance. */
static inline void each_way(struct towpath *instance, void (*play)(struct scene *))
{
	struct end ours = { instance }, kernel = { NULL };
	struct scene scenes[] = {
		{ &kernel, &ours, AF_INET },
		{ &ours, &kernel, AF_INET },
		{ &kernel, &ours, AF_INET6 },
		{ &ours, &kernel, AF_INET6 },
	};

	for (int i = 0; i < 4; i++)
		play(&scenes[i]);
}

#endif
