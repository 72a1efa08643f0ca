/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <isa-l/crc.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tfevents.h"

#define PREFIX "events.out.tfevents."

struct tfevents {
    int fd;
    char *path;
    /* The event that is being collected: its own fields, and those of its summary. */
    struct bytes {
        unsigned char *at;
        size_t nbytes, room;
    } event, summary, part, inner;
};

/* ---- Protocol Buffers ------------------------------------------------------------------------ */

enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static int put_raw(struct bytes *to, const void *from, size_t nbytes, struct fsdp_err *err)
{
    if (to->nbytes + nbytes > to->room) {
        const size_t room = 2 * (to->nbytes + nbytes) + 256;
        unsigned char *grown = fsdp_alloc(room, 1, "an event of TensorBoard", err);
        if (!grown)
            return FSDP_ENOMEM;
        if (to->nbytes)
            memcpy(grown, to->at, to->nbytes);
        fsdp_free(to->at);
        to->at = grown;
        to->room = room;
    }
    if (nbytes)
        memcpy(to->at + to->nbytes, from, nbytes);
    to->nbytes += nbytes;
    return FSDP_OK;
}

static int put_varint(struct bytes *to, uint64_t value, struct fsdp_err *err)
{
    unsigned char text[10];
    size_t len = 0;

    do {
        text[len] = (unsigned char)(value & 0x7f);
        value >>= 7;
        text[len++] |= value ? 0x80 : 0;
    } while (value);
    return put_raw(to, text, len, err);
}

static int put_key(struct bytes *to, int field, enum wire wire, struct fsdp_err *err)
{
    return put_varint(to, (uint64_t)field << 3 | wire, err);
}

static void little_endian(unsigned char *out, uint64_t bits, int nbytes)
{
    for (int i = 0; i < nbytes; i++)
        out[i] = (unsigned char)(bits >> 8 * i);
}

static int put_double_bits(struct bytes *to, double value, struct fsdp_err *err)
{
    unsigned char text[8];
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    little_endian(text, bits, sizeof text);
    return put_raw(to, text, sizeof text, err);
}

static int put_double(struct bytes *to, int field, double value, struct fsdp_err *err)
{
    FSDP_TRY(put_key(to, field, WIRE_64, err));
    return put_double_bits(to, value, err);
}

static int put_float(struct bytes *to, int field, float value, struct fsdp_err *err)
{
    unsigned char text[4];
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    little_endian(text, bits, sizeof text);
    FSDP_TRY(put_key(to, field, WIRE_32, err));
    return put_raw(to, text, sizeof text, err);
}

static int put_int(struct bytes *to, int field, uint64_t value, struct fsdp_err *err)
{
    FSDP_TRY(put_key(to, field, WIRE_VARINT, err));
    return put_varint(to, value, err);
}

static int put_bytes(struct bytes *to, int field, const void *from, size_t nbytes,
                     struct fsdp_err *err)
{
    FSDP_TRY(put_key(to, field, WIRE_BYTES, err));
    FSDP_TRY(put_varint(to, nbytes, err));
    return put_raw(to, from, nbytes, err);
}

static int put_text(struct bytes *to, int field, const char *text, struct fsdp_err *err)
{
    return put_bytes(to, field, text, strlen(text), err);
}

/* ---- records --------------------------------------------------------------------------------- */

/* CRC-32C, turned and shifted: a checksum of data that holds checksums would tell little. */
static uint32_t masked_crc(const void *data, size_t nbytes)
{
    uint32_t crc = ~0u;

    for (const unsigned char *at = data; nbytes;) { /* the library counts in int */
        const int now = nbytes < 1u << 30 ? (int)nbytes : 1 << 30;
        crc = crc32_iscsi((unsigned char *)(uintptr_t)at, now, crc);
        at += now;
        nbytes -= (size_t)now;
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static int put_crc(struct bytes *to, const void *data, size_t nbytes, struct fsdp_err *err)
{
    unsigned char text[4];

    little_endian(text, masked_crc(data, nbytes), sizeof text);
    return put_raw(to, text, sizeof text, err);
}

/* In one write, so that a reader that follows the file seldom sees half a record. */
static int write_event(struct tfevents *e, struct fsdp_err *err)
{
    unsigned char length[8];

    little_endian(length, e->event.nbytes, sizeof length);
    e->part.nbytes = 0;
    FSDP_TRY(put_raw(&e->part, length, sizeof length, err));
    FSDP_TRY(put_crc(&e->part, length, sizeof length, err));
    FSDP_TRY(put_raw(&e->part, e->event.at, e->event.nbytes, err));
    FSDP_TRY(put_crc(&e->part, e->event.at, e->event.nbytes, err));
    const ssize_t done = write(e->fd, e->part.at, e->part.nbytes);
    if (done < 0)
        return fsdp_err_sys(err, errno, "TensorBoard: %s", e->path);
    if ((size_t)done < e->part.nbytes)
        return fsdp_err_sys(err, ENOSPC, "TensorBoard: %s", e->path);
    return FSDP_OK;
}

/* ---- events ---------------------------------------------------------------------------------- */

enum { EVENT_WALL = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { VALUE_TAG = 1, VALUE_FLOAT = 2, VALUE_HISTOGRAM = 5, VALUE_TENSOR = 8, VALUE_METADATA = 9 };

static int begin_event(struct tfevents *e, int64_t step, double wall, struct fsdp_err *err)
{
    e->event.nbytes = 0;
    FSDP_TRY(put_double(&e->event, EVENT_WALL, wall, err));
    return put_int(&e->event, EVENT_STEP, (uint64_t)step, err);
}

void tfevents_begin(struct tfevents *e, int64_t step, double wall)
{
    e->summary.nbytes = 0;
    /* What does not fit is said by the first value. */
    if (begin_event(e, step, wall, NULL) != FSDP_OK)
        e->event.nbytes = 0;
}

/* e->part is a value: it joins the summary. */
static int take_value(struct tfevents *e, struct fsdp_err *err)
{
    return put_bytes(&e->summary, 1, e->part.at, e->part.nbytes, err);
}

static int begin_value(struct tfevents *e, const char *tag, struct fsdp_err *err)
{
    e->part.nbytes = 0;
    return put_text(&e->part, VALUE_TAG, tag, err);
}

int tfevents_scalar(struct tfevents *e, const char *tag, double value, struct fsdp_err *err)
{
    FSDP_TRY(begin_value(e, tag, err));
    FSDP_TRY(put_float(&e->part, VALUE_FLOAT, (float)value, err));
    return take_value(e, err);
}

/* A tensor of one string, for the plug-in that shows texts. */
int tfevents_text(struct tfevents *e, const char *tag, const char *text, struct fsdp_err *err)
{
    enum { DT_STRING = 7 };
    static const char plugin[] = "\x0a\x04text"; /* field 1: "text" */

    FSDP_TRY(begin_value(e, tag, err));
    e->inner.nbytes = 0;
    FSDP_TRY(put_int(&e->inner, 1, DT_STRING, err));
    FSDP_TRY(put_bytes(&e->inner, 2, "", 0, err)); /* its shape: none */
    FSDP_TRY(put_text(&e->inner, 8, text, err));
    FSDP_TRY(put_bytes(&e->part, VALUE_TENSOR, e->inner.at, e->inner.nbytes, err));
    e->inner.nbytes = 0;
    FSDP_TRY(put_bytes(&e->inner, 1, plugin, sizeof plugin - 1, err));
    FSDP_TRY(put_bytes(&e->part, VALUE_METADATA, e->inner.at, e->inner.nbytes, err));
    return take_value(e, err);
}

/* Packed doubles of a histogram: the buckets' upper limits, or how many values each has. */
static int put_buckets(struct bytes *to, int field, const double *list, int nbuckets,
                       struct fsdp_err *err)
{
    FSDP_TRY(put_key(to, field, WIRE_BYTES, err));
    FSDP_TRY(put_varint(to, 8 * (uint64_t)nbuckets, err));
    for (int i = 0; i < nbuckets; i++)
        FSDP_TRY(put_double_bits(to, list[i], err));
    return FSDP_OK;
}

/* Buckets of equal width from the least to the greatest value. */
int tfevents_histogram(struct tfevents *e, const char *tag, const double *values, int nvalues,
                       struct fsdp_err *err)
{
    enum { NBUCKETS = 30 };
    double limits[NBUCKETS], counts[NBUCKETS] = {0}, sum = 0, squares = 0;
    double least = values[0], most = values[0];

    for (int i = 0; i < nvalues; i++) {
        least = fmin(least, values[i]);
        most = fmax(most, values[i]);
        sum += values[i];
        squares += values[i] * values[i];
    }
    const double width = (most > least ? most - least : 1e-12 + fabs(most) * 1e-6) / NBUCKETS;
    for (int i = 0; i < NBUCKETS; i++)
        limits[i] = least + width * (i + 1);
    for (int i = 0; i < nvalues; i++) {
        const int at = (int)((values[i] - least) / width);
        counts[at < NBUCKETS ? at : NBUCKETS - 1]++;
    }
    const double fields[] = {least, most, nvalues, sum, squares};
    FSDP_TRY(begin_value(e, tag, err));
    e->inner.nbytes = 0;
    for (int i = 0; i < 5; i++)
        FSDP_TRY(put_double(&e->inner, i + 1, fields[i], err));
    FSDP_TRY(put_buckets(&e->inner, 6, limits, NBUCKETS, err));
    FSDP_TRY(put_buckets(&e->inner, 7, counts, NBUCKETS, err));
    FSDP_TRY(put_bytes(&e->part, VALUE_HISTOGRAM, e->inner.at, e->inner.nbytes, err));
    return take_value(e, err);
}

int tfevents_end(struct tfevents *e, struct fsdp_err *err)
{
    if (!e->event.nbytes)
        return fsdp_err_set(err, FSDP_ENOMEM, "TensorBoard: out of memory");
    FSDP_TRY(put_bytes(&e->event, EVENT_SUMMARY, e->summary.at, e->summary.nbytes, err));
    return write_event(e, err);
}

/* ---- the file -------------------------------------------------------------------------------- */

/* The latest second in the names of files, -1: there are none. What is longer than a time is no
 * time. */
static int64_t latest_second(const char *folder)
{
    const int64_t most = 9999999999;
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    int64_t latest = -1, second;

    while (dir && (entry = readdir(dir)) != NULL)
        if (sscanf(entry->d_name, PREFIX "%" SCNd64, &second) == 1 && second > latest &&
            second < most)
            latest = second;
    if (dir)
        closedir(dir);
    return latest;
}

static int open_file(struct tfevents *e, const char *folder, double wall, struct fsdp_err *err)
{
    const int64_t latest = latest_second(folder);
    int64_t second = (int64_t)wall;
    char host[256] = "host";

    if (second <= latest)
        second = latest + 1;
    if (gethostname(host, sizeof host - 1) != 0)
        snprintf(host, sizeof host, "host");
    for (int tries = 0; e->fd < 0 && (!tries || errno == EEXIST) && tries < 100; tries++) {
        fsdp_free(e->path); /* another run has begun its file in the same second */
        e->path = fsdp_sprintf(err, "%s/" PREFIX "%010" PRId64 ".%s", folder, second + tries, host);
        if (!e->path)
            return FSDP_ENOMEM;
        e->fd = open(e->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    }
    return e->fd < 0 ? fsdp_err_sys(err, errno, "TensorBoard: %s", e->path) : FSDP_OK;
}

/* The version, which comes first; then the start of a session, from whose step on a reader drops
 * what it has seen before. */
static int write_start(struct tfevents *e, int64_t after, double wall, struct fsdp_err *err)
{
    static const char start[] = "\x08\x01"; /* field 1: START */

    FSDP_TRY(begin_event(e, 0, wall, err));
    FSDP_TRY(put_text(&e->event, EVENT_VERSION, "brain.Event:2", err));
    FSDP_TRY(write_event(e, err));
    FSDP_TRY(begin_event(e, after + 1, wall, err));
    FSDP_TRY(put_bytes(&e->event, EVENT_SESSION, start, sizeof start - 1, err));
    return write_event(e, err);
}

int tfevents_open(struct tfevents **out, const char *folder, int64_t after, double wall,
                  struct fsdp_err *err)
{
    FSDP_TRY(fsdp_err_prefix(err, fsdp_folder_make(folder, 0777, err), "TensorBoard: "));
    struct tfevents *e = fsdp_alloc(1, sizeof *e, "event file", err);
    if (!e)
        return FSDP_ENOMEM;
    e->fd = -1;
    int rc = open_file(e, folder, wall, err);
    if (rc == FSDP_OK)
        rc = write_start(e, after, wall, err);
    if (rc)
        tfevents_close(e);
    else
        *out = e;
    return rc;
}

void tfevents_close(struct tfevents *e)
{
    if (!e)
        return;
    if (e->fd >= 0)
        close(e->fd);
    fsdp_free(e->inner.at);
    fsdp_free(e->part.at);
    fsdp_free(e->summary.at);
    fsdp_free(e->event.at);
    fsdp_free(e->path);
    fsdp_free(e);
}
