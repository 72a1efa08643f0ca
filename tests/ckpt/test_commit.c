/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process is killed, a call fails, or the disk fills up, at every store call of a save in turn.
 * Always: the previous checkpoint loads, nothing half-made is taken for a checkpoint, and the next
 * save works.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include "fake_state.h"

enum { OLD_SEED = 1, NEW_SEED = 2 };

/* What must hold after the struck save. Removes its remains, so that the next round begins alike.
 */
static bool recovers(const char *root, bool killed, bool saved)
{
    char latest[500], path[500];
    struct fsdp_err err = FSDP_ERR_INIT;
    bool good = !ckpt_latest(latest, sizeof latest, root, &err);
    bool new_one = good && strstr(latest, "step-00000002") != NULL;

    /* A failed save publishes nothing; a kill after the rename leaves a good checkpoint. */
    good &= killed || saved == new_one;
    good &= fake_holds(root, new_one ? NEW_SEED : OLD_SEED);
    snprintf(path, sizeof path, "%s/step-00000001", root);
    good &= fake_holds(path, OLD_SEED);
    /* A failure leaves no remains; of a killed job they stay and do no harm. */
    if (!killed && count_entries(root, ".tmp.") != 0) {
        diag("remains after a failure");
        good = false;
    }
    if (!new_one)
        good &= fake_save_here(root, 2, NEW_SEED) == 0 && fake_holds(root, NEW_SEED);
    struct ckpt_names names;
    ckpt_store_names(&names, &ckpt_store_posix, root, NULL);
    for (int i = 0; i < names.nnames; i++) {
        snprintf(path, sizeof path, "%s/%s", root, names.names[i]);
        if (strcmp(names.names[i], "step-00000001"))
            remove_all(&ckpt_store_posix, path, NULL);
    }
    ckpt_names_free(&names);
    return good;
}

static void strike_all(const char *root, int rank, enum ckpt_store_fault fault,
                       enum ckpt_compress compress, const char *what, int at_least)
{
    bool good = true, seen = true;
    int nth;
    for (nth = 1; nth < 200; nth++) {
        struct fake_job job = {.root = root,
                               .step = 2,
                               .shard_size = 2,
                               .replicate_size = 1,
                               .seed = NEW_SEED,
                               .quiet = true,
                               .compress = compress,
                               .fault_rank = rank,
                               .fault_nth = nth,
                               .fault = fault};
        int status[2];
        ranks_run(2, 1, 30, fake_save_rank, &job, status);
        bool over = WIFEXITED(status[rank]) && WEXITSTATUS(status[rank]) == 99;
        if (fault == CKPT_FAULT_KILL)
            seen &= over || (WIFSIGNALED(status[rank]) && WTERMSIG(status[rank]) == SIGKILL);
        bool saved = over || (status[0] == 0 && status[1] == 0); /* some failures do not matter */
        bool fine = recovers(root, fault == CKPT_FAULT_KILL && !saved, saved);
        if (!fine)
            diag("%s at call %d of rank %d", what, nth, rank);
        good &= fine;
        if (over)
            break;
    }
    ok(good && seen && nth > at_least && nth < 200, "%s at each of %d store calls of rank %d", what,
       nth - 1, rank);
}

/* The removal of an old checkpoint, killed anywhere, leaves whole checkpoints only. */
static int retain_rank(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct fake_job *job = arg;
    (void)oob, (void)nodes;
    uint64_t before = ckpt_store_calls();
    ckpt_store_fault_at((uint64_t)job->fault_nth, CKPT_FAULT_KILL);
    int rc = ckpt_retain(job->root, 1, NULL, 0, NULL, NULL, NULL);
    return rc ? 1 : ckpt_store_calls() - before < (uint64_t)job->fault_nth ? 99 : 0;
}

static void test_retain(const char *root)
{
    bool good = true, over = false;
    int nth;
    for (nth = 1; nth < 200 && !over; nth++) {
        struct fake_job job = {.root = root, .fault_nth = nth};
        char path[500];
        int status;
        good &= fake_save_here(root, 2, NEW_SEED) == 0;
        ranks_run(1, 1, 30, retain_rank, &job, &status);
        over = WIFEXITED(status) && WEXITSTATUS(status) == 99;
        snprintf(path, sizeof path, "%s/step-00000001", root);
        good &= fake_holds(root, NEW_SEED) && (!exists(path) || fake_holds(path, OLD_SEED));
        good &= ckpt_retain(root, 1, NULL, 0, NULL, NULL, NULL) == FSDP_OK &&
                count_entries(root, "") == 1;
        snprintf(path, sizeof path, "%s/step-00000002", root);
        remove_all(&ckpt_store_posix, path, NULL);
        good &= fake_save_here(root, 1, OLD_SEED) == 0;
    }
    ok(good && over && nth > 15, "killed at each of %d store calls of a removal", nth - 2);
}

/* No memory, at each allocation of a save and of a load in turn. */
static int memory_rank(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct fsdp_err err;
    char *root = arg, path[500];
    int rc = FSDP_ENOMEM, nth = 1;
    (void)nodes;
    for (; rc == FSDP_ENOMEM; nth++) {
        struct fake *f = fake_create(0, 1, 1);
        struct ckpt_save_args args = fake_save_args(f, root, 2);
        fake_fill(f, NEW_SEED);
        fsdp_alloc_fail_at((uint64_t)nth);
        rc = ckpt_save(NULL, &args, oob, &err);
        fsdp_alloc_fail_at(0);
        fake_destroy(f);
        snprintf(path, sizeof path, "%s/step-00000002", root);
        if (rc && exists(path)) { /* only the last word, after the commit, failed: it is good */
            if (!fake_holds(path, NEW_SEED) || remove_all(&ckpt_store_posix, path, NULL))
                return 4;
        }
        if (rc && count_entries(root, "") != 1) {
            diag("allocation %d leaves remains: %s", nth, err.text);
            return 1;
        }
    }
    if (rc || nth < 50 || !fake_holds(root, NEW_SEED)) {
        diag("allocation %d: %s", nth, err.text);
        return 2;
    }
    snprintf(path, sizeof path, "%s/step-00000002", root);
    rc = FSDP_ENOMEM;
    for (nth = 1; rc == FSDP_ENOMEM; nth++) {
        struct fake *f = fake_create(0, 1, 1);
        struct ckpt_load_args args = fake_load_args(f);
        struct ckpt *ckpt = NULL;
        fsdp_alloc_fail_at((uint64_t)nth);
        rc = ckpt_open(&ckpt, path, &err);
        if (rc == FSDP_OK)
            rc = ckpt_load(ckpt, &args, oob, &err);
        fsdp_alloc_fail_at(0);
        ckpt_close(ckpt);
        fake_destroy(f);
    }
    if (rc || nth < 50) {
        diag("allocation %d: %s", nth, err.text);
        return 3;
    }
    return 0;
}

/* ---- a rank dies while rank 0 commits ----
 *
 * Rank 0 stops at one of its last store calls. Rank 1 dies meanwhile; rank 2 learns of it inside
 * ckpt_save and, when that has had time to react, lets rank 0 continue. Whatever is published must
 * be whole: rank 2 must not take its files away. */
struct held {
    char root[400];
    int64_t step;
    uint64_t stop_at; /* store call of rank 0; 0: none */
    uint64_t calls;   /* that rank 0 made */
    pid_t pid;        /* of rank 0 */
    struct fsdp_oob *oob;
};

static bool is_stopped(pid_t pid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = pid ? fopen(path, "r") : NULL;
    if (file) {
        text[fread(text, 1, sizeof text - 1, file)] = 0;
        fclose(file);
    }
    const char *after_name = strrchr(text, ')');
    return after_name && after_name[1] && after_name[2] == 'T';
}

static void *held_thread(void *arg)
{
    struct held *h = arg;
    while (!is_stopped(h->pid))
        usleep(1000);
    if (h->oob->rank == 1)
        kill(getpid(), SIGKILL);
    while (h->oob->health(h->oob, NULL) == FSDP_OK)
        usleep(1000);
    usleep(200000);
    kill(h->pid, SIGCONT);
    return NULL;
}

static int held_rank(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct held *shared = arg, mine = *shared;
    struct fake *f = fake_create(oob->rank, 3, 1);
    struct ckpt_save_args args = fake_save_args(f, shared->root, shared->step);
    pthread_t thread;
    bool watches = oob->rank > 0 && shared->stop_at;
    (void)nodes;
    fake_fill(f, NEW_SEED);
    if (oob->rank == 0)
        shared->pid = getpid();
    oob->allgather(oob, "x", 1, (char[4]){0}, NULL); /* everybody sees the pid */
    mine.pid = shared->pid;
    mine.oob = oob;
    if (watches)
        pthread_create(&thread, NULL, held_thread, &mine);
    uint64_t before = ckpt_store_calls();
    if (oob->rank == 0 && shared->stop_at)
        ckpt_store_fault_at(shared->stop_at, CKPT_FAULT_STOP);
    int rc = ckpt_save(NULL, &args, oob, NULL);
    if (oob->rank == 0)
        shared->calls = ckpt_store_calls() - before;
    if (watches)
        pthread_join(thread, NULL);
    fake_destroy(f);
    return rc ? 3 : 0;
}

static void test_death_during_commit(const char *root)
{
    enum { LAST_CALLS = 8 };
    struct held *h =
        mmap(NULL, sizeof *h, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int status[3], npublished = 0, nleft = 0, nbad = 0;
    snprintf(h->root, sizeof h->root, "%s.held", root);
    bool good = true;
    for (h->step = 1; h->step <= 2; h->step++) /* the first also makes the folder */
        good &= ranks_run(3, 1, 60, held_rank, h, NULL) == 0 && h->calls > LAST_CALLS;
    uint64_t calls = h->calls;
    for (int i = 0; good && i < LAST_CALLS; i++) {
        char path[500];
        h->step = 3 + i;
        h->stop_at = calls - (uint64_t)i;
        ranks_run(3, 1, 60, held_rank, h, status);
        good &= WIFSIGNALED(status[1]) && WIFEXITED(status[2]) && WEXITSTATUS(status[2]) == 3;
        snprintf(path, sizeof path, "%s/step-%08d", h->root, 3 + i);
        bool published = access(path, F_OK) == 0;
        npublished += published;
        nleft += !published;
        nbad += !fake_holds(published ? path : h->root, NEW_SEED);
    }
    ok(good, "a rank dies while rank 0 commits; the third is told of a failure");
    ok(nbad == 0 && npublished + nleft == LAST_CALLS && npublished > 0,
       "%d of %d are published all the same: whole, %d are not", npublished, LAST_CALLS, nbad);
    scratch_remove(h->root);
    munmap(h, sizeof *h);
}

int main(void)
{
    char root[300];
    /* Many small files and fsyncs: in memory where that is possible. */
    if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 1);
    snprintf(root, sizeof root, "%s", scratch_create());
    ok(fake_save(root, 1, 2, 1, OLD_SEED) == 0, "a checkpoint to fall back on");
    strike_all(root, 0, CKPT_FAULT_KILL, CKPT_COMPRESS_NONE, "killed", 20);
    strike_all(root, 1, CKPT_FAULT_KILL, CKPT_COMPRESS_NONE, "killed", 6);
    strike_all(root, 0, CKPT_FAULT_FAIL, CKPT_COMPRESS_NONE, "failed", 20);
    strike_all(root, 1, CKPT_FAULT_NOSPACE, CKPT_COMPRESS_NONE, "no space", 6);
#if HAVE_ZSTD
    strike_all(root, 0, CKPT_FAULT_FAIL, CKPT_COMPRESS_ZSTD, "failed, compressed,", 20);
    strike_all(root, 1, CKPT_FAULT_KILL, CKPT_COMPRESS_ZSTD, "killed, compressed,", 6);
#endif
    test_retain(root);
    test_death_during_commit(root);
    ok(ranks_run(1, 1, 60, memory_rank, root, NULL) == 0, "out of memory at each allocation");
    scratch_remove(root);
    return tap_done();
}
