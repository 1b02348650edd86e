/* A static program for the tests of native sockets: `program MODE ADDRESS PORT [COUNT]`. The
 * address is IPv4, and an echo server listens there. Prints what it found, and ends with 0 unless
 * something went wrong. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static struct sockaddr_in server;
static int count;

static struct sockaddr_in at(const char *address, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    CHECK(inet_pton(AF_INET, address, &to.sin_addr) == 1);
    return to;
}

static int opened(int flags) {
    int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
    CHECK(fd >= 0);
    return fd;
}

static int connected(void) {
    int fd = opened(0);
    CHECK(join(fd, &server, sizeof server) == 0);
    return fd;
}

/* Sends a word and receives it back. */
static void echo(int fd) {
    char word[8] = "a word.", came[8];
    CHECK(send(fd, word, sizeof word, MSG_NOSIGNAL) == sizeof word);
    CHECK(recv(fd, came, sizeof came, MSG_WAITALL) == sizeof came);
    CHECK(memcmp(word, came, sizeof word) == 0);
}

static void show(const char *name, int (*of)(int, struct sockaddr *, socklen_t *), int fd) {
    struct sockaddr_in address = {0};
    socklen_t length = sizeof address;
    char text[INET_ADDRSTRLEN];
    CHECK(of(fd, (struct sockaddr *)&address, &length) == 0 && length == sizeof address);
    CHECK(address.sin_family == AF_INET && address.sin_port != 0);
    printf("%s %s\n", name, inet_ntop(AF_INET, &address.sin_addr, text, sizeof text));
}

static void names(void) {
    int fd = connected();
    show("peer", getpeername, fd);
    show("own", getsockname, fd);
    struct sockaddr_in address;
    memset(&address, 7, sizeof address);
    socklen_t room = 4;
    CHECK(getpeername(fd, (struct sockaddr *)&address, &room) == 0 && room == sizeof address);
    CHECK(address.sin_port == server.sin_port && address.sin_addr.s_addr == 0x07070707);
    CHECK(getpeername(fd, (struct sockaddr *)8, &room) == -1 && errno == EFAULT);
    echo(fd);
}

static void nonblocking(void) {
    int fd = opened(SOCK_NONBLOCK);
    CHECK(join(fd, &server, sizeof server) == -1 && errno == EINPROGRESS);
    struct pollfd one = {.fd = fd, .events = POLLOUT};
    CHECK(poll(&one, 1, 10000) == 1 && one.revents == POLLOUT);
    int error = -1;
    socklen_t length = sizeof error;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0);
    CHECK(join(fd, &server, sizeof server) == 0);
    CHECK(join(fd, &server, sizeof server) == -1 && errno == EISCONN);
    CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
    CHECK(fcntl(fd, F_SETFL, 0) == 0);
    echo(fd);
}

static void epoll_before(void) {
    int set = epoll_create1(0), fd = opened(SOCK_NONBLOCK);
    struct epoll_event event = {.events = EPOLLOUT | EPOLLET, .data.fd = fd};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    /* A socket that is not connected yet counts as hung up. */
    CHECK(epoll_wait(set, &event, 1, 0) >= 0);
    CHECK(join(fd, &server, sizeof server) == -1 && errno == EINPROGRESS);
    CHECK(epoll_wait(set, &event, 1, 10000) == 1 && event.data.fd == fd);
    CHECK(fcntl(fd, F_SETFL, 0) == 0);
    echo(fd);
}

static void dup_before(void) {
    int fd = opened(0), other = dup(fd);
    CHECK(join(fd, &server, sizeof server) == 0);
    echo(other);
}

static void options(void) {
    int fd = opened(SOCK_CLOEXEC), on = 1, seconds = 77, bytes = 60000, got;
    struct linger linger = {1, 9}, came;
    socklen_t length = sizeof got, linger_length = sizeof came;
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds) == 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) == 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    CHECK(join(fd, &server, sizeof server) == 0);
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &got, &length) == 0 && got == 1);
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &got, &length) == 0 && got == 77);
    CHECK(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &got, &length) == 0 && got == 120000);
    CHECK(getsockopt(fd, SOL_SOCKET, SO_LINGER, &came, &linger_length) == 0);
    CHECK(came.l_onoff == 1 && came.l_linger == 9);
    CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC && !(fcntl(fd, F_GETFL) & O_NONBLOCK));
    echo(fd);
    int plain = connected();
    CHECK(fcntl(plain, F_GETFD) == 0);
}

/* What a native socket must not do. */
static void refused(void) {
    int fd = connected();
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    CHECK(join(fd, &none, sizeof none) == -1 && errno == EOPNOTSUPP);
    CHECK(listen(fd, 1) == -1 && errno == EINVAL);
    CHECK(sendto(fd, "x", 1, MSG_FASTOPEN, (void *)&server, sizeof server) == -1);
    CHECK(errno == EOPNOTSUPP);
    int on = 1;
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &on, sizeof on) == -1);
    CHECK(syscall(SYS_io_uring_setup, 8, NULL) == -1 && errno == ENOSYS);
    struct sockaddr_in gateway = at("10.0.2.2", 1);
    CHECK(join(fd, &gateway, sizeof gateway) == -1 && errno == EISCONN);
    echo(fd);
}

/* Listeners of the program's own, of several kinds, still listen; a socket that was refused
 * elsewhere connects to one. */
static void listeners(void) {
    int fd = opened(0);
    struct sockaddr_in own = at("127.0.0.1", 0);
    socklen_t length = sizeof own;
    CHECK(bind(fd, (struct sockaddr *)&own, length) == 0 && listen(fd, 5) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&own, &length) == 0);
    int client = opened(0);
    struct sockaddr_in gateway = at("10.0.2.2", 1);
    CHECK(join(client, &gateway, length) == -1 && errno == ECONNREFUSED);
    CHECK(join(client, &own, length) == 0);
    CHECK(accept(fd, NULL, NULL) >= 0);
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "\0towpath-native"};
    int unix_listener = socket(AF_UNIX, SOCK_STREAM, 0), peer = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(bind(unix_listener, (struct sockaddr *)&name, 18) == 0 && listen(unix_listener, 5) == 0);
    CHECK(join(peer, &name, 18) == 0 && accept(unix_listener, NULL, NULL) >= 0);
    CHECK(listen(99, 1) == -1 && errno == EBADF);
    CHECK(listen(-1, 1) == -1 && errno == EBADF);
    CHECK(join(-1, &own, length) == -1 && errno == EBADF);
    CHECK(listen(0, 1) == -1 && errno == ENOTSOCK);
}

/* A socket that listens where the arguments say. */
static int serving(void) {
    int fd = opened(0), on = 1, listens = 0;
    struct sockaddr_in own;
    socklen_t length = sizeof own, int_length = sizeof listens;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(bind(fd, (struct sockaddr *)&server, sizeof server) == 0 && listen(fd, 16) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&own, &length) == 0);
    CHECK(own.sin_port == server.sin_port && own.sin_addr.s_addr == server.sin_addr.s_addr);
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &int_length) == 0 && listens);
    puts("listening");
    fflush(stdout);
    return fd;
}

/* Accepts a connection, shows who came, and echoes until its end. */
static void serve_one(int fd) {
    struct sockaddr_in peer, same, own;
    socklen_t length = sizeof peer;
    char buffer[4096];
    int one = accept(fd, (struct sockaddr *)&peer, &length);
    CHECK(one >= 0);
    CHECK(getpeername(one, (struct sockaddr *)&same, &length) == 0);
    CHECK(peer.sin_port == same.sin_port && peer.sin_addr.s_addr == same.sin_addr.s_addr);
    CHECK(getsockname(one, (struct sockaddr *)&own, &length) == 0);
    CHECK(own.sin_port == server.sin_port);
    show("peer", getpeername, one);
    show("own", getsockname, one);
    fflush(stdout);
    for (ssize_t came; (came = recv(one, buffer, sizeof buffer, 0)) > 0;)
        CHECK(send(one, buffer, came, MSG_NOSIGNAL) == came);
    close(one);
}

static void serve(void) {
    int fd = serving();
    CHECK(listen(fd, 8) == 0);
    for (int turn = 0; turn < count; turn++)
        serve_one(fd);
}

/* Children have the listener, and their parent closes it. */
static void serve_by_children(void) {
    int fd = serving();
    for (int turn = 0; turn < count; turn++) {
        if (fork() == 0) {
            serve_one(fd);
            _exit(0);
        }
    }
    close(fd);
    for (int turn = 0, status; turn < count; turn++)
        CHECK(wait(&status) > 0 && status == 0);
}

/* Listens anew for each connection. */
static void serve_anew(void) {
    for (int turn = 0; turn < count; turn++) {
        int fd = serving();
        serve_one(fd);
        close(fd);
    }
}

/* An epoll set watches the socket before it listens. */
static void serve_watched(void) {
    int fd = opened(0), set = epoll_create1(0), on = 1;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(bind(fd, (struct sockaddr *)&server, sizeof server) == 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0 && listen(fd, 16) == 0);
    puts("listening");
    fflush(stdout);
    for (int turn = 0; turn < count; turn++) {
        do
            CHECK(epoll_wait(set, &event, 1, -1) == 1);
        while (!(event.events & EPOLLIN));
        serve_one(fd);
    }
}

/* Its own processes reach it, by its loopback and by its address; a second one cannot listen. */
static void serve_itself(void) {
    int fd = serving();
    for (int turn = 0; turn < 2; turn++) {
        pid_t child = fork();
        if (child == 0) {
            struct sockaddr_in to = at(turn ? "10.0.2.15" : "127.0.0.1", ntohs(server.sin_port));
            struct sockaddr_in peer;
            socklen_t length = sizeof peer;
            int own = opened(0);
            CHECK(join(own, &to, sizeof to) == 0);
            CHECK(getpeername(own, (struct sockaddr *)&peer, &length) == 0);
            CHECK(peer.sin_port == to.sin_port && peer.sin_addr.s_addr == to.sin_addr.s_addr);
            echo(own);
            _exit(0);
        }
        int status;
        serve_one(fd);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    int second = opened(0), on = 1;
    CHECK(setsockopt(second, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    int bound = bind(second, (struct sockaddr *)&server, sizeof server);
    CHECK((bound == -1 || listen(second, 1) == -1) && errno == EADDRINUSE);
}

static _Alignas(64) struct sockaddr_in changing;
static atomic_int is_over, target, native, plain, local;

static void *rewrite_address(void *unused) {
    struct sockaddr_in addresses[] = {
        server, at("127.0.0.1", ntohs(server.sin_port)), at("10.0.2.2", ntohs(server.sin_port)),
        {.sin_family = AF_UNSPEC},
    };
    for (unsigned turn = 0; !is_over; turn++)
        *(volatile struct sockaddr_in *)&changing = addresses[turn % 4];
    return unused;
}

/* A thread writes other addresses into the call's memory all the time. */
static void rewrite(void) {
    pthread_t thread;
    int done = 0;
    changing = server;
    CHECK(pthread_create(&thread, NULL, rewrite_address, NULL) == 0);
    for (int turn = 0; turn < count; turn++) {
        int fd = opened(0);
        if (join(fd, &changing, sizeof changing) == 0) {
            struct sockaddr_in peer;
            socklen_t length = sizeof peer;
            if (getpeername(fd, (struct sockaddr *)&peer, &length) == 0) {
                CHECK(peer.sin_addr.s_addr == server.sin_addr.s_addr);
                echo(fd);
                done++;
            }
        }
        close(fd);
    }
    is_over = 1;
    pthread_join(thread, NULL);
    printf("connected %d\n", done);
}

static void *swap_descriptors(void *unused) {
    while (!is_over) {
        dup2(native, target);
        dup2(plain, target);
        dup2(local, target);
    }
    return unused;
}

/* Threads change the address, and what the descriptor means: a native socket, one of the program's
 * own, a Unix socket. Then everything is tried with what the native socket has become. */
static void swap(void) {
    pthread_t threads[2];
    local = socket(AF_UNIX, SOCK_STREAM, 0);
    target = dup(local);
    native = connected();
    plain = opened(SOCK_NONBLOCK);
    changing = server;
    CHECK(fcntl(native, F_SETFL, O_NONBLOCK) == 0);
    CHECK(pthread_create(&threads[0], NULL, rewrite_address, NULL) == 0);
    CHECK(pthread_create(&threads[1], NULL, swap_descriptors, NULL) == 0);
    for (int turn = 0; turn < count; turn++) {
        join(target, &changing, sizeof changing);
        listen(target, 1);
        send(native, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    is_over = 1;
    for (int thread = 0; thread < 2; thread++)
        pthread_join(threads[thread], NULL);
    listen(native, 1);
    int listens = 0;
    socklen_t length = sizeof listens;
    CHECK(getsockopt(native, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && !listens);
    puts("swapped");
}

static void *close_descriptor(void *unused) {
    while (!is_over) {
        int fd = target;
        if (fd >= 0)
            close(fd);
        dup2(local, fd < 0 ? local : fd);
    }
    return unused;
}

/* A thread closes and replaces the descriptor during the call. */
static void closing(void) {
    pthread_t thread;
    local = open("/dev/null", O_RDWR);
    target = -1;
    CHECK(pthread_create(&thread, NULL, close_descriptor, NULL) == 0);
    for (int turn = 0; turn < count; turn++) {
        int fd = opened(0);
        target = fd;
        join(fd, &server, sizeof server);
        target = -1;
        close(fd);
    }
    is_over = 1;
    pthread_join(thread, NULL);
    echo(connected());
}

static void *connect_to_nowhere(void *unused) {
    struct sockaddr_in nowhere = at("198.51.100.1", 9);
    for (;;)
        join(opened(0), &nowhere, sizeof nowhere);
    return unused;
}

static void ignored(int signal) { (void)signal; }

/* Calls that wait are interrupted, cut short by execve and by the end of the process; others do
 * not wait for them. */
static void interrupted(void) {
    struct sigaction action = {.sa_handler = ignored};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct sockaddr_in nowhere = at("198.51.100.1", 9);
    alarm(1);
    CHECK(join(opened(0), &nowhere, sizeof nowhere) == -1 && errno == EINTR);
    for (int turn = 0; turn < count; turn++) {
        pid_t child = fork();
        if (child == 0) {
            pthread_t thread;
            CHECK(pthread_create(&thread, NULL, connect_to_nowhere, NULL) == 0);
            CHECK(pthread_create(&thread, NULL, connect_to_nowhere, NULL) == 0);
            echo(connected());
            if (turn % 2)
                execl("/bin/true", "true", NULL);
            kill(getpid(), SIGKILL);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(turn % 2 ? status == 0 : WIFSIGNALED(status));
    }
    echo(connected());
}

static void many(void) {
    for (int turn = 0; turn < count; turn++) {
        int fd = connected();
        echo(fd);
        close(fd);
    }
    printf("made %d\n", count);
}

static void *swap_listeners(void *unused) {
    while (!is_over) {
        dup2(plain, target);
        dup2(native, target);
        dup2(local, target);
    }
    return unused;
}

/* Threads change what the descriptor means while it is made to listen and connected: a listener of
 * a published port, a bound socket of the program's, a Unix socket. What has become of the listener
 * can listen at its port at most, and connect nowhere. */
static void swap_listener(void) {
    pthread_t threads[2];
    struct sockaddr_in elsewhere = at("0.0.0.0", 0);
    local = socket(AF_UNIX, SOCK_STREAM, 0);
    target = dup(local);
    native = serving();
    plain = opened(SOCK_NONBLOCK);
    CHECK(bind(plain, (struct sockaddr *)&elsewhere, sizeof elsewhere) == 0);
    changing = server;
    CHECK(fcntl(native, F_SETFL, O_NONBLOCK) == 0);
    CHECK(pthread_create(&threads[0], NULL, rewrite_address, NULL) == 0);
    CHECK(pthread_create(&threads[1], NULL, swap_listeners, NULL) == 0);
    for (int turn = 0; turn < count; turn++) {
        listen(target, 1);
        join(target, &changing, sizeof changing);
        bind(target, (struct sockaddr *)&elsewhere, sizeof elsewhere);
    }
    is_over = 1;
    for (int thread = 0; thread < 2; thread++)
        pthread_join(threads[thread], NULL);
    shutdown(native, SHUT_RDWR);
    CHECK(bind(native, (struct sockaddr *)&elsewhere, sizeof elsewhere) == -1);
    CHECK(join(native, &server, sizeof server) == -1);
    CHECK(listen(native, 4) == 0);
    puts("swapped");
    fflush(stdout);
    char byte;
    CHECK(read(0, &byte, 1) >= 0);
}

static void *listen_often(void *unused) {
    for (int turn = 0; turn < count; turn++) {
        int fd = opened(0), on = 1;
        CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0);
        if (bind(fd, (struct sockaddr *)&server, sizeof server) == 0)
            listen(fd, 1);
        close(fd);
    }
    return unused;
}

/* Threads listen and close all the time, are interrupted, and end within the call; then the port
 * still works. */
static void listen_much(void) {
    pthread_t threads[8];
    struct sigaction action = {.sa_handler = ignored};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    for (int turn = 0; turn < 4; turn++) {
        pid_t child = fork();
        if (child == 0) {
            ualarm(1000, 1000);
            for (int thread = 0; thread < 8; thread++)
                CHECK(pthread_create(&threads[thread], NULL, listen_often, NULL) == 0);
            pthread_join(threads[turn], NULL);
            if (turn % 2)
                execl("/bin/true", "true", NULL);
            kill(getpid(), SIGKILL);
        }
        CHECK(waitpid(child, NULL, 0) == child);
    }
    int fd = opened(0), on = 1;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0);
    CHECK(bind(fd, (struct sockaddr *)&server, sizeof server) == 0 && listen(fd, 16) == 0);
    puts("listening");
    fflush(stdout);
    serve_one(fd);
}

/* Its connection is ended while it waits, and while a child has the socket as well. */
static void ended(void) {
    int fd = connected();
    char byte;
    echo(fd);
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    puts("open");
    fflush(stdout);
    CHECK(recv(fd, &byte, 1, 0) == -1 && (errno == ECONNRESET || errno == EPIPE));
    struct sockaddr_in peer;
    socklen_t length = sizeof peer;
    CHECK(getpeername(fd, (struct sockaddr *)&peer, &length) == -1 && errno == ENOTCONN);
    CHECK(join(fd, &server, sizeof server) == -1);
    CHECK(listen(fd, 1) == -1 && errno == EINVAL);
    kill(child, SIGKILL);
    echo(connected());
    puts("anew");
}

/* No process has its socket open: it is on its way through a Unix socket. */
static void hidden(void) {
    int fd = connected(), pair[2];
    char byte = 0, control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control,
    };
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(pair[0], &message, 0) == 1 && close(fd) == 0);
    puts("hidden");
    fflush(stdout);
    CHECK(read(0, &byte, 1) >= 0);
    CHECK(recvmsg(pair[1], &message, 0) == 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    echo(fd);
}

int main(int arguments, char **words) {
    static const struct {
        const char *name;
        void (*play)(void);
    } modes[] = {
        {"names", names},         {"nonblocking", nonblocking}, {"epoll_before", epoll_before},
        {"dup_before", dup_before}, {"options", options},       {"refused", refused},
        {"listeners", listeners}, {"rewrite", rewrite},         {"swap", swap},
        {"closing", closing},     {"interrupted", interrupted}, {"many", many},
        {"ended", ended},         {"hidden", hidden},       {"serve", serve},
        {"serve_by_children", serve_by_children},           {"serve_anew", serve_anew},
        {"serve_watched", serve_watched},                   {"serve_itself", serve_itself},
        {"swap_listener", swap_listener},                   {"listen_much", listen_much},
    };
    CHECK(arguments >= 4);
    server = at(words[2], atoi(words[3]));
    count = arguments > 4 ? atoi(words[4]) : 1;
    for (unsigned mode = 0; mode < sizeof modes / sizeof *modes; mode++) {
        if (strcmp(modes[mode].name, words[1]) == 0) {
            modes[mode].play();
            return 0;
        }
    }
    fprintf(stderr, "no mode %s\n", words[1]);
    return 2;
}
