/* SPDX-License-Identifier: Apache-2.0 */
/* The file that offloaded state lives in: any range of it is what was written there, it has no
 * name, and what fails is said with rank, file and fix. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../libfsdp/core/state/offload_file.h"
#include "tap.h"

enum { NBYTES = 3 << 20, ROUNDS = 400 };

static struct fsdp_device *device;
static struct fsdp_lane *lane;

static int nfiles(const char *dir)
{
    DIR *d = opendir(dir);
    int n = -2; /* . and .. */
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

/* Its descriptor: of the open files the one that has its name. */
static int find_fd(const char *dir)
{
    char link[64], path[4096];
    for (int fd = 3; fd < 256; fd++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, path, sizeof path - 1);
        if (n > 0 && !strncmp(path, dir, strlen(dir)) &&
            memmem(path, (size_t)n, "/fsdp-offload-3.", 16))
            return fd;
    }
    return -1;
}

static void test_ranges(const char *dir)
{
    struct offload_file *file = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    char *want = calloc(1, NBYTES), *mem = aligned_alloc(OFFLOAD_FILE_BLOCK, NBYTES);
    bool same = true;

    if (!want || !mem || offload_file_create(&file, dir, NBYTES, 3, &err)) {
        ok(false, "a file in %s: %s", dir, err.text);
        goto out;
    }
    char *base = offload_file_base(file);
    ok(nfiles(dir) == 0 && find_fd(dir) >= 0, "it is there and has no name");
    ok(offload_file_holds(file, base) && offload_file_holds(file, base + NBYTES - 1) &&
           !offload_file_holds(file, base + NBYTES) && !offload_file_holds(file, base - 1) &&
           !offload_file_holds(file, mem) && !offload_file_holds(NULL, base),
       "its addresses are its own");
    srandom(5);
    for (int i = 0; i < ROUNDS && same; i++) {
        size_t pos = (size_t)random() % NBYTES, most = i % 4 ? 5000 : NBYTES, skew = i % 8;
        size_t nbytes = 1 + (size_t)random() % most;
        if (i % 5 == 0)
            pos = pos / OFFLOAD_FILE_BLOCK * OFFLOAD_FILE_BLOCK, skew = 0;
        if (nbytes > NBYTES - pos - (skew < NBYTES - pos ? skew : 0))
            nbytes = 1;
        if (skew + nbytes > NBYTES)
            skew = 0;
        for (size_t k = 0; k < nbytes; k++)
            want[pos + k] = mem[skew + k] = (char)random();
        same = !offload_file_write(file, lane, base + pos, mem + skew, nbytes, &err);
        pos -= pos < 3 ? pos : 3;
        nbytes += pos + nbytes + 5 <= NBYTES && skew + nbytes + 5 <= NBYTES ? 5 : 0;
        same = same && !offload_file_read(file, lane, mem + skew, base + pos, nbytes, &err) &&
               !fsdp_lane_sync(lane, &err) && !memcmp(mem + skew, want + pos, nbytes);
    }
    ok(same, "ranges of all kinds are read as they were written: %s", err.text);
    ok(!offload_file_read(file, lane, mem, base, NBYTES, &err) && !fsdp_lane_sync(lane, &err) &&
           !memcmp(mem, want, NBYTES),
       "and so is all of it, zeros where nothing was written");
out:
    offload_file_destroy(file);
    free(want);
    free(mem);
}

/* As a step does: units of several pieces are read into places, changed, and written behind, the
 * next ones read meanwhile into the place whose bytes may still be on their way. */
static void test_behind(const char *dir)
{
    enum { UNIT = (9 << 20) + OFFLOAD_FILE_BLOCK, UNITS = 5, PLACES = 2, STEPS = 6 };
    struct offload_file *file = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    char *place[PLACES] = {aligned_alloc(OFFLOAD_FILE_BLOCK, UNIT),
                           aligned_alloc(OFFLOAD_FILE_BLOCK, UNIT)};
    int nwrong = 0;
    bool rc =
        !place[0] || !place[1] || offload_file_create(&file, dir, (uint64_t)UNITS * UNIT, 3, &err);

    for (int i = 0; i < STEPS * UNITS && !rc; i++) {
        char *at = offload_file_base(file) + (size_t)(i % UNITS) * UNIT, *mem = place[i % PLACES];
        rc = offload_file_read(file, lane, mem, at, UNIT, &err) || fsdp_lane_sync(lane, &err);
        for (size_t k = 0; k < UNIT && !rc; k++) {
            nwrong += mem[k] != (char)(i < UNITS ? 0 : (size_t)(i - UNITS) + k / 4096);
            mem[k] = (char)((size_t)i + k / 4096);
        }
        rc = rc || offload_file_write_behind(file, lane, at, mem, UNIT, &err) ||
             ((i + 1) % UNITS == 0 && offload_file_settle(file, lane, &err));
    }
    rc = rc || fsdp_lane_sync(lane, &err);
    ok(!rc && !nwrong, "units are what was written behind: %d bytes are not; %s", nwrong, err.text);
    offload_file_destroy(file);
    free(place[0]);
    free(place[1]);
}

/* What fails behind the lane is the error of what comes next. */
static void test_fails_behind(const char *dir)
{
    struct offload_file *file = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_lane *own = NULL;
    struct rlimit before, none = {0};
    char *mem = aligned_alloc(OFFLOAD_FILE_BLOCK, NBYTES);

    getrlimit(RLIMIT_FSIZE, &before);
    none.rlim_max = before.rlim_max;
    if (!mem || fsdp_lane_create(&own, device, "copies", &err) ||
        offload_file_create(&file, dir, NBYTES, 3, &err)) {
        ok(false, "a file in %s: %s", dir, err.text);
        goto out;
    }
    memset(mem, 1, NBYTES);
    setrlimit(RLIMIT_FSIZE, &none);
    offload_file_write_behind(file, own, offload_file_base(file), mem, NBYTES, NULL);
    offload_file_settle(file, own, NULL);
    const int rc = fsdp_lane_sync(own, &err);
    setrlimit(RLIMIT_FSIZE, &before);
    ok(rc == FSDP_EIO && strstr(err.text, "rank 3 on ") && strstr(err.text, "File too large"),
       "settling fails with it: %s", err.text);
    err = (struct fsdp_err)FSDP_ERR_INIT;
    ok(offload_file_read(file, lane, mem, offload_file_base(file), NBYTES, &err) == FSDP_EIO ||
           fsdp_lane_sync(lane, &err) == FSDP_EIO,
       "and so does a read on another lane: %s", err.text);
out:
    fsdp_lane_destroy(own);
    offload_file_destroy(file);
    free(mem);
}

/* The lane's error after one block of a file has been written, or read, in trouble. */
static void fail_with(const char *dir, bool write, const char *why)
{
    struct offload_file *file = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_lane *own = NULL;
    struct rlimit before, none = {0};
    char block[OFFLOAD_FILE_BLOCK] = "";

    if (fsdp_lane_create(&own, device, "copies", &err) ||
        offload_file_create(&file, dir, NBYTES, 3, &err)) {
        ok(false, "a file in %s: %s", dir, err.text);
        goto out;
    }
    getrlimit(RLIMIT_FSIZE, &before);
    none.rlim_max = before.rlim_max;
    if (write) {
        setrlimit(RLIMIT_FSIZE, &none);
        offload_file_write(file, own, offload_file_base(file), block, sizeof block, NULL);
        setrlimit(RLIMIT_FSIZE, &before);
    } else {
        ok(ftruncate(find_fd(dir), 0) == 0, "the file is cut");
        offload_file_read(file, own, block, offload_file_base(file), sizeof block, NULL);
    }
    ok(fsdp_lane_sync(own, &err) == FSDP_EIO && strstr(err.text, "rank 3 on ") &&
           strstr(err.text, dir) && strstr(err.text, why) && strstr(err.text, "offload_dir"),
       "the lane's error: %s", err.text);
out:
    fsdp_lane_destroy(own);
    offload_file_destroy(file);
}

static void test_refused(void)
{
    struct offload_file *file = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;

    ok(offload_file_create(&file, "/proc/none", NBYTES, 3, &err) == FSDP_EIO && !file &&
           strstr(err.text, "/proc/none"),
       "no folder: %s", err.text);
}

int main(void)
{
    char dir[4096];

    snprintf(dir, sizeof dir, "%s/disk", getenv("TEST_TMP"));
    signal(SIGXFSZ, SIG_IGN);
    if (mkdir(dir, 0700) || fsdp_device_open(&device, "cpu", 0, NULL) ||
        fsdp_lane_create(&lane, device, "lane", NULL))
        abort();
    test_ranges(dir);
    test_behind(dir);
    test_refused();
    fail_with(dir, true, "File too large");
    fail_with(dir, false, "shorter");
    test_fails_behind(dir); /* last: the lane has failed then */
    fsdp_lane_destroy(lane);
    fsdp_device_close(device);
    return tap_done();
}
