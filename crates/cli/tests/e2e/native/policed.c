/* A static program that tries to reach what a policy forbids:
 * `policed ALLOWED FORBIDDEN PORT SOCKET`. The addresses are IPv4. An echo server listens at
 * ALLOWED, and at SOCKET someone who gives a TCP socket of the host to its first client. The
 * program is root of its namespaces. Ends with 0 if all attempts end as they should; whether
 * anything has arrived at FORBIDDEN is for the test to say. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "check.h"

enum { TURNS = 1000 };

static struct sockaddr_in allowed, forbidden;

static int opened(int family, int type) {
    int fd = socket(family, type, 0);
    CHECK(fd >= 0);
    return fd;
}

static int connected(void) {
    int fd = opened(AF_INET, SOCK_STREAM);
    CHECK(join(fd, &allowed, sizeof allowed) == 0);
    return fd;
}

static void echo(int fd) {
    char word[8] = "a word.", came[8];
    CHECK(send(fd, word, sizeof word, MSG_NOSIGNAL) == sizeof word);
    CHECK(recv(fd, came, sizeof came, MSG_WAITALL) == sizeof came);
}

static void is_denied(int fd) {
    CHECK(join(fd, &forbidden, sizeof forbidden) == -1 && errno == EHOSTUNREACH);
}

/* The plain call, of sockets that wait and that do not, and on a copy of a descriptor. */
static void connect_plainly(void) {
    is_denied(opened(AF_INET, SOCK_STREAM));
    is_denied(opened(AF_INET, SOCK_STREAM | SOCK_NONBLOCK));
    int fd = opened(AF_INET, SOCK_STREAM), other = dup(fd);
    is_denied(other);
    CHECK(join(fd, &allowed, sizeof allowed) == 0);
    echo(other);
}

/* A native socket, once more. */
static void connect_again(void) {
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    int fd = connected();
    CHECK(join(fd, &forbidden, sizeof forbidden) == -1 && errno == EISCONN);
    CHECK(join(fd, &none, sizeof none) == -1 && errno == EOPNOTSUPP);
    CHECK(join(fd, &forbidden, sizeof forbidden) == -1 && errno == EISCONN);
    /* An address in the call does not matter to a connected socket. */
    CHECK(sendto(fd, "to", 2, 0, (void *)&forbidden, sizeof forbidden) == 2);
    echo(fd);
}

/* The same address in other forms. */
static void connect_in_other_forms(void) {
    static const char *const forms[] = {"::ffff:%s", "64:ff9b::%s", "::%s"};
    char v4[INET_ADDRSTRLEN], text[64];
    CHECK(inet_ntop(AF_INET, &forbidden.sin_addr, v4, sizeof v4));
    for (int form = 0; form < 3; form++) {
        struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = forbidden.sin_port};
        snprintf(text, sizeof text, forms[form], v4);
        CHECK(inet_pton(AF_INET6, text, &to.sin6_addr) == 1);
        int fd = opened(AF_INET6, SOCK_STREAM);
        CHECK(join(fd, &to, sizeof to) == -1);
        CHECK(errno == EHOSTUNREACH || errno == EACCES || errno == ENETUNREACH);
    }
}

/* Datagrams: they take the interface, whatever the socket has been connected to. Whether one is
 * refused shows only later. */
static void send_datagrams(void) {
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    int fd = opened(AF_INET, SOCK_DGRAM);
    struct iovec part = {"udp", 3};
    struct msghdr message = {
        .msg_name = &forbidden, .msg_namelen = sizeof forbidden, .msg_iov = &part, .msg_iovlen = 1,
    };
    for (int turn = 0; turn < 3; turn++) {
        sendto(fd, "udp", 3, 0, (void *)&forbidden, sizeof forbidden);
        sendmsg(fd, &message, 0);
        CHECK(join(fd, &allowed, sizeof allowed) == 0);
        send(fd, "udp", 3, 0);
        sendto(fd, "udp", 3, 0, (void *)&forbidden, sizeof forbidden);
        CHECK(join(fd, &forbidden, sizeof forbidden) == 0);
        send(fd, "udp", 3, 0);
        CHECK(join(fd, &none, sizeof none) == 0);
    }
}

/* Ways past connect(2). */
static void connect_otherwise(void) {
    int on = 1;
    int fd = opened(AF_INET, SOCK_STREAM);
    CHECK(sendto(fd, "x", 1, MSG_FASTOPEN, (void *)&forbidden, sizeof forbidden) == -1);
    CHECK(errno == EOPNOTSUPP);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &on, sizeof on) == -1);
    CHECK(syscall(SYS_io_uring_setup, 8, NULL) == -1 && errno == ENOSYS);
    int many = socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP);
    if (many >= 0)
        is_denied(many);
}

/* A socket that is bound to the interface, which is the only one beside the loopback. */
static void connect_by_device(void) {
    char name[IF_NAMESIZE];
    struct if_nameindex *all = if_nameindex();
    CHECK(all);
    struct if_nameindex *one = all;
    while (strcmp(one->if_name, "lo") == 0)
        one++;
    CHECK(one->if_name);
    strcpy(name, one->if_name);
    if_freenameindex(all);
    int fd = opened(AF_INET, SOCK_STREAM), other = opened(AF_INET, SOCK_STREAM);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, strlen(name)) == 0);
    is_denied(fd);
    CHECK(setsockopt(other, SOL_SOCKET, SO_BINDTODEVICE, name, strlen(name)) == 0);
    CHECK(join(other, &allowed, sizeof allowed) == 0);
    echo(other);
}

/* A packet of the program's own making. */
static void send_raw(void) {
    struct {
        struct iphdr ip;
        struct udphdr udp;
        char data[4];
    } packet = {
        .ip = {.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_UDP,
               .daddr = forbidden.sin_addr.s_addr},
        .udp = {.source = htons(4000), .dest = forbidden.sin_port, .len = htons(12)},
        .data = "raw",
    };
    int fd = socket(AF_INET, SOCK_RAW, IPPROTO_RAW);
    CHECK(fd >= 0);
    CHECK(sendto(fd, &packet, sizeof packet, 0, (void *)&forbidden, sizeof forbidden) > 0);
}

/* A TCP socket of the host's network that someone outside gives away. */
static void connect_received(const char *path) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control,
    };
    int channel = opened(AF_UNIX, SOCK_STREAM), fd;
    strncpy(name.sun_path, path, sizeof name.sun_path - 1);
    CHECK(join(channel, &name, sizeof name) == 0 && recvmsg(channel, &message, 0) == 1);
    CHECK(CMSG_FIRSTHDR(&message));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    CHECK(join(fd, &forbidden, sizeof forbidden) == -1);
    CHECK(sendto(fd, "x", 1, MSG_FASTOPEN, (void *)&forbidden, sizeof forbidden) == -1);
    CHECK(join(fd, &allowed, sizeof allowed) == -1);
}

static _Alignas(64) struct sockaddr_in changing;
static atomic_int is_over, target, native, plain, local;

static void *rewrite_address(void *unused) {
    for (unsigned turn = 0; !is_over; turn++)
        *(volatile struct sockaddr_in *)&changing = turn % 2 ? allowed : forbidden;
    return unused;
}

static void *swap_descriptors(void *unused) {
    while (!is_over) {
        dup2(native, target);
        dup2(plain, target);
        dup2(local, target);
    }
    return unused;
}

/* Threads change the address and what the descriptor means, while the call waits for its verdict. */
static void connect_in_a_race(void) {
    pthread_t threads[2];
    int done = 0;
    changing = allowed;
    CHECK(pthread_create(&threads[0], NULL, rewrite_address, NULL) == 0);
    for (int turn = 0; turn < TURNS; turn++) {
        int fd = opened(AF_INET, SOCK_STREAM);
        if (join(fd, &changing, sizeof changing) == 0) {
            struct sockaddr_in peer;
            socklen_t length = sizeof peer;
            CHECK(getpeername(fd, (struct sockaddr *)&peer, &length) == 0);
            CHECK(peer.sin_addr.s_addr == allowed.sin_addr.s_addr);
            echo(fd);
            done++;
        }
        close(fd);
    }
    CHECK(done > 0);
    local = opened(AF_UNIX, SOCK_STREAM);
    target = dup(local);
    native = connected();
    plain = opened(AF_INET, SOCK_STREAM | SOCK_NONBLOCK);
    CHECK(fcntl(native, F_SETFL, O_NONBLOCK) == 0);
    CHECK(pthread_create(&threads[1], NULL, swap_descriptors, NULL) == 0);
    for (int turn = 0; turn < TURNS; turn++) {
        join(target, &changing, sizeof changing);
        send(native, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    is_over = 1;
    for (int thread = 0; thread < 2; thread++)
        pthread_join(threads[thread], NULL);
}

int main(int arguments, char **words) {
    CHECK(arguments == 5);
    allowed.sin_family = forbidden.sin_family = AF_INET;
    allowed.sin_port = forbidden.sin_port = htons(atoi(words[3]));
    CHECK(inet_pton(AF_INET, words[1], &allowed.sin_addr) == 1);
    CHECK(inet_pton(AF_INET, words[2], &forbidden.sin_addr) == 1);
    connect_plainly();
    connect_again();
    connect_in_other_forms();
    send_datagrams();
    connect_otherwise();
    connect_by_device();
    send_raw();
    connect_received(words[4]);
    connect_in_a_race();
    puts("tried");
    return 0;
}
