/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The removal of trees: links, mounts, files of others, and what changes between the listing and
 * the removal. What must stay is `home`, a folder of the user's.
 */
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>

#include "../../ckpt/keep/belongs.h"
#include "fake_state.h"

#define UUID "01234567-89ab-4def-8123-456789abcdef"
#define SHARD "shard-00001-model-00001-of-00001.safetensors"

static char root[300];
static struct fsdp_err err;
static const struct ckpt_store_ops *ops = &ckpt_store_posix;
static char logged[2000];

static const char *at(const char *name)
{
    static char paths[8][1100];
    static int turn;
    turn = (turn + 1) % 8;
    snprintf(paths[turn], sizeof paths[0], "%s/%s", root, name);
    return paths[turn];
}

static void put(const char *name)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    if (ckpt_store_put(ops, at(name), "text", 4, false, &why))
        diag("%s", why.text);
}

static void make(const char *name)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    if (ckpt_store_mkdirs(ops, at(name), &why))
        diag("%s", why.text);
}

static bool is_there(const char *name)
{
    struct stat st;
    return lstat(at(name), &st) == 0;
}

/* A leftover of a save, and the user's folder. */
static void begin(void)
{
    remove_all(ops, at("step-00000001.tmp." UUID), NULL);
    remove_all(ops, at("moved"), NULL);
    make("home/papers");
    if (!is_there("home/papers/thesis"))
        put("home/papers/thesis");
    make("step-00000001.tmp." UUID "/model");
    make("step-00000001.tmp." UUID "/optim");
    put("step-00000001.tmp." UUID "/model/" SHARD);
    err = (struct fsdp_err)FSDP_ERR_INIT;
}

#define TOP "step-00000001.tmp." UUID

static int list(struct ckpt_tree *tree)
{
    return ckpt_tree_list(tree, ops, at(TOP), NULL, NULL, 3600, &err);
}

static bool home_stays(void)
{
    return is_there("home/papers/thesis");
}

/* ---- what is listed -------------------------------------------------------------------------- */

static void test_links(void)
{
    static const char *const places[] = {TOP "/model/" SHARD,  TOP "/model",          TOP "/hf",
                                         TOP "/manifest.json", TOP "/hf/config.json", TOP};
    static const char *const targets[] = {"home", "home/papers/thesis", "nowhere", TOP, "."};
    int nbad = 0, nlinks = 0;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        for (size_t k = 0; k < sizeof targets / sizeof targets[0]; k++, nlinks++) {
            begin();
            if (strstr(places[i], "hf/"))
                make(TOP "/hf");
            remove_all(ops, at(places[i]), NULL);
            if (symlink(strcmp(targets[k], ".") ? at(targets[k]) : ".", at(places[i])))
                diag("no link can be made at %s", places[i]);
            int rc = ckpt_store_remove_tree(ops, at(TOP), &err);
            if (rc || is_there(TOP) || !home_stays()) {
                diag("%s -> %s: %s", places[i], targets[k], rc ? err.text : "not right");
                nbad++;
            }
        }
    }
    ok(nbad == 0, "%d links in place of files and folders: the links go, what they point to stays",
       nlinks);
    begin();
    ok(symlink(at("home"), at(TOP "/mine")) == 0 &&
           ckpt_store_remove_tree(ops, at(TOP), &err) == FSDP_EEXIST &&
           strstr(err.text, "'mine'") && is_there(TOP "/model/" SHARD) && is_there(TOP "/mine") &&
           home_stays(),
       "a link of another name stops the removal: %s", err.text);
}

static void test_foreign(void)
{
    struct ckpt_tree tree;
    static const char *const names[] = {
        TOP "/model/mine.py", TOP "/notes.txt",  TOP "/model/x/y", TOP "/model/shard-1.safetensors",
        TOP "/journal",       TOP "/hf/.hidden", TOP "/hf/a/b",    TOP "/out/journal"};
    size_t nnames = sizeof names / sizeof names[0];
    int nbad = 0;
    for (size_t i = 0; i < nnames; i++) {
        char folder[700];
        begin();
        snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(names[i], '/') - names[i]), names[i]);
        make(folder);
        put(names[i]);
        nbad += ckpt_store_remove_tree(ops, at(TOP), &err) != FSDP_EEXIST || !is_there(names[i]) ||
                !is_there(TOP "/model/" SHARD);
    }
    ok(nbad == 0, "%zu files and folders that no save makes: nothing is removed", nnames);
    begin();
    bool made = mkfifo(at(TOP "/manifest.json"), 0666) == 0;
    ok(made && ckpt_store_remove_tree(ops, at(TOP), &err) == FSDP_EEXIST &&
           strstr(err.text, "'manifest.json'"),
       "a pipe in the place of a manifest: %s", err.text);
    begin();
    for (int i = 0; i < 9; i++) {
        char name[100];
        snprintf(name, sizeof name, TOP "/mine-%d", i);
        put(name);
    }
    int rc = list(&tree);
    ok(rc == FSDP_OK && tree.nforeign == 9 &&
           ckpt_tree_refuse(&tree, "removed", &err) == FSDP_EEXIST &&
           strstr(err.text, "'mine-4' and 4 more"),
       "the first are named, the others counted: %s", err.text);
    ckpt_tree_free(&tree);
}

/* The manifest, not the names, says what belongs to a published checkpoint. */
static void test_manifest(void)
{
    struct ckpt_tree tree;
    char other[700];
    ok(fake_save(at("ck"), 3, 2, 1, 5) == 0, "a checkpoint");
    snprintf(other, sizeof other, "%s",
             at("ck/step-00000003/model/shard-00007-model-00001-of-00001"
                ".safetensors"));
    ckpt_store_put(ops, other, "x", 1, false, NULL);
    ok(ckpt_store_remove_tree(ops, at("ck/step-00000003"), &err) == FSDP_EEXIST &&
           strstr(err.text, "shard-00007") && is_there("ck/step-00000003/manifest.json"),
       "a shard that its manifest does not list: %s", err.text);
    ckpt_store_remove(ops, other, NULL);
    int rc = ckpt_tree_list(&tree, ops, at("ck/step-00000003"), NULL, NULL, 0, &err);
    ok(rc == FSDP_OK && tree.nitems > 5 && !strcmp(tree.items[0].path, "") &&
           !strcmp(tree.items[tree.nitems - 1].path, "manifest.json"),
       "the manifest goes last, so that a killed removal is judged by it: %s", err.text);
    ok(ckpt_tree_remove(&tree, at("ck/step-00000003"), &err) == FSDP_OK &&
           !is_there("ck/step-00000003"),
       "what it lists goes: %s", err.text);
    ckpt_tree_free(&tree);
}

/* ---- between the listing and the removal ----------------------------------------------------- */

static void test_races(void)
{
    struct ckpt_tree tree;
    begin();
    int rc = list(&tree);
    remove_all(ops, at(TOP "/model"), NULL);
    ok(rc == FSDP_OK && ckpt_tree_remove(&tree, at(TOP), &err) == FSDP_OK && !is_there(TOP),
       "a folder vanishes: %s", err.text);
    ok(ckpt_tree_remove(&tree, at(TOP), &err) == FSDP_OK, "all is gone already: %s", err.text);
    ckpt_tree_free(&tree);

    begin();
    rc = list(&tree);
    remove_all(ops, at(TOP "/model/" SHARD), NULL);
    ok(rc == FSDP_OK && ckpt_tree_remove(&tree, at(TOP), &err) == FSDP_OK && !is_there(TOP),
       "a file vanishes: %s", err.text);
    ckpt_tree_free(&tree);

    static const char *const replaced[] = {TOP "/model", TOP "/model/" SHARD, TOP};
    for (int i = 0; i < 3; i++) {
        begin();
        rc = list(&tree);
        bool moved = rename(at(replaced[i]), at("moved")) == 0 &&
                     symlink(at(i == 1 ? "home/papers/thesis" : "home"), at(replaced[i])) == 0;
        ok(rc == FSDP_OK && moved && ckpt_tree_remove(&tree, at(TOP), &err) == FSDP_EEXIST &&
               strstr(err.text, "replaced") && home_stays() && is_there(replaced[i]),
           "replaced by a link: %s", err.text);
        ckpt_tree_free(&tree);
        remove_all(ops, at(replaced[i]), NULL);
    }

    begin();
    rc = list(&tree);
    put(TOP "/other");
    bool renamed = rename(at(TOP "/other"), at(TOP "/model/" SHARD)) == 0;
    ok(rc == FSDP_OK && renamed && ckpt_tree_remove(&tree, at(TOP), &err) == FSDP_EEXIST &&
           strstr(err.text, SHARD) && is_there(TOP "/model/" SHARD),
       "a file is replaced by another: %s", err.text);
    ckpt_tree_free(&tree);

    begin();
    rc = list(&tree);
    put(TOP "/model/thesis");
    ok(rc == FSDP_OK && ckpt_tree_remove(&tree, at(TOP), &err) == FSDP_EEXIST &&
           strstr(err.text, "'thesis'") && is_there(TOP "/model/thesis"),
       "a file is added: %s", err.text);
    ckpt_tree_free(&tree);

    begin();
    rc = list(&tree);
    renamed = rename(at(TOP), at("moved")) == 0;
    make(TOP "/model");
    put(TOP "/model/" SHARD);
    ok(rc == FSDP_OK && renamed && ckpt_tree_remove(&tree, at(TOP), &err) == FSDP_EEXIST &&
           is_there(TOP "/model/" SHARD),
       "the folder itself is another: %s", err.text);
    ckpt_tree_free(&tree);

    begin();
    rc = list(&tree);
    renamed = rename(at(TOP), at("moved")) == 0;
    ok(rc == FSDP_OK && renamed && ckpt_tree_remove(&tree, at("moved"), &err) == FSDP_OK &&
           !is_there("moved"),
       "under another name it goes: %s", err.text);
    ckpt_tree_free(&tree);
}

/* ---- mounts ---------------------------------------------------------------------------------- */

/* qemu 7 says that it tells the mount, and tells 0 for every one. */
static bool mounts_are_told(void)
{
#ifdef STATX_MNT_ID
    struct statx st = {0};
    return !tap_emulated() ||
           (statx(AT_FDCWD, root, 0, STATX_MNT_ID, &st) == 0 && st.stx_mnt_id != 0);
#else
    return true;
#endif
}

static const char *const untold = "this emulator's statx does not tell one mount from another";

static void test_bind_mount(void)
{
    if (!mounts_are_told()) {
        tap_skip("a bind mount of the same device: %s", untold);
        return;
    }
    ok(ckpt_store_remove_tree(ops, at(TOP), &err) == FSDP_EEXIST && strstr(err.text, "'model'") &&
           home_stays() && is_there(TOP "/optim"),
       "a bind mount of the same device is not entered: %s", err.text);
}

static void test_mounted_itself(void)
{
    if (!mounts_are_told()) {
        tap_skip("a checkpoint that is mounted itself: %s", untold);
        return;
    }
    ok(mount(at(TOP), at(TOP), NULL, MS_BIND, NULL) == 0 &&
           ckpt_store_remove_tree(ops, at(TOP), &err) == FSDP_EEXIST &&
           strstr(err.text, "mount point") && is_there(TOP "/model/" SHARD),
       "a checkpoint that is mounted itself stays: %s", err.text);
    umount(at(TOP));
}

static void test_mounts(void)
{
    struct ckpt_tree tree;
    begin();
    if (geteuid() != 0 || mount(at("home"), at(TOP "/model"), NULL, MS_BIND, NULL)) {
        tap_skip("mounts: nothing can be mounted here");
        return;
    }
    test_bind_mount();
    umount(at(TOP "/model"));
    ok(mount("tree-test", at(TOP "/optim"), "tmpfs", 0, "size=1m") == 0, "a tmpfs");
    put(TOP "/optim/" SHARD);
    ok(ckpt_store_remove_tree(ops, at(TOP), &err) == FSDP_EEXIST && strstr(err.text, "'optim'") &&
           is_there(TOP "/optim/" SHARD),
       "nor another file system: %s", err.text);
    umount(at(TOP "/optim"));
    int rc = list(&tree);
    ok(rc == FSDP_OK && mount(at("home"), at(TOP "/optim"), NULL, MS_BIND, NULL) == 0,
       "one that is mounted after the listing");
    ok(ckpt_tree_remove(&tree, at(TOP), &err) == FSDP_EEXIST && home_stays(), "likewise: %s",
       err.text);
    ckpt_tree_free(&tree);
    umount(at(TOP "/optim"));
    begin();
    test_mounted_itself();
}

/* ---- NFS ------------------------------------------------------------------------------------- */

static void note_log(void *ctx, enum fsdp_log_level level, const char *text)
{
    (void)ctx, (void)level;
    snprintf(logged, sizeof logged, "%s", text);
}

static void test_nfs(void)
{
    struct ckpt_tree tree;
    begin();
    put(TOP "/model/.nfs000000000012345600000001");
    fsdp_log_set(note_log, NULL, FSDP_LOG_INFO);
    int rc = ckpt_store_remove_tree(ops, at(TOP), &err);
    fsdp_log_set(NULL, NULL, FSDP_LOG_INFO);
    ok(rc == FSDP_OK && is_there(TOP "/model/.nfs000000000012345600000001") &&
           !is_there(TOP "/model/" SHARD) && !is_there(TOP "/optim") && strstr(logged, ".nfs0000"),
       "an open file's name of NFS stays, all else goes, and it is logged: %s", logged);
    rc = ckpt_tree_list(&tree, ops, at(TOP), NULL, NULL, 0, &err);
    ok(rc == FSDP_OK && ckpt_tree_remove(&tree, at(TOP), &err) == FSDP_OK && !is_there(TOP),
       "a later sweep takes it: %s", err.text);
    ckpt_tree_free(&tree);
}

/* ---- kills ----------------------------------------------------------------------------------- */

struct kill {
    int nth;
    bool over;
};

static int gc_rank(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct kill *k = arg;
    struct ckpt_gc_args args = CKPT_GC_ARGS_INIT;
    (void)oob, (void)nodes;
    uint64_t before = ckpt_store_calls();
    ckpt_store_fault_at((uint64_t)k->nth, CKPT_FAULT_KILL);
    args.older_s = 0;
    int rc = ckpt_gc(NULL, at("gone"), &args, NULL);
    return rc ? 1 : ckpt_store_calls() - before < (uint64_t)k->nth ? 99 : 0;
}

/* Killed at each step, a removal is completed by the next; a file that was put there meanwhile
 * stops it. */
static void test_kills(void)
{
    const char *const del = "gone/step-00000003.del." UUID;
    struct ckpt_gc_args args = CKPT_GC_ARGS_INIT;
    struct kill k = {.nth = 1};
    int nbad = 0, nstopped = 0;
    args.older_s = 0;
    for (; k.nth < 200 && !k.over; k.nth++) {
        struct ckpt_gc_result result;
        char path[700];
        int status;
        fake_save(at("gone"), 3, 2, 1, 5);
        rename(at("gone/step-00000003"), at(del));
        ranks_run(1, 1, 30, gc_rank, &k, &status);
        k.over = WIFEXITED(status) && WEXITSTATUS(status) == 99;
        snprintf(path, sizeof path, "%s/model/mine.py", del);
        bool foreign = ckpt_store_put(ops, at(path), "x", 1, false, NULL) == FSDP_OK;
        if (foreign) {
            nstopped++;
            nbad +=
                ckpt_gc(&result, at("gone"), &args, &err) || result.nstay != 1 || !is_there(path);
            ckpt_store_remove(ops, at(path), NULL);
        }
        nbad += ckpt_gc(&result, at("gone"), &args, &err) || count_entries(at("gone"), "") != 0;
    }
    ok(nbad == 0 && k.over && k.nth > 15 && nstopped > 5,
       "killed at each of %d store calls, a removal is completed; %d were stopped by a file put "
       "there meanwhile: %s",
       k.nth - 2, nstopped, err.text);
}

static void test_names(void)
{
    static const struct {
        const char *entry;
        enum ckpt_leftover leftover;
    } names[] = {{"x.tmp." UUID, CKPT_LEFTOVER_TEMP},
                 {"x.tmp.0123456789abcdef", CKPT_LEFTOVER_TEMP},
                 {"x.del." UUID, CKPT_LEFTOVER_DEL},
                 {".check-" UUID, CKPT_LEFTOVER_PROBE},
                 {"x.tmp.0123", CKPT_LEFTOVER_NONE},
                 {".tmp.0123456789abcdef", CKPT_LEFTOVER_NONE},
                 {"my.tmp.files", CKPT_LEFTOVER_NONE},
                 {UUID, CKPT_LEFTOVER_NONE},
                 {"", CKPT_LEFTOVER_NONE}};
    int nbad = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t nbytes;
        nbad += ckpt_leftover_of(&nbytes, names[i].entry) != names[i].leftover;
    }
    ok(nbad == 0, "names of leftovers");
    ok(ckpt_belongs_name("model/" SHARD ".zst", false, CKPT_PLACE_NATIVE) &&
           ckpt_belongs_name("__0_12.distcp", false, CKPT_PLACE_DCP) &&
           ckpt_belongs_name("out", true, CKPT_PLACE_TEMP) &&
           ckpt_belongs_name("hf/tokenizer.model", false, CKPT_PLACE_NATIVE),
       "names that writers make");
    ok(!ckpt_belongs_name("model/" SHARD "x", false, CKPT_PLACE_NATIVE) &&
           !ckpt_belongs_name("__0_.distcp", false, CKPT_PLACE_DCP) &&
           !ckpt_belongs_name("out", false, CKPT_PLACE_TEMP) &&
           !ckpt_belongs_name("model", false, CKPT_PLACE_NATIVE) &&
           !ckpt_belongs_name("hf/a/b", false, CKPT_PLACE_NATIVE) &&
           !ckpt_belongs_name("model.safetensors", false, CKPT_PLACE_DCP),
       "and others");
}

int main(void)
{
    snprintf(root, sizeof root, "%s", scratch_create());
    test_names();
    test_links();
    test_foreign();
    test_manifest();
    test_races();
    test_mounts();
    test_nfs();
    test_kills();
    scratch_remove(root);
    return tap_done();
}
