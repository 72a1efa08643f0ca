/* SPDX-License-Identifier: Apache-2.0 */
/* Event files byte by byte: lengths, checksums, the fields of Protocol Buffers. TensorBoard's own
 * reader reads them in tests/watch. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/report/tfevents.h"
#include "tap.h"

static char dir[] = "/tmp/test_tfevents_XXXXXX";
static struct fsdp_err err = FSDP_ERR_INIT;

/* CRC-32C bit by bit. */
static uint32_t crc_of(const unsigned char *data, size_t nbytes)
{
    uint32_t crc = ~0u;

    for (size_t i = 0; i < nbytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static uint64_t number(const unsigned char *at, int nbytes)
{
    uint64_t value = 0;

    for (int i = 0; i < nbytes; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

/* The only file of a folder. */
static size_t read_file(const char *folder, unsigned char *out, size_t room)
{
    char command[200], path[300] = "";
    snprintf(command, sizeof command, "ls -d %s/* | tail -n 1", folder);
    FILE *list = popen(command, "r");
    if (!list || !fgets(path, sizeof path, list))
        abort();
    pclose(list);
    path[strcspn(path, "\n")] = 0;
    FILE *in = fopen(path, "r");
    if (!in)
        abort();
    size_t nbytes = fread(out, 1, room, in);
    fclose(in);
    return nbytes;
}

/* Checks the records, and gives the last one. */
static int check_records(const unsigned char *data, size_t nbytes, const unsigned char **last,
                         size_t *last_nbytes)
{
    int nrecords = 0;

    for (size_t at = 0; at + 16 <= nbytes; nrecords++) {
        const size_t length = number(data + at, 8);
        if (at + 16 + length > nbytes || number(data + at + 8, 4) != crc_of(data + at, 8) ||
            number(data + at + 12 + length, 4) != crc_of(data + at + 12, length))
            return -1;
        *last = data + at + 12;
        *last_nbytes = length;
        at += 16 + length;
        if (at == nbytes)
            return nrecords + 1;
    }
    return -1;
}

static void check_scalars(void)
{
    static unsigned char data[4096];
    static const unsigned char expected[] = {
        0x09, 0,    0,    0,    0,   0,    0,   0xe0, 0x3f,       /* 1: wall time 0.5 */
        0x10, 0xac, 0x02,                                         /* 2: step 300 */
        0x2a, 0x17,                                               /* 5: summary of */
        0x0a, 0x08, 0x0a, 0x01, 'a', 0x15, 0,   0,    0x80, 0xbf, /* a = -1 */
        0x0a, 0x0b, 0x0a, 0x04, 'b', '/',  'c', 'd',  0x15, 0,    0, 0xc0, 0x7f}; /* b/cd = NaN */
    const unsigned char *last;
    size_t nbytes, last_nbytes;
    struct tfevents *e = NULL;
    char folder[100];

    snprintf(folder, sizeof folder, "%s/deep/er", dir);
    ok(tfevents_open(&e, folder, 7, 1000, &err) == FSDP_OK, "folders are created %s", err.text);
    nbytes = read_file(folder, data, sizeof data);
    ok(check_records(data, nbytes, &last, &last_nbytes) == 2, "version and start of a session");
    ok(memmem(data, nbytes, "brain.Event:2", 13) && last_nbytes == 15 && last[9] == 0x10 &&
           last[10] == 8 && !memcmp(last + 11, "\x3a\x02\x08\x01", 4),
       "which begins at the step after 7");
    tfevents_begin(e, 300, 0.5);
    ok(tfevents_scalar(e, "a", -1, &err) == FSDP_OK &&
           tfevents_scalar(e, "b/cd", (double)__builtin_nanf(""), &err) == FSDP_OK &&
           tfevents_end(e, &err) == FSDP_OK,
       "two values");
    nbytes = read_file(folder, data, sizeof data);
    ok(check_records(data, nbytes, &last, &last_nbytes) == 3, "are one record");
    ok(last_nbytes == sizeof expected && !memcmp(last, expected, sizeof expected), "byte for byte");
    tfevents_close(e);
    tfevents_close(NULL);
}

/* Every value is in one bucket, whatever they are. */
static void check_histogram(const double *values, int nvalues, const char *what)
{
    static unsigned char data[4096];
    const unsigned char *last;
    size_t nbytes, last_nbytes;
    struct tfevents *e = NULL;
    double sum = 0, count;
    char folder[100];

    snprintf(folder, sizeof folder, "%s/%s", dir, what);
    if (tfevents_open(&e, folder, 0, 1000, &err))
        abort();
    tfevents_begin(e, 1, 1);
    bool good = tfevents_histogram(e, "h", values, nvalues, &err) == FSDP_OK &&
                tfevents_end(e, &err) == FSDP_OK;
    nbytes = read_file(folder, data, sizeof data);
    good &= check_records(data, nbytes, &last, &last_nbytes) == 3;
    for (int i = 0; i < 30; i++) { /* the record ends with the buckets */
        memcpy(&count, last + last_nbytes - 240 + 8 * i, 8);
        sum += count;
    }
    ok(good && sum == nvalues, "a histogram of %s", what);
    tfevents_close(e);
}

static void check_names(void)
{
    struct tfevents *e[3];
    struct stat st;
    char path[300], host[100] = "";

    gethostname(host, sizeof host - 1);
    /* Somebody's file, whose number has no next one. */
    snprintf(path, sizeof path, "%s/events.out.tfevents.9223372036854775807.x", dir);
    FILE *odd = fopen(path, "w");
    if (odd)
        fclose(odd);
    for (int i = 0; i < 3; i++) /* a clock that stands, and one that was set back */
        if (tfevents_open(&e[i], dir, 0, i < 2 ? 5000 : 4000, &err))
            abort();
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/events.out.tfevents.%010d.%s", dir, 5000 + i, host);
        ok(stat(path, &st) == 0 && st.st_size > 0, "file %d sorts behind those before it", i);
        tfevents_close(e[i]);
    }
    ok(tfevents_open(&e[0], "/dev/null/x", 0, 1, &err) != FSDP_OK && strstr(err.text, "/dev/null"),
       "nowhere to write: %s", err.text);
    snprintf(path, sizeof path, "%s/events.out.tfevents.9223372036854775807.x", dir);
    remove(path);
}

int main(void)
{
    char command[64];

    if (!mkdtemp(dir))
        return 1;
    check_scalars();
    check_histogram((double[]){1, 2, 3, 10}, 4, "some");
    check_histogram((double[]){2, 2}, 2, "equal");
    check_histogram((double[]){0}, 1, "zero");
    check_histogram((double[]){1e-300, 1e300}, 2, "far");
    check_names();
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ok(system(command) == 0, "cleaned up");
    return tap_done();
}
