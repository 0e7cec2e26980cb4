/* The floor of the machine: a server that does the least that a broker has to do for each frame. Python starts it: `floor.py`.
 *
 *   ottla-floor ANSWER [LOG | - BATCHES SIZE]
 *
 * ANSWER is a file with the complete answer to every frame, without its batches; the correlation id is that of the frame.
 * With LOG, the bytes of each frame are appended to this file, one pwritev for the frames of one read, and stay in the page cache.
 * With BATCHES, the first SIZE bytes of this file end each answer, sent by sendfile.
 *
 * It listens on a free port of 127.0.0.1, which it prints, and runs until it is killed or its owner ends.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { READ_BYTES = 128 * 1024, EVENTS = 64, CORRELATION_IN_REQUEST = 8, CORRELATION_IN_ANSWER = 4, ANSWERS = 64 };
static const off_t LOG_BYTES_MAX = 4ll << 30;

struct connection {
    int fd;
    char *bytes;
    size_t have, capacity;
};

static char answer[4096];
static size_t answer_size;
static int log_fd = -1, batches_fd = -1;
static size_t batches_size;
static off_t log_end;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void write_all(int fd, const char *bytes, size_t size) {
    while (size) {
        ssize_t taken = send(fd, bytes, size, batches_fd >= 0 ? MSG_MORE : 0);
        if (taken < 0 && errno == EINTR) continue;
        if (taken < 0) return; /* the client has left; the next read says so */
        bytes += taken;
        size -= (size_t)taken;
    }
}

static void send_batches(int fd) {
    off_t at = 0;
    while ((size_t)at < batches_size)
        if (sendfile(fd, batches_fd, &at, batches_size - (size_t)at) < 0 && errno != EINTR) return;
}

static void append(const char *bytes, size_t size) {
    if (log_end + (off_t)size > LOG_BYTES_MAX) {
        if (ftruncate(log_fd, 0)) fail("ftruncate");
        log_end = 0;
    }
    struct iovec piece = {(void *)bytes, size};
    if (pwritev(log_fd, &piece, 1, log_end) != (ssize_t)size) fail("pwritev");
    log_end += (off_t)size;
}

/* Appends and answers the complete frames that have come. */
static void serve(struct connection *c) {
    static char answers[ANSWERS * sizeof answer];
    size_t end = 0, filled = 0;
    uint32_t size = 0;
    for (; c->have - end >= 4; end += 4 + size) {
        memcpy(&size, c->bytes + end, 4);
        size = be32toh(size);
        if (c->have - end - 4 < size) break;
    }
    if (log_fd >= 0 && end) append(c->bytes, end);
    for (size_t at = 0, next; at < end; at = next) {
        memcpy(&size, c->bytes + at, 4);
        next = at + 4 + be32toh(size);
        memcpy(answers + filled, answer, answer_size);
        memcpy(answers + filled + CORRELATION_IN_ANSWER, c->bytes + at + CORRELATION_IN_REQUEST, 4);
        filled += answer_size;
        if (next == end || filled + answer_size > sizeof answers || batches_fd >= 0) {
            write_all(c->fd, answers, filled);
            if (batches_fd >= 0) send_batches(c->fd);
            filled = 0;
        }
    }
    c->have -= end;
    memmove(c->bytes, c->bytes + end, c->have);
    if (c->have < 4) return;
    memcpy(&size, c->bytes, 4);
    size_t wanted = be32toh(size) + 4 + (size_t)READ_BYTES;
    if (wanted > c->capacity) { /* room for the whole frame, so that it comes in few reads */
        c->bytes = realloc(c->bytes, wanted);
        c->capacity = wanted;
        if (!c->bytes) fail("realloc");
    }
}

int main(int count, char **words) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    if (count < 2) return 2;
    int file = open(words[1], O_RDONLY | O_CLOEXEC);
    ssize_t got = file < 0 ? -1 : read(file, answer, sizeof answer);
    if (got < 8) fail(words[1]);
    answer_size = (size_t)got;
    if (count > 2 && strcmp(words[2], "-") && (log_fd = open(words[2], O_RDWR | O_CREAT | O_CLOEXEC, 0600)) < 0)
        fail(words[2]);
    if (count > 4 && (batches_fd = open(words[3], O_RDONLY | O_CLOEXEC)) < 0) fail(words[3]);
    if (count > 4) batches_size = strtoul(words[4], NULL, 10);

    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), poller = epoll_create1(EPOLL_CLOEXEC);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 256) ||
        getsockname(listener, (struct sockaddr *)&address, &length))
        fail("listen");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = NULL}, events[EVENTS];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &wanted);
    for (;;) {
        int ready = epoll_wait(poller, events, EVENTS, -1);
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c) {
                int on = 1;
                c = calloc(1, sizeof *c);
                if (!c || !(c->bytes = malloc(c->capacity = READ_BYTES))) fail("malloc");
                if ((c->fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) < 0) fail("accept");
                setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                wanted.data.ptr = c;
                epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &wanted);
                continue;
            }
            ssize_t taken = read(c->fd, c->bytes + c->have, c->capacity - c->have);
            if (taken < 0 && errno == EINTR) continue;
            if (taken <= 0) {
                close(c->fd);
                free(c->bytes);
                free(c);
                continue;
            }
            c->have += (size_t)taken;
            serve(c);
        }
    }
}
