/* Sends requests that are encoded already, checks the answers, and measures them. Python starts it: `c_generator.py`.
 *
 * Standard input is the plan that `request_plan.py` writes: one line each, and a frame's bytes after its line.
 *
 *   ottla-load WARM_UP_MS MEASURED_MS FRAMES CONNECTIONS
 *   frame BYTES RECORDS PAYLOAD_BYTES OFFSET_AT VERSION
 *   connection KIND HOST PORT IN_FLIGHT FIRST_FRAME FRAMES START END PEER
 *
 * KIND is `produce`, `fetch`, `idle`, or `paired`: a producer whose batches the connection that names it as PEER fetches.
 * A connection keeps IN_FLIGHT requests unanswered. It sends its frames in turns.
 * Each fetch in flight reads the partition on its own, from START; it continues at START when it comes to END (-1: never).
 * The offset to fetch is written into the frame at OFFSET_AT. Requests are Produce v3 to v11 and Fetch v4 to v17; VERSION is the frame's.
 * If nothing is answered in MEASURED_MS, the run lasts until something is, at most FIRST_ANSWER_S longer.
 *
 * Standard output has one line of JSON per second after the warm-up, and a last one: the result, or what failed.
 */

#define _GNU_SOURCE
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { READ_BYTES = 128 * 1024, EVENTS = 256, PIECES = 64, CONNECT_TIMEOUT_S = 5, FIRST_ANSWER_S = 30, ANSWER_BYTES_MAX = 512 << 20 };
enum { PRODUCE_FLEXIBLE = 9, FETCH_FLEXIBLE = 12, TOPIC_IDS = 13 };
enum kind { PRODUCE, FETCH, IDLE, PAIRED };

struct frame {
    char *bytes;
    uint32_t size, records, payload;
    int32_t offset_at, version;
};

/* One request in flight. A fetch has a copy of the frame, in which the offset is written. */
struct request {
    const char *bytes;
    const struct frame *frame;
    char *copy;
    int64_t next_offset;
    uint64_t sent_ns;
};

struct connection {
    int fd, peer, number;
    enum kind kind;
    uint32_t in_flight, first_frame, frames, next_frame;
    int64_t start, end;
    struct request *requests;       /* a ring of `in_flight`, from `oldest` on */
    uint32_t oldest, unanswered;
    uint32_t unwritten;             /* the last ones of the unanswered, of which the socket has not taken all bytes */
    uint32_t written_bytes;         /* what it has taken of the first of them */
    bool waits_for_space;
    char *received;
    size_t have, capacity;
    uint64_t *batches_sent_ns;      /* of a paired producer: a ring of `in_flight` */
    uint64_t batches_sent, batches_fetched;
};

static struct frame *all_frames;
static struct connection *all;
static uint32_t connection_count;
static int poller;

/* -- what is measured -- */

/* Buckets of latencies, 64 for each power of two of nanoseconds: at most 1.6 percent too high. */
enum { SUB = 64, BUCKETS = SUB * 60 };
static uint64_t histogram[BUCKETS];
static uint64_t answers, records, payload, longest_ns;
static bool counts;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static double cpu_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static void measured(uint64_t ns, uint64_t of_records, uint64_t of_bytes) {
    if (!counts) return;
    uint32_t bucket = (uint32_t)ns;
    if (ns >= SUB) {
        uint32_t power = 63 - (uint32_t)__builtin_clzll(ns);
        bucket = (power - 5) * SUB + (uint32_t)((ns >> (power - 6)) & (SUB - 1));
    }
    histogram[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
    if (ns > longest_ns) longest_ns = ns;
    answers++;
    records += of_records;
    payload += of_bytes;
}

static double quantile_ms(double share) {
    uint64_t wanted = (uint64_t)((double)answers * share), passed = 0;
    for (uint32_t bucket = 0; bucket < BUCKETS; bucket++) {
        passed += histogram[bucket];
        if (passed > wanted) {
            uint64_t bound = bucket;
            if (bucket >= SUB) bound = (((uint64_t)SUB + bucket % SUB + 1) << (bucket / SUB - 1)) - 1;
            return (double)(bound < longest_ns ? bound : longest_ns) / 1e6;
        }
    }
    return (double)longest_ns / 1e6;
}

/* `number` is an errno, an error code of Kafka, or 0. */
static void fail(const char *what, int connection, long number) {
    printf("{\"failure\": \"%s\", \"connection\": %d, \"number\": %ld}\n", what, connection, number);
    fflush(stdout);
    exit(1);
}

/* -- requests -- */

static void watch(struct connection *c, bool for_space) {
    struct epoll_event event = {.events = EPOLLIN | (for_space ? EPOLLOUT : 0), .data.u32 = (uint32_t)c->number};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
    c->waits_for_space = for_space;
}

/* Writes what the socket takes. */
static void write_requests(struct connection *c) {
    while (c->unwritten) {
        struct iovec pieces[PIECES];
        int count = 0;
        uint32_t at = c->oldest + c->unanswered - c->unwritten;
        for (; count < PIECES && (uint32_t)count < c->unwritten; count++) {
            struct request *request = &c->requests[(at + (uint32_t)count) % c->in_flight];
            pieces[count] = (struct iovec){(void *)request->bytes, request->frame->size};
        }
        pieces[0].iov_base = (char *)pieces[0].iov_base + c->written_bytes;
        pieces[0].iov_len -= c->written_bytes;
        ssize_t taken = writev(c->fd, pieces, count);
        if (taken < 0 && errno == EINTR) continue;
        if (taken < 0 && errno != EAGAIN) fail("closed", c->number, errno);
        if (taken < 0) {
            if (!c->waits_for_space) watch(c, true);
            return;
        }
        uint64_t bytes = (uint64_t)taken + c->written_bytes;
        while (c->unwritten) {
            uint32_t size = c->requests[at % c->in_flight].frame->size;
            if (bytes < size) break;
            bytes -= size;
            c->unwritten--;
            at++;
        }
        c->written_bytes = (uint32_t)bytes;
    }
    if (c->waits_for_space) watch(c, false);
}

/* Makes requests until as many are unanswered as may be. Of a paired producer, as many batches at most are not fetched yet. */
static void make_requests(struct connection *c) {
    uint64_t now = now_ns();
    while (c->unanswered < c->in_flight) {
        if (c->kind == PAIRED) {
            if (c->batches_sent - c->batches_fetched >= c->in_flight) break;
            c->batches_sent_ns[c->batches_sent++ % c->in_flight] = now;
        }
        struct request *request = &c->requests[(c->oldest + c->unanswered) % c->in_flight];
        request->frame = &all_frames[c->first_frame + c->next_frame];
        request->bytes = request->frame->bytes;
        if (c->kind == FETCH) {
            if (c->end >= 0 && request->next_offset >= c->end) request->next_offset = c->start;
            uint64_t offset = htobe64((uint64_t)request->next_offset);
            memcpy(request->copy + request->frame->offset_at, &offset, sizeof offset);
            request->bytes = request->copy;
        }
        c->next_frame = (c->next_frame + 1) % c->frames;
        request->sent_ns = now;
        c->unanswered++;
        c->unwritten++;
    }
    write_requests(c);
}

/* -- answers -- */

struct reader {
    const unsigned char *at, *end;
    int connection, version;
    bool is_flexible; /* has compact lengths, and tagged fields */
};

static const unsigned char *take(struct reader *r, uint64_t size) {
    if (size > (uint64_t)(r->end - r->at)) fail("malformed", r->connection, 0);
    const unsigned char *bytes = r->at;
    r->at += size;
    return bytes;
}

static int64_t number(struct reader *r, uint32_t size) {
    const unsigned char *bytes = take(r, size);
    uint64_t value = bytes[0] & 0x80 ? ~0ull : 0;
    for (uint32_t i = 0; i < size; i++) value = value << 8 | bytes[i];
    return (int64_t)value;
}

static uint64_t varint(struct reader *r) {
    uint64_t value = 0;
    for (uint32_t shift = 0; shift < 35; shift += 7) {
        unsigned char byte = *take(r, 1);
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) break;
    }
    return value;
}

/* The length of an array, or of records. Compact lengths are one more than what they say; 0 is null, and so is -1 in old versions. */
static uint64_t count(struct reader *r) {
    if (r->is_flexible) {
        uint64_t value = varint(r);
        return value ? value - 1 : 0;
    }
    int64_t value = number(r, 4);
    return value > 0 ? (uint64_t)value : 0;
}

static void skip_string(struct reader *r) {
    if (r->is_flexible) {
        take(r, count(r));
        return;
    }
    int64_t size = number(r, 2);
    take(r, size > 0 ? (uint64_t)size : 0);
}

/* Its name, or its id. */
static void skip_topic(struct reader *r) {
    if (r->version >= TOPIC_IDS)
        take(r, 16);
    else
        skip_string(r);
}

static void skip_tags(struct reader *r) {
    if (!r->is_flexible) return;
    for (uint64_t left = varint(r); left; left--) {
        varint(r);
        take(r, varint(r));
    }
}

static void check_produced(struct reader *r) {
    for (uint64_t topics = count(r); topics; topics--) {
        skip_topic(r);
        for (uint64_t partitions = count(r); partitions; partitions--) {
            take(r, 4);
            int64_t code = number(r, 2);
            if (code) fail("code", r->connection, code);
            take(r, r->version >= 5 ? 8 + 8 + 8 : 8 + 8);
            if (r->version >= 8) {
                count(r); /* no record errors without an error */
                skip_string(r);
            }
            skip_tags(r);
        }
        skip_tags(r);
    }
}

/* The next batch is there, with the producer's first batch that was not fetched yet. */
static void batch_came(struct connection *producer, struct reader *r, int64_t base_offset, uint64_t of_records,
                       uint64_t bytes) {
    if (base_offset != producer->start) fail("foreign batch", r->connection, 0);
    producer->start += (int64_t)of_records;
    measured(now_ns() - producer->batches_sent_ns[producer->batches_fetched++ % producer->in_flight], of_records, bytes);
}

/* Walks the complete batches of the first partition's answer. */
static void check_fetched(struct connection *c, struct request *request, struct reader *r) {
    take(r, 4);
    if (r->version >= 7) {
        int64_t code = number(r, 2);
        if (code) fail("code", r->connection, code);
        take(r, 4);
    }
    if (!count(r)) fail("malformed", r->connection, 0);
    skip_topic(r);
    if (!count(r)) fail("malformed", r->connection, 0);
    take(r, 4);
    int64_t code = number(r, 2);
    if (code) fail("code", r->connection, code);
    take(r, r->version >= 5 ? 8 + 8 + 8 : 8 + 8);
    for (uint64_t aborted = count(r); aborted; aborted--) {
        take(r, 8 + 8);
        skip_tags(r);
    }
    if (r->version >= 11) take(r, 4);
    const unsigned char *first = take(r, count(r));
    struct reader batches = {.at = first, .end = r->at, .connection = r->connection};
    uint64_t found = 0, bytes = 0;
    while (batches.end - batches.at >= 61) {
        const unsigned char *batch = batches.at;
        int64_t base_offset = number(&batches, 8);
        uint64_t batch_size = 12 + (uint64_t)number(&batches, 4);
        if (batch_size < 61) fail("malformed", r->connection, 0);
        if (batch_size > (uint64_t)(batches.end - batch)) break;
        take(&batches, 23 - 12);
        request->next_offset = base_offset + number(&batches, 4) + 1;
        take(&batches, 57 - 27);
        uint64_t of_records = (uint64_t)number(&batches, 4);
        batches.at = batch + batch_size;
        found += of_records;
        bytes += batch_size;
        if (c->peer >= 0) batch_came(&all[c->peer], r, base_offset, of_records, batch_size);
    }
    if (c->peer >= 0)
        make_requests(&all[c->peer]);
    else if (found)
        measured(now_ns() - request->sent_ns, found, bytes);
}

static void answered(struct connection *c, const char *bytes, uint32_t size) {
    struct request *request = &c->requests[c->oldest];
    if (!c->unanswered) fail("malformed", c->number, 0);
    int version = request->frame->version;
    struct reader r = {
        .at = (const unsigned char *)bytes,
        .end = (const unsigned char *)bytes + size,
        .connection = c->number,
        .version = version,
        .is_flexible = version >= (c->kind == FETCH ? FETCH_FLEXIBLE : PRODUCE_FLEXIBLE),
    };
    take(&r, 4);
    skip_tags(&r);
    c->oldest = (c->oldest + 1) % c->in_flight;
    c->unanswered--;
    if (c->kind == FETCH) {
        check_fetched(c, request, &r);
    } else {
        check_produced(&r);
        if (c->kind == PRODUCE) measured(now_ns() - request->sent_ns, request->frame->records, request->frame->payload);
    }
}

static void read_answers(struct connection *c) {
    if (c->capacity - c->have < READ_BYTES) {
        c->capacity = c->have + 2 * READ_BYTES;
        c->received = realloc(c->received, c->capacity);
        if (!c->received) fail("memory", c->number, ENOMEM);
    }
    ssize_t got = read(c->fd, c->received + c->have, c->capacity - c->have);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) fail("closed", c->number, got < 0 ? errno : 0);
    c->have += (size_t)got;
    size_t at = 0;
    while (c->have - at >= 4) {
        uint32_t size;
        memcpy(&size, c->received + at, 4);
        size = be32toh(size);
        if (size > ANSWER_BYTES_MAX) fail("malformed", c->number, 0);
        if (c->have - at - 4 < size) {
            if (c->capacity - at < size + 4 + READ_BYTES) { /* room for the whole answer, so that it comes in few reads */
                c->capacity = at + size + 4 + READ_BYTES;
                c->received = realloc(c->received, c->capacity);
                if (!c->received) fail("memory", c->number, ENOMEM);
            }
            break;
        }
        answered(c, c->received + at + 4, size);
        at += 4 + size;
    }
    if (at) {
        c->have -= at;
        memmove(c->received, c->received + at, c->have);
        make_requests(c);
    }
}

/* -- the plan -- */

static void *zeroed(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) fail("memory", -1, ENOMEM);
    return memory;
}

static void open_connection(struct connection *c, const char *host, const char *port) {
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *found;
    if (getaddrinfo(host, port, &hints, &found)) fail("plan", c->number, 0);
    c->fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0) fail("connect", c->number, errno);
    struct timeval limit = {.tv_sec = CONNECT_TIMEOUT_S};
    int on = 1;
    setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(c->fd, found->ai_addr, found->ai_addrlen)) fail("connect", c->number, errno);
    freeaddrinfo(found);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
}

static void read_plan(uint64_t *warm_up_ns, uint64_t *measured_ns) {
    unsigned long warm_up_ms, measured_ms;
    uint32_t frame_count;
    if (scanf("ottla-load %lu %lu %u %u", &warm_up_ms, &measured_ms, &frame_count, &connection_count) != 4)
        fail("plan", -1, 0);
    *warm_up_ns = warm_up_ms * 1000000ull;
    *measured_ns = measured_ms * 1000000ull;
    all_frames = zeroed(frame_count, sizeof *all_frames);
    for (uint32_t i = 0; i < frame_count; i++) {
        struct frame *f = &all_frames[i];
        int read = scanf(" frame %u %u %u %d %d", &f->size, &f->records, &f->payload, &f->offset_at, &f->version);
        if (read != 5 || getchar() != '\n') fail("plan", -1, 0);
        f->bytes = zeroed(f->size, 1);
        if (fread(f->bytes, 1, f->size, stdin) != f->size) fail("plan", -1, 0);
    }
    all = zeroed(connection_count, sizeof *all);
    for (uint32_t i = 0; i < connection_count; i++) {
        struct connection *c = &all[i];
        char kind[16], host[64], port[16];
        if (scanf(" connection %15s %63s %15s %u %u %u %ld %ld %d", kind, host, port, &c->in_flight, &c->first_frame,
                  &c->frames, &c->start, &c->end, &c->peer) != 9)
            fail("plan", (int)i, 0);
        c->number = (int)i;
        c->kind = !strcmp(kind, "fetch") ? FETCH : !strcmp(kind, "idle") ? IDLE : !strcmp(kind, "paired") ? PAIRED : PRODUCE;
        c->requests = zeroed(c->in_flight, sizeof *c->requests);
        if (c->kind == PAIRED) c->batches_sent_ns = zeroed(c->in_flight, sizeof *c->batches_sent_ns);
        for (uint32_t k = 0; c->kind == FETCH && k < c->in_flight; k++) {
            struct frame *f = &all_frames[c->first_frame];
            c->requests[k].copy = zeroed(f->size, 1);
            memcpy(c->requests[k].copy, f->bytes, f->size);
            c->requests[k].next_offset = c->start;
        }
        open_connection(c, host, port);
    }
}

/* -- the run -- */

static void print_progress(uint64_t second) {
    printf("{\"second\": %lu, \"requests\": %lu, \"records\": %lu, \"bytes\": %lu}\n", second, answers, records,
           payload);
    fflush(stdout);
}

static void print_result(double seconds, double cpu) {
    uint64_t now = now_ns();
    for (uint32_t i = 0; i < connection_count; i++) { /* an answer that did not come counts as the longest, if it is */
        struct connection *c = &all[i];
        uint64_t waited = c->unanswered ? now - c->requests[c->oldest].sent_ns : 0;
        if (c->peer < 0 && waited > longest_ns) longest_ns = waited;
    }
    printf("{\"requests\": %lu, \"records\": %lu, \"bytes\": %lu, \"seconds\": %.6f, \"p50_ms\": %.6f, \"p95_ms\": %.6f, "
           "\"p99_ms\": %.6f, \"p999_ms\": %.6f, \"max_ms\": %.6f, \"client_cpu_s\": %.6f}\n",
           answers, records, payload, seconds, quantile_ms(0.5), quantile_ms(0.95), quantile_ms(0.99),
           quantile_ms(0.999), (double)longest_ns / 1e6, cpu);
}

int main(void) {
    uint64_t warm_up_ns, measured_ns;
    struct rlimit files;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    poller = epoll_create1(EPOLL_CLOEXEC);
    read_plan(&warm_up_ns, &measured_ns);
    for (uint32_t i = 0; i < connection_count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        epoll_ctl(poller, EPOLL_CTL_ADD, all[i].fd, &event);
    }
    for (uint32_t i = 0; i < connection_count; i++) make_requests(&all[i]);

    uint64_t from = now_ns() + warm_up_ns, until = from + measured_ns, second = 0;
    double cpu_before = cpu_s();
    struct epoll_event events[EVENTS];
    for (;;) {
        uint64_t now = now_ns();
        if (!counts && now >= from) {
            counts = true;
            from = now;
            until = now + measured_ns;
            cpu_before = cpu_s();
        }
        if (now >= until && (answers || now >= until + FIRST_ANSWER_S * 1000000000ull)) break;
        while (counts && now - from >= (second + 1) * 1000000000u) print_progress(++second);
        uint64_t next = counts ? from + (second + 1) * 1000000000u : from;
        if (now < until && until < next) next = until;
        int ready = epoll_wait(poller, events, EVENTS, (int)((next - now) / 1000000) + 1);
        for (int i = 0; i < ready; i++) {
            struct connection *c = &all[events[i].data.u32];
            if (events[i].events & EPOLLOUT) write_requests(c);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_answers(c);
        }
    }
    print_result((double)(now_ns() - from) / 1e9, cpu_s() - cpu_before);
    return 0;
}
