/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a mesh's communicators take of a GPU: gathers by copy engines where the version of NCCL has
 * them, kernels of few blocks, and neither where the user said something else. The stand-in refuses
 * what the version refuses.
 */
#include "comm_test.h"
#include "fsdp/mesh.h"

enum { TIMEOUT_S = 60 };

struct plan {
    struct board *board;
    const char *version;
    const char *variable; /* of NCCL's, which the user has set; NULL: none */
    struct fsdp_comm_nccl nccl;
    const char *gather, *reduce, *world; /* what they say of themselves */
};

static void compare(const struct plan *plan, const struct fsdp_comm *comm, const char *expected)
{
    char text[96];

    fsdp_comm_about(comm, text, sizeof text);
    check(plan->board, !strcmp(text, expected), "%s: '%s', not '%s'", fsdp_comm_name(comm), text,
          expected);
}

static int share_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct fsdp_comm_opts opts = FSDP_COMM_OPTS_INIT;
    struct fsdp_mesh_shape shape;
    struct fsdp_mesh *mesh = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct env env;

    if (!env_open_cuda(&env, oob, nodes))
        return 1;
    unsetenv("NCCL_MAX_CTAS"); /* of the tests that share a GPU */
    setenv("NCCL_STANDIN_VERSION", plan->version, 1);
    setenv("NCCL_STANDIN", "engines", 1);
    if (plan->variable)
        setenv(plan->variable, "1", 1);
    opts.timeout_s = TIMEOUT_S;
    opts.nodes = nodes;
    opts.nccl = plan->nccl;
    int rc = fsdp_mesh_shape_for(&shape, FSDP_FULL_SHARD, 0, nodes, &err);
    rc = rc ? rc : fsdp_mesh_create_with(&mesh, shape, &opts, oob, env.device, &err);
    if (!check(plan->board, rc == FSDP_OK, "%s", err.text))
        return 1;
    compare(plan, mesh->gather, plan->gather);
    compare(plan, mesh->reduce, plan->reduce);
    compare(plan, mesh->world, plan->world);
    float *all = fsdp_comm_mem_alloc(mesh->gather, 8 * sizeof *all, &err);
    rc = all ? fsdp_comm_all_gather(mesh->gather, all, all + oob->rank, 1, FSDP_F32, env.lane, &err)
             : FSDP_ENOMEM;
    rc = rc ? rc : fsdp_lane_sync(env.lane, &err);
    check(plan->board, rc == FSDP_OK, "gather: %s", err.text);
    fsdp_mesh_destroy(mesh);
    env_close(&env);
    return 0;
}

/* Ranks with different options do not meet. */
static int mismatch_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct fsdp_comm *comm = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct env env;

    if (!env_open_cuda(&env, oob, nodes))
        return 1;
    struct fsdp_comm_opts opts = comm_opts(&env, "nccl", TIMEOUT_S);
    opts.nccl.most_ctas = oob->rank ? 8 : 4;
    int rc = fsdp_comm_create(&comm, &opts, oob, env.device, &err);
    check(plan->board, rc == FSDP_EMISMATCH && strstr(err.text, "different options of NCCL"),
          "%d: %s", rc, err.text);
    opts.nccl.most_ctas = -1;
    rc = fsdp_comm_create(&comm, &opts, oob, env.device, &err);
    check(plan->board, rc == FSDP_EINVAL && strstr(err.text, "-1 blocks"), "%d: %s", rc, err.text);
    opts.nccl.most_ctas = 0;
    if (oob->rank)
        setenv("NCCL_CTA_POLICY", "0", 1);
    rc = fsdp_comm_create(&comm, &opts, oob, env.device, &err);
    check(plan->board, rc == FSDP_EMISMATCH && strstr(err.text, "NCCL_CTA_POLICY"), "%d: %s", rc,
          err.text);
    env_close(&env);
    return 0;
}

static void run(rank_main_f *fn, int nnodes, struct plan plan, const char *what)
{
    struct board *board = plan.board = board_make();
    int bad = ranks_run(2, nnodes, TIMEOUT_S, fn, &plan, NULL);

    ok(bad == 0 && atomic_load(&board->nbad) == 0 && atomic_load(&board->nchecks) > 0,
       "%s: %d checks, %d bad%s%s", what, atomic_load(&board->nchecks), atomic_load(&board->nbad),
       board->first_bad[0] ? ": " : "", board->first_bad);
    munmap(board, sizeof *board);
}

#define COPIES ", by copy engines where it can, else by kernels"
#define KERNELS ", by kernels"

int main(void)
{
    const struct plan usual = {.version = "22809",
                               .gather = "NCCL 2.28.9" COPIES " of at most 16 blocks",
                               .reduce = "NCCL 2.28.9" KERNELS " of at most 16 blocks",
                               .world = "NCCL 2.28.9" KERNELS};
    struct plan p = usual;

    run(share_main, 1, usual, "one node");
    p.gather = usual.reduce;
    run(share_main, 2, p, "two nodes");
    p.nccl.no_copy_engines = true;
    run(share_main, 1, p, "copy engines are not wanted");
    p.nccl.no_copy_engines = false;
    p.variable = "NCCL_CTA_POLICY";
    run(share_main, 1, p, "the user's policy");
    p = usual;
    p.nccl.most_ctas = 4;
    p.gather = "NCCL 2.28.9" COPIES " of at most 4 blocks";
    p.reduce = "NCCL 2.28.9" KERNELS " of at most 4 blocks";
    run(share_main, 1, p, "4 blocks");
    p.variable = "NCCL_MIN_CTAS";
    p.gather = "NCCL 2.28.9" COPIES;
    p.reduce = usual.world;
    run(share_main, 1, p, "the user's blocks");
    p = usual;
    p.version = "22707";
    p.gather = p.reduce = "NCCL 2.27.7" KERNELS " of at most 16 blocks";
    p.world = "NCCL 2.27.7" KERNELS;
    run(share_main, 1, p, "a version whose policies end before");
    run(mismatch_main, 1, usual, "ranks that differ");
    return tap_done();
}
