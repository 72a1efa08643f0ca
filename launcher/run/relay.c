/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output of ranks other than 0 passes through the launcher line by line, so that lines of different
 * ranks never mix. Rank 0 writes where the launcher writes.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "impl.h"

enum {
    READ_NBYTES = 1 << 16,
    LINE_MAX_NBYTES = 1 << 20, /* a line longer than this is passed on in parts */
    SINK_MAX_NBYTES = 4 << 20,
    ATOMIC_NBYTES = 4096, /* PIPE_BUF: what a pipe takes in one piece */
};

static bool append_bytes(char **data, size_t *nbytes, size_t *capacity, const void *more,
                         size_t len)
{
    if (*nbytes + len > *capacity) {
        size_t wanted = 2 * (*nbytes + len);
        char *grown = fsdp_alloc(wanted, 1, "output", NULL);
        if (!grown)
            return false;
        if (*nbytes)
            memcpy(grown, *data, *nbytes);
        fsdp_free(*data);
        *data = grown;
        *capacity = wanted;
    }
    if (len)
        memcpy(*data + *nbytes, more, len);
    *nbytes += len;
    return true;
}

static void sink_line(struct launch_relay *relay, const char *line, size_t len)
{
    struct launch_sink *to = relay->to;
    char prefix[32];
    int plen = snprintf(prefix, sizeof prefix, "[rank %d] ", relay->rank);
    if (to->dead)
        return;
    if (relay->prefix)
        append_bytes(&to->data, &to->nbytes, &to->capacity, prefix, (size_t)plen);
    append_bytes(&to->data, &to->nbytes, &to->capacity, line, len);
}

static void pass_lines(struct launch_relay *relay)
{
    size_t pos = 0;
    char *end;
    while ((end = memchr(relay->data + pos, '\n', relay->nbytes - pos))) {
        size_t len = (size_t)(end - (relay->data + pos)) + 1;
        sink_line(relay, relay->data + pos, len);
        pos += len;
    }
    if (relay->nbytes - pos > LINE_MAX_NBYTES) {
        sink_line(relay, relay->data + pos, relay->nbytes - pos);
        pos = relay->nbytes;
    }
    memmove(relay->data, relay->data + pos, relay->nbytes - pos);
    relay->nbytes -= pos;
}

void launch_relay_close(struct launch_relay *relay)
{
    if (relay->fd >= 0)
        close(relay->fd);
    relay->fd = -1;
    if (relay->nbytes) { /* a last line without its end */
        if (append_bytes(&relay->data, &relay->nbytes, &relay->capacity, "\n", 1))
            sink_line(relay, relay->data, relay->nbytes);
        relay->nbytes = 0;
    }
    fsdp_free(relay->data);
    relay->data = NULL;
    relay->capacity = 0;
}

void launch_relay_read(struct launch_relay *relay)
{
    static char buf[READ_NBYTES];
    while (relay->fd >= 0 && launch_sink_hungry(relay->to)) {
        ssize_t got = read(relay->fd, buf, sizeof buf);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return;
        if (got <= 0 ||
            !append_bytes(&relay->data, &relay->nbytes, &relay->capacity, buf, (size_t)got)) {
            launch_relay_close(relay);
            return;
        }
        pass_lines(relay);
    }
}

bool launch_sink_hungry(const struct launch_sink *sink)
{
    return sink->nbytes < SINK_MAX_NBYTES;
}

/* Whole lines as far as they go into one atomic write. */
static size_t next_piece(const struct launch_sink *sink)
{
    if (sink->nbytes <= ATOMIC_NBYTES)
        return sink->nbytes;
    const char *end = memrchr(sink->data, '\n', ATOMIC_NBYTES);
    return end ? (size_t)(end - sink->data) + 1 : ATOMIC_NBYTES;
}

void launch_sink_flush(struct launch_sink *sink)
{
    size_t pos = 0;
    struct launch_sink rest = *sink;
    while (rest.nbytes) {
        struct pollfd pf = {sink->fd, POLLOUT, 0};
        if (poll(&pf, 1, 0) <= 0)
            break;
        ssize_t done = write(sink->fd, rest.data, next_piece(&rest));
        if (done < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (done < 0) { /* nobody reads: what was for them is nobody's loss */
            sink->dead = true;
            sink->nbytes = 0;
            return;
        }
        pos += (size_t)done;
        rest.data += done;
        rest.nbytes -= (size_t)done;
    }
    if (pos)
        memmove(sink->data, sink->data + pos, rest.nbytes);
    sink->nbytes = rest.nbytes;
}
