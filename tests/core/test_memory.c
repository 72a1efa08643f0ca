/* SPDX-License-Identifier: Apache-2.0 */
/* How many bytes of state and of activations a plan has, on the device and on the host. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsdp/fsdp.h"
#include "tap.h"

struct bytes {
    uint64_t device, host;
};

/* Of the rows whose name has `what` in it, and not `but` (NULL: all). Takes the tree. */
static int plan(struct bytes *out, struct fsdp_module_tree *tree, const struct fsdp_opts *opts,
                int nranks, const char *what, const char *but, struct fsdp_err *err)
{
    const struct fsdp_mesh_shape mesh = {.shard_size = nranks, .replicate_size = 1};
    struct fsdp_memory_row rows[40];
    struct fsdp_device *device = NULL;
    struct fsdp *f = NULL;
    int rc = fsdp_device_open(&device, "cpu", 0, err);

    *out = (struct bytes){0, 0};
    if (!rc)
        rc = fsdp_plan(&f, tree, opts, device, mesh, err);
    for (int i = 0, nrows = rc ? 0 : fsdp_memory_plan(f, rows, 40); i < nrows; i++)
        if (strstr(rows[i].what, what) && !(but && strstr(rows[i].what, but)))
            *(rows[i].host ? &out->host : &out->device) += rows[i].nbytes;
    fsdp_destroy(f);
    fsdp_device_close(device);
    fsdp_module_tree_destroy(tree);
    return rc;
}

/* ---- state ----------------------------------------------------------------------------------- */

enum { SHARD = 1 << 19 };

/* A matrix of 2^20 elements. */
static struct fsdp_module_tree *matrix(void)
{
    const uint64_t shape[2] = {1024, 2 * SHARD / 1024};
    const struct fsdp_param_desc w = {.name = "w", .ndim = 2, .shape = shape};
    struct fsdp_module_tree *tree = NULL;
    int root;

    if (fsdp_module_tree_create(&tree, NULL) ||
        fsdp_module_add(tree, -1, "", "Model", &root, NULL) ||
        fsdp_module_add_param(tree, root, &w, NULL, NULL))
        abort();
    return tree;
}

/* Bytes of one rank of two. */
static struct bytes state(const struct fsdp_opts *opts)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct bytes n;
    if (plan(&n, matrix(), opts, 2, "", "pieces of weights in fp32", &err))
        printf("# %s\n", err.text);
    return n;
}

static void test_narrow(const struct fsdp_opts *usual, uint64_t all)
{
    struct fsdp_opts opts = *usual;

    opts.optim.master = FSDP_MASTER_SPLIT;
    ok(all - state(&opts).device == 2 * SHARD, "split masters save 2 bytes a parameter");
    opts.optim.master = FSDP_MASTER_WHOLE;
    opts.optim.moment_dtype = FSDP_BF16;
    ok(all - state(&opts).device == 4 * SHARD, "moments in BF16 save 4");
    opts.optim.master = FSDP_MASTER_NONE;
    ok(all - state(&opts).device == 8 * SHARD, "and without masters 8");
    opts.grad_dtype = FSDP_BF16;
    ok(all - state(&opts).device == 10 * SHARD, "and with gradients in BF16 10: 8 are left");
    opts.grad_dtype = FSDP_F32;
    opts.update_at = FSDP_UPDATE_AT_REDUCE;
    ok(all - state(&opts).device == 12 * SHARD, "and without gradient shards 12: 6 are left");
}

static void test_offloaded(const struct fsdp_opts *usual, uint64_t all)
{
    struct fsdp_opts opts = *usual;

    /* One unit: of the two places it needs one, with room for all of its state. */
    opts.offload = FSDP_OFFLOAD_OPTIMIZER;
    struct bytes n = state(&opts);
    ok(n.host == 12 * SHARD && n.device == all,
       "12 bytes a parameter are offloaded, and pass through the device");
    opts.offload = FSDP_OFFLOAD_PARAMS;
    ok(state(&opts).host == 14 * SHARD, "with the gathered copy 14");
    opts.offload = FSDP_OFFLOAD_NONE;
    opts.offload_gradients = true;
    n = state(&opts);
    ok(n.host == 4 * SHARD && n.device == all, "and 4 of a gradient shard, which has one place");
    opts.offload = FSDP_OFFLOAD_PARAMS;
    opts.grad_dtype = FSDP_BF16;
    ok(state(&opts).host == 16 * SHARD, "all of it with gradients in BF16 is 16");
}

static void test_state(void)
{
    struct fsdp_opts opts = FSDP_OPTS_INIT;

    opts.param_dtype = FSDP_BF16;
    opts.optim.clip_grad_norm = 0;
    const struct bytes all = state(&opts);
    ok(all.host == 0 && all.device > 18 * SHARD, "18 bytes a parameter, none of them on the host");
    test_narrow(&opts, all.device);
    test_offloaded(&opts, all.device);
}

/* ---- activations ----------------------------------------------------------------------------- */

/* A root of `root` bytes to make again, and eight modules that keep a MiB each, and twice as much
 * unless it is recomputed, in each of the two inside them. */
static struct fsdp_module_tree *deep_tree(size_t root)
{
    const struct fsdp_act_bytes kept = {.saved = 1 << 20}, again = {.recomputed = 1 << 20},
                                whole = {.saved = 1 << 20, .recomputed = root};
    struct fsdp_module_tree *tree = NULL;
    char name[32];
    int block, inside;

    if (fsdp_module_tree_create(&tree, NULL) ||
        fsdp_module_add(tree, -1, "", "Model", &block, NULL) ||
        fsdp_module_set_act(tree, 0, whole, NULL))
        abort();
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "blocks.%d", i);
        if (fsdp_module_add(tree, 0, name, "Block", &block, NULL) ||
            fsdp_module_set_act(tree, block, kept, NULL))
            abort();
        for (int k = 0; k < 2; k++) {
            snprintf(name, sizeof name, "blocks.%d.%d", i, k);
            if (fsdp_module_add(tree, block, name, "Part", &inside, NULL) ||
                fsdp_module_set_act(tree, inside, again, NULL))
                abort();
        }
    }
    const uint64_t shape[2] = {16, 16};
    if (fsdp_module_add_param(
            tree, 0, &(struct fsdp_param_desc){.name = "w", .ndim = 2, .shape = shape}, NULL, NULL))
        abort();
    return tree;
}

/* The root keeps its own on the device; the last modules are in all places when forward ends. */
static void test_places(void)
{
    static const struct {
        int kind, nslots;
        bool away;
        int device_mib, host_mib; /* 1 of the root; recomputed: 2 of one module */
    } cases[] = {{FSDP_AC_NONE, 2, false, 1 + 8 * 3, 0}, {FSDP_AC_NONE, 2, true, 1 + 2 * 3, 6 * 3},
                 {FSDP_AC_FULL, 2, false, 1 + 8 + 1, 0}, {FSDP_AC_FULL, 1, true, 1 + 1 + 1, 7},
                 {FSDP_AC_FULL, 3, true, 1 + 3 + 1, 5},  {FSDP_AC_FULL, 8, true, 1 + 8 + 1, 0},
                 {FSDP_AC_NONE, 60, true, 1 + 8 * 3, 0}};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct bytes n;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        opts.activation_checkpointing = cases[i].kind;
        opts.offload_activations = cases[i].away;
        opts.offload_slots = cases[i].nslots;
        const int rc = plan(&n, deep_tree(0), &opts, 1, "activations", NULL, &err);
        const int device_mib = (int)(n.device >> 20), host_mib = (int)(n.host >> 20);
        ok(!rc && device_mib == cases[i].device_mib && host_mib == cases[i].host_mib,
           "activations, case %d: %d MiB on the device, %d on the host", (int)i, device_mib,
           host_mib);
    }
}

static void test_refused(void)
{
    static const int wrong[] = {0, 65};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct bytes n;

    opts.offload_activations = true;
    for (int i = 0; i < 2; i++) {
        opts.offload_slots = wrong[i];
        ok(plan(&n, deep_tree(0), &opts, 1, "", NULL, &err) == FSDP_EINVAL &&
               !strcmp(err.setting, "offload_slots"),
           "%d places: %s", wrong[i], err.text);
    }
    opts.offload_slots = 1;
    opts.activation_checkpointing = FSDP_AC_FULL;
    ok(plan(&n, deep_tree(8), &opts, 1, "", NULL, &err) == FSDP_EUNSUPPORTED &&
           !strcmp(err.setting, "offload_activations"),
       "a model that is recomputed whole: %s", err.text);
}

int main(void)
{
    test_state();
    test_places();
    test_refused();
    return tap_done();
}
