/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving to a real S3 server and loading from it; many savers of one step; what faults leave.
 * `test_save make URL` makes a root with two checkpoints of four ranks, for other tests.
 *
 * run: timeout=600
 */
#include "../../ckpt/format/native/native.h"
#include "../ckpt/fake_state.h"
#include "fsdp/base.h"

static char root[300];
static struct fsdp_err err;

static const char *in_root(const char *name)
{
    static char paths[8][400];
    static int turn;
    turn = (turn + 1) % 8;
    snprintf(paths[turn], sizeof paths[0], "%s/%s", root, name);
    return paths[turn];
}

static const struct ckpt_store_ops *store(void)
{
    const struct ckpt_store_ops *ops = NULL;
    if (ckpt_store_of(&ops, root, &err))
        diag("%s", err.text);
    return ops;
}

/* Names below a folder, and no upload that never ended. */
static bool has_names(const char *path, int nnames)
{
    struct ckpt_names names = {0};
    uint64_t nuploads = 0;
    int rc = ckpt_store_names(&names, store(), path, &err);
    int found = rc == FSDP_ENOTFOUND ? 0 : names.nnames;
    bool good = (rc == FSDP_OK || rc == FSDP_ENOTFOUND) && found == nnames &&
                !ckpt_store_sweep(&nuploads, store(), path, INT64_MAX, false, &err) && !nuploads;
    if (!good)
        diag("%s: %d names instead of %d, %llu uploads: %s", path, found, nnames,
             (unsigned long long)nuploads, rc ? err.text : "");
    ckpt_names_free(&names);
    return good;
}

static void test_save(void)
{
    ok(fake_save(root, 1, 2, 2, 5) == 0 && fake_holds(in_root("step-00000001"), 5),
       "four ranks save, one loads");
    ok(has_names(in_root("step-00000001"), 2), "a manifest and one folder of data are there");
    struct fake_job again = {
        .root = root, .step = 1, .shard_size = 3, .replicate_size = 1, .seed = 6, .quiet = true};
    ok(ranks_run(3, 1, 120, fake_save_rank, &again, NULL) == 3 &&
           fake_holds(in_root("step-00000001"), 5) && has_names(in_root("step-00000001"), 2),
       "a step is not saved twice");
    struct fake_job compressed = {.root = root,
                                  .step = 2,
                                  .shard_size = 3,
                                  .replicate_size = 1,
                                  .seed = 7,
                                  .compress = CKPT_COMPRESS_AUTO};
    ok(ranks_run(3, 1, 120, fake_save_rank, &compressed, NULL) == 0 && fake_holds(root, 7),
       "three ranks save the next, the newest of the root");
    ok(ckpt_retain(root, 1, NULL, 0, NULL, NULL, &err) == FSDP_OK && has_names(root, 1) &&
           fake_holds(root, 7),
       "the older one goes: %s", err.text);
}

enum { RACERS = 24 };

/* Each racer is a job of its own. */
static int race_rank(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct fake_job job = {.root = root,
                           .step = 3,
                           .shard_size = 1,
                           .replicate_size = 1,
                           .seed = 100 + (uint64_t)oob->rank,
                           .quiet = true};
    struct fsdp_oob *alone;
    (void)arg;
    if (fsdp_oob_self_create(&alone, NULL))
        return 1;
    int status = fake_save_rank(alone, nodes, &job);
    alone->close(alone);
    return status;
}

static void test_race(void)
{
    int statuses[RACERS], nwon = 0, nlost = 0, winner = 0;
    ranks_run(RACERS, 1, 300, race_rank, NULL, statuses);
    for (int i = 0; i < RACERS; i++) {
        int status = WIFEXITED(statuses[i]) ? WEXITSTATUS(statuses[i]) : -1;
        nwon += status == 0;
        nlost += status == -FSDP_EEXIST;
        winner = status == 0 ? i : winner;
    }
    ok(nwon == 1 && nlost == RACERS - 1, "of %d savers of a step %d won and %d came too late",
       RACERS, nwon, nlost);
    ok(fake_holds(in_root("step-00000003"), 100 + (uint64_t)winner) &&
           has_names(in_root("step-00000003"), 2),
       "what is there is the winner's alone");
}

/* Every call of two ranks fails once; what is published is whole, what is not leaves nothing. */
static void test_faults(void)
{
    int nstruck = 0, npublished = 0;
    bool good = true;
    for (int nth = 2; nth < 40; nth++) {
        struct fake_job job = {.root = in_root("faults"),
                               .step = nth,
                               .shard_size = 2,
                               .replicate_size = 1,
                               .seed = (uint64_t)nth,
                               .quiet = true,
                               .fault = CKPT_FAULT_FAIL,
                               .fault_rank = nth % 2,
                               .fault_nth = nth / 2};
        char path[500];
        int statuses[2];
        ranks_run(2, 1, 120, fake_save_rank, &job, statuses);
        snprintf(path, sizeof path, "%s/step-%08d", job.root, nth);
        if (WEXITSTATUS(statuses[nth % 2]) == 99)
            continue;
        nstruck++;
        struct ckpt_store_stat st;
        bool published = ckpt_store_stat(&st, store(), path, &err) == FSDP_OK;
        npublished += published;
        if (published ? !fake_holds(path, (uint64_t)nth) : !has_names(path, 0)) {
            diag("call %d", nth);
            good = false;
        }
    }
    ok(good && nstruck > 10, "%d faults: %d saves were whole, the others left nothing", nstruck,
       npublished);
}

static void note_stays(void *ctx, const char *path, const char *why)
{
    int *nstay = ctx;
    *nstay += strstr(path, "step-00000001") && strstr(why, "'model/notes.txt'");
}

static bool has(const char *path)
{
    struct ckpt_store_stat st;
    return ckpt_store_stat(&st, store(), path, &err) == FSDP_OK;
}

/* Objects of others: below the manifest's uuid they stop the removal; elsewhere they stay. */
static void test_foreign(void)
{
    struct ckpt_gc_args args = CKPT_GC_ARGS_INIT;
    struct ckpt_gc_result result;
    char at[400], notes[600], readme[600], mine[600], shard[600], *uuid = NULL;
    int nstay = 0;
    snprintf(at, sizeof at, "%s", in_root("foreign"));
    snprintf(readme, sizeof readme, "%s/step-00000001/readme.txt", at);
    bool made = fake_save(at, 1, 1, 1, 5) == 0 && fake_save(at, 2, 1, 1, 7) == 0 &&
                ckpt_attempt_of(&uuid, store(), in_root("foreign/step-00000001"), &err) == FSDP_OK;
    snprintf(notes, sizeof notes, "%s/step-00000001/%s/model/notes.txt", at, uuid ? uuid : "");
    fsdp_free(uuid);
    made &= ckpt_store_put(store(), notes, "x", 1, true, &err) == FSDP_OK &&
            ckpt_store_put(store(), readme, "x", 1, true, &err) == FSDP_OK;
    ok(made && ckpt_retain(at, 1, NULL, 0, note_stays, &nstay, &err) == FSDP_OK && nstay == 1 &&
           has(notes) && fake_holds(in_root("foreign/step-00000001"), 5),
       "an object of others among its data: a checkpoint stays, and is reported: %s", err.text);
    ok(ckpt_store_remove(store(), notes, &err) == FSDP_OK &&
           ckpt_retain(at, 1, NULL, 0, note_stays, &nstay, &err) == FSDP_OK && nstay == 1 &&
           has(readme) && has_names(in_root("foreign/step-00000001"), 1) && fake_holds(at, 7),
       "without it the checkpoint goes, and what is not among its data stays: %s", err.text);

    static const char uuid_of_killed[] = "01234567-89ab-4def-8123-456789abcdef";
    snprintf(shard, sizeof shard,
             "%s/step-00000009/%s/model/shard-00001-model-00001-of-00001.safetensors", at,
             uuid_of_killed);
    snprintf(mine, sizeof mine, "%s/step-00000009/%s/mine.py", at, uuid_of_killed);
    made = ckpt_store_put(store(), shard, "x", 1, true, &err) == FSDP_OK &&
           ckpt_store_put(store(), mine, "x", 1, true, &err) == FSDP_OK;
    args.older_s = 0;
    ok(made && ckpt_gc(&result, at, &args, &err) == FSDP_OK && result.nstay == 1 && has(shard) &&
           has(mine),
       "--gc: an object of others among leftovers stops their removal: %s", err.text);
    ok(ckpt_store_remove(store(), mine, &err) == FSDP_OK &&
           ckpt_gc(&result, at, &args, &err) == FSDP_OK && result.nold == 1 && !has(shard) &&
           fake_holds(at, 7),
       "without it they go: %s", err.text);
}

/* A checkpoint of a file system as `aws s3 cp --recursive` brings it here: no uuid in its paths. */
static bool copy_plain(const char *from, const char *to)
{
    struct ckpt_tree tree;
    uint64_t nbytes;
    uint32_t crc32c;
    int rc = ckpt_tree_list(&tree, &ckpt_store_posix, from, remove_all_judge, NULL, 0, &err);
    for (size_t i = 0; rc == FSDP_OK && i < tree.nitems; i++) {
        char source[600], target[600];
        snprintf(source, sizeof source, "%s/%s", from, tree.items[i].path);
        snprintf(target, sizeof target, "%s/%s", to, tree.items[i].path);
        if (tree.items[i].kind == CKPT_STORE_FILE)
            rc = ckpt_store_copy(&nbytes, &crc32c, &ckpt_store_posix, source, store(), target, true,
                                 &err);
    }
    ckpt_tree_free(&tree);
    return rc == FSDP_OK;
}

static void test_plain(void)
{
    char local[300], from[400];
    snprintf(local, sizeof local, "%s", scratch_create());
    snprintf(from, sizeof from, "%s/step-00000001", local);
    ok(fake_save(local, 1, 1, 1, 5) == 0 && copy_plain(from, in_root("plain/step-00000001")) &&
           fake_save(in_root("plain"), 2, 1, 1, 7) == 0 &&
           fake_holds(in_root("plain/step-00000001"), 5),
       "a checkpoint that another program brought: %s", err.text);
    ok(ckpt_retain(in_root("plain"), 1, NULL, 0, NULL, NULL, &err) == FSDP_OK &&
           has_names(in_root("plain/step-00000001"), 0) && fake_holds(in_root("plain"), 7),
       "goes with all its objects: %s", err.text);
    scratch_remove(local);
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "make"))
        return fake_save(argv[2], 6, 2, 2, 5) || fake_save(argv[2], 7, 4, 1, 7);
    const char *url = getenv("S3_TEST_URL");
    if (!url) {
        tap_skip("no S3 server: make check-s3 starts one");
        return tap_done();
    }
    snprintf(root, sizeof root, "%s/save-%d", url, (int)getpid());
    test_save();
    test_race();
    test_faults();
    test_foreign();
    test_plain();
    ok(remove_all(store(), root, &err) == FSDP_OK, "all is removed");
    return tap_done();
}
