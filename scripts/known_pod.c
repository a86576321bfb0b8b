/* A pod with a known time line, for scripts/bench_load.py: as fast as can be, one thread on epoll.
 *
 *     known_pod FIRST_US GAP_US TOKENS
 *
 * It answers every request with an event stream: head at once, the first token FIRST_US after the
 * request had arrived (by the kernel's stamp), TOKENS in all, GAP_US apart. It prints its port, and,
 * when its standard input ends, a line for each request: x-request-id, and microseconds from its
 * arrival to the writing of each token. The line before says how late its own writes were: p50, p99
 * and maximum, microseconds. What it did is what counts, so its own lateness
 * is no error of whoever measures with it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_TIMESTAMPING
#define SO_TIMESTAMPING 37
#endif
#define MOST_FDS 16384
#define MOST_REQUESTS (1 << 15)
#define LATE_BUCKETS 200000 /* microseconds */

typedef struct { char id[80]; int64_t arrived; int32_t *written; } Request;
typedef struct { char *data; size_t size, room; Request *request; int sent; } Connection;
typedef struct { int64_t due; int fd; } Entry;
typedef struct { Entry *entries; size_t head, tail, mask; } Queue;

static Connection connections[MOST_FDS];
static Request *requests;
static size_t asked;
static Queue firsts, nexts; /* each in order of its due times, so no heap is needed */
static int64_t first_us, gap_us;
static int tokens;
static uint32_t late[LATE_BUCKETS + 1];

static const char HEAD[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                           "transfer-encoding: chunked\r\n\r\n";
static char token[512], final[1024];
static int token_size, final_size;

static int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void push(Queue *queue, int64_t due, int fd) {
    queue->entries[queue->tail++ & queue->mask] = (Entry){due, fd};
}

static Queue *next_queue(void) {
    int has_first = firsts.head != firsts.tail, has_next = nexts.head != nexts.tail;
    if (!has_first && !has_next) return NULL;
    if (!has_first) return &nexts;
    if (!has_next) return &firsts;
    int64_t a = firsts.entries[firsts.head & firsts.mask].due;
    return a <= nexts.entries[nexts.head & nexts.mask].due ? &firsts : &nexts;
}

static int chunk(char *to, size_t room, const char *body) {
    return snprintf(to, room, "%zx\r\n%s\r\n", strlen(body), body);
}

static void make_chunks(void) {
    char body[900];
    token_size = chunk(token, sizeof token,
        "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\","
        "\"created\":1795975513,\"model\":\"tiny\",\"choices\":[{\"index\":0,\"delta\":{\"content\":"
        "\" word\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n");
    snprintf(body, sizeof body,
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":%d,"
        "\"prompt_tokens_details\":{\"cached_tokens\":0}}}\n\ndata: [DONE]\n\n", tokens);
    final_size = chunk(final, sizeof final, body);
    memcpy(final + final_size, "0\r\n\r\n", 6);
    final_size += 5;
}

static void begin(int fd, int64_t arrived) {
    Connection *c = &connections[fd];
    char *id = strcasestr(c->data, "\r\nx-request-id:");
    Request *r = &requests[asked++ % MOST_REQUESTS];
    r->id[0] = 0;
    if (!r->written) r->written = malloc(tokens * sizeof *r->written);
    if (id) sscanf(id + 15, " %79[^\r\n]", r->id);
    r->arrived = arrived;
    c->request = r;
    c->sent = 0;
    c->size = 0;
    if (send(fd, HEAD, sizeof HEAD - 1, MSG_NOSIGNAL) < 0) return;
    push(&firsts, arrived + first_us, fd);
}

static void readable(int fd, int poll) {
    Connection *c = &connections[fd];
    char control[256];
    if (c->room - c->size < 65536) c->data = realloc(c->data, c->room += 262144);
    struct iovec v = {c->data + c->size, c->room - c->size - 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control,
                       .msg_controllen = sizeof control};
    ssize_t got = recvmsg(fd, &m, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        epoll_ctl(poll, EPOLL_CTL_DEL, fd, NULL);
        close(fd);
        free(c->data);
        memset(c, 0, sizeof *c);
        return;
    }
    int64_t at = now_us();
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h))
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SO_TIMESTAMPING) {
            struct timespec *t = (struct timespec *)CMSG_DATA(h);
            if (t->tv_sec) at = (int64_t)t->tv_sec * 1000000 + t->tv_nsec / 1000;
        }
    c->size += got;
    c->data[c->size] = 0;
    char *end = strstr(c->data, "\r\n\r\n");
    char *length = end ? strcasestr(c->data, "\r\ncontent-length:") : NULL;
    size_t want = end ? (size_t)(end + 4 - c->data) + (length ? strtoul(length + 17, NULL, 10) : 0)
                      : SIZE_MAX;
    if (c->size >= want) begin(fd, at);
}

static void write_due(void) {
    for (Queue *q; (q = next_queue());) {
        Entry e = q->entries[q->head & q->mask];
        int64_t now = now_us();
        if (e.due > now) return;
        q->head++;
        Connection *c = &connections[e.fd];
        if (!c->request) continue; /* the client has gone */
        int64_t lag = now - e.due;
        late[lag > LATE_BUCKETS ? LATE_BUCKETS : lag]++;
        c->request->written[c->sent++] = now - c->request->arrived;
        send(e.fd, token, token_size, MSG_NOSIGNAL);
        if (c->sent < tokens) {
            push(&nexts, e.due + gap_us, e.fd);
        } else {
            c->request = NULL;
            send(e.fd, final, final_size, MSG_NOSIGNAL);
        }
    }
}

static void arm(int timer) {
    Queue *q = next_queue();
    if (!q) return;
    int64_t due = q->entries[q->head & q->mask].due;
    struct itimerspec when = {.it_value = {due / 1000000, due % 1000000 * 1000}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
}

static int64_t late_at(double share) {
    uint64_t all = 0, seen = 0;
    for (int i = 0; i <= LATE_BUCKETS; i++) all += late[i];
    for (int i = 0; i <= LATE_BUCKETS; i++)
        if ((seen += late[i]) >= share * all) return i;
    return LATE_BUCKETS;
}

static void watch(int poll, int fd) {
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(poll, EPOLL_CTL_ADD, fd, &e);
}

static void accept_one(int listener, int poll) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), one = 1;
    if (fd < 0) return;
    if (fd >= MOST_FDS) { close(fd); return; }
    int stamps = 1 << 3 | 1 << 4; /* receive in software, and report it */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &stamps, sizeof stamps);
    watch(poll, fd);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    first_us = atoll(argv[1]), gap_us = atoll(argv[2]), tokens = atoi(argv[3]);
    struct rlimit most = {MOST_FDS, MOST_FDS};
    setrlimit(RLIMIT_NOFILE, &most);
    requests = calloc(MOST_REQUESTS, sizeof *requests);
    firsts = nexts = (Queue){.mask = MOST_FDS - 1};
    firsts.entries = calloc(MOST_FDS, sizeof(Entry));
    nexts.entries = calloc(MOST_FDS, sizeof(Entry));
    make_chunks();
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), poll = epoll_create1(0);
    int timer = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK);
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 4096)) return 1;
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("http://127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    watch(poll, listener), watch(poll, timer), watch(poll, 0);
    for (int over = 0; !over;) {
        struct epoll_event events[256];
        arm(timer);
        int ready = epoll_wait(poll, events, 256, -1);
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;
            uint64_t ticks;
            if (fd == 0) over = 1;
            else if (fd == timer) (void)!read(timer, &ticks, sizeof ticks);
            else if (fd == listener) accept_one(listener, poll);
            else readable(fd, poll);
            if (i % 8 == 7) write_due(); /* a burst of requests does not hold tokens up */
        }
        write_due();
    }
    printf("%ld %ld %ld\n", (long)late_at(0.5), (long)late_at(0.99), (long)late_at(1.0));
    for (size_t i = 0; i < asked && i < MOST_REQUESTS; i++) {
        Request *r = &requests[i];
        printf("%s", r->id);
        for (int n = 0; n < tokens; n++) printf(" %d", r->written[n]);
        printf("\n");
    }
    return 0;
}
