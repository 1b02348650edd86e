/* What the programs for the tests of native sockets share. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, strerror(errno));  \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

static int join(int fd, const void *address, socklen_t length) {
    return connect(fd, (const struct sockaddr *)address, length);
}
