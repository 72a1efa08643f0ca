/* SPDX-License-Identifier: Apache-2.0 */
/* The mesh: which shape a strategy gives on a node map, what is refused and with which fix, and
 * the communicators of a created one. */
#include "comm_test.h"
#include "why.h"
#include "fsdp/mesh.h"

static const char hosts[8][FSDP_HOST_NBYTES] = {"n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7"};

enum { MAP_RANKS = 16 };

/* A node map from digits: "0011" is four ranks on two nodes. */
static struct fsdp_node_map map_of(int node_of[MAP_RANKS], const char *digits)
{
    static char host[MAP_RANKS][FSDP_HOST_NBYTES];
    struct fsdp_node_map map = {.node_of = node_of};

    map.host = (const char(*)[FSDP_HOST_NBYTES])(void *)host;
    for (; digits[map.nranks]; map.nranks++) {
        node_of[map.nranks] = digits[map.nranks] - '0';
        snprintf(host[map.nranks], FSDP_HOST_NBYTES, "%s", hosts[node_of[map.nranks]]);
        if (map.nnodes <= node_of[map.nranks])
            map.nnodes = node_of[map.nranks] + 1;
    }
    return map;
}

static const struct {
    const char *nodes;
    enum fsdp_strategy strategy;
    int shard_size;       /* asked for */
    int shard, replicate; /* expected; shard 0: refused */
    const char *says;
} cases[] = {
    {"0", FSDP_FULL_SHARD, 0, 1, 1, NULL},
    {"0011", FSDP_FULL_SHARD, 0, 4, 1, NULL},
    {"0011", FSDP_FULL_SHARD, 4, 4, 1, NULL},
    {"0011", FSDP_FULL_SHARD, 2, 0, 0, "use HYBRID_SHARD for shard groups of 2"},
    {"0011", FSDP_SHARD_GRAD_OP, 0, 4, 1, NULL},
    {"0011", FSDP_SHARD_GRAD_OP, 2, 0, 0, "use HYBRID_SHARD_ZERO2"},
    {"001", FSDP_SHARD_GRAD_OP, 0, 3, 1, NULL}, /* unequal nodes matter to HYBRID_* alone */
    {"0011", FSDP_NO_SHARD, 0, 1, 4, NULL},
    {"0011", FSDP_NO_SHARD, 1, 1, 4, NULL},
    {"0011", FSDP_NO_SHARD, 2, 0, 0, "NO_SHARD has shard_size 1"},
    {"0011", FSDP_HYBRID_SHARD, 0, 2, 2, NULL},
    {"0011", FSDP_HYBRID_SHARD_ZERO2, 0, 2, 2, NULL},
    {"0011", FSDP_HYBRID_SHARD, 1, 1, 4, NULL},
    {"0011", FSDP_HYBRID_SHARD, 4, 4, 1, NULL}, /* whole nodes */
    {"00112233", FSDP_HYBRID_SHARD, 4, 4, 2, NULL},
    {"0000", FSDP_HYBRID_SHARD, 0, 4, 1, NULL},
    {"0000", FSDP_HYBRID_SHARD, 2, 2, 2, NULL},
    {"0123", FSDP_HYBRID_SHARD, 0, 1, 4, NULL},
    {"0011", FSDP_HYBRID_SHARD, 3, 0, 0, "shard_size 3 does not divide the world of 4 ranks"},
    {"0011", FSDP_FULL_SHARD, 3, 0, 0, "srun --ntasks"},
    {"0011", FSDP_FULL_SHARD, -1, 0, 0, "negative"},
    {"0001", FSDP_HYBRID_SHARD, 0, 0, 0,
     "node n0 has 3 ranks and node n1 has 1: give each node the "
     "same number (srun --ntasks-per-node)"},
    {"0001", FSDP_HYBRID_SHARD, 4, 4, 1, NULL}, /* one group holds all nodes, even or not */
    {"0101", FSDP_HYBRID_SHARD, 4, 4, 1, NULL},
    {"000011", FSDP_HYBRID_SHARD, 2, 2, 3, NULL}, /* no group crosses */
    {"0001", FSDP_HYBRID_SHARD, 1, 1, 4, NULL},
    {"0001", FSDP_HYBRID_SHARD_ZERO2, 2, 0, 0, "node n0 has 3 ranks and node n1 has 1"},
    {"0101", FSDP_HYBRID_SHARD, 0, 0, 0, "srun --distribution=block"},
    {"0101", FSDP_HYBRID_SHARD, 2, 0, 0, "srun --distribution=block"},
    {"000111", FSDP_HYBRID_SHARD, 2, 0, 0, "would cross nodes"},
    {"000111", FSDP_HYBRID_SHARD, 2, 0, 0, "have 2 ranks a node (srun --ntasks-per-node)"},
};

static void test_shapes(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int node_of[MAP_RANKS];
        struct fsdp_node_map map = map_of(node_of, cases[i].nodes);
        struct fsdp_mesh_shape shape = {.shard_size = -1, .replicate_size = -1};
        struct fsdp_err err = FSDP_ERR_INIT;
        int rc = fsdp_mesh_shape_for(&shape, cases[i].strategy, cases[i].shard_size, &map, &err);
        if (cases[i].shard)
            ok(rc == FSDP_OK && shape.shard_size == cases[i].shard &&
                   shape.replicate_size == cases[i].replicate,
               "%s on %s, shard_size %d: %d x %d %s", fsdp_strategy_name(cases[i].strategy),
               cases[i].nodes, cases[i].shard_size, shape.replicate_size, shape.shard_size,
               err.text);
        else
            ok(rc == FSDP_EINVAL && strstr(err.text, cases[i].says) && shape.shard_size == -1,
               "%s on %s, shard_size %d is refused: %s", fsdp_strategy_name(cases[i].strategy),
               cases[i].nodes, cases[i].shard_size, err.text);
    }
}

/* The same mistake, and what to tell whoever started the ranks. */
static void test_advice(void)
{
    static const char *const says[] = {[FSDP_STARTED_BY_SRUN] = "(srun --ntasks)",
                                       [FSDP_STARTED_BY_MPIRUN] = "(mpirun -n)",
                                       [FSDP_STARTED_HERE] = "(fsdp-launch -n)"};
    for (int i = 0; i < 3; i++) {
        int node_of[MAP_RANKS];
        struct fsdp_node_map map = map_of(node_of, "0011");
        struct fsdp_mesh_shape shape;
        struct fsdp_err err = FSDP_ERR_INIT;
        map.starter = (enum fsdp_starter)i;
        fsdp_mesh_shape_for(&shape, FSDP_FULL_SHARD, 3, &map, &err);
        ok(strstr(err.text, says[i]) && !strcmp(err.setting, "shard_size"), "%s", err.text);
    }
}

static void test_two_level(void)
{
    static const struct {
        const char *nodes;
        int shard, inner; /* inner -1: refused */
        const char *says;
    } levels[] = {
        {"0000", 4, 0, NULL},
        {"0011", 4, 2, NULL},
        {"0011", 2, 0, NULL},
        {"0123", 4, 0, NULL},
        {"000111222", 9, 3, NULL},
        {"00112233", 4, 2, NULL},
        {"001", 1, 0, NULL},
        {"001", 3, -1, "node n0 has 2 ranks and node n1 has 1"},
        {"0101", 4, -1, "srun --distribution=block"},
    };
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        int node_of[MAP_RANKS];
        struct fsdp_node_map map = map_of(node_of, levels[i].nodes);
        struct fsdp_mesh_shape shape = {.shard_size = levels[i].shard,
                                        .replicate_size = map.nranks / levels[i].shard};
        struct fsdp_err err = FSDP_ERR_INIT;
        int rc = fsdp_mesh_shape_two_level(&shape, &map, &err);
        if (levels[i].inner >= 0)
            ok(rc == FSDP_OK && shape.inner_size == levels[i].inner,
               "two levels of %d ranks on %s: %d a node", levels[i].shard, levels[i].nodes,
               shape.inner_size);
        else
            ok(rc == FSDP_EINVAL && strstr(err.text, levels[i].says),
               "two levels on %s are refused: %s", levels[i].nodes, err.text);
    }
}

static void test_arguments(void)
{
    int node_of[MAP_RANKS];
    struct fsdp_node_map map = map_of(node_of, "0011"), empty = {0};
    struct fsdp_mesh_shape shape;
    struct fsdp_err err = FSDP_ERR_INIT;

    ok(fsdp_mesh_shape_for(&shape, FSDP_FULL_SHARD, 0, NULL, &err) == FSDP_EINVAL, "no node map");
    ok(fsdp_mesh_shape_for(&shape, FSDP_FULL_SHARD, 0, &empty, &err) == FSDP_EINVAL,
       "an empty node map");
    ok(fsdp_mesh_shape_for(&shape, FSDP_NSTRATEGIES, 0, &map, &err) == FSDP_EINVAL,
       "an unknown strategy");
    node_of[2] = 7;
    ok(fsdp_mesh_shape_for(&shape, FSDP_FULL_SHARD, 0, &map, NULL) == FSDP_EINVAL,
       "a node that is not there");
}

static void test_names(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    enum fsdp_strategy got = FSDP_NSTRATEGIES;
    bool same = true;

    for (int i = 0; i < FSDP_NSTRATEGIES; i++)
        same &= fsdp_strategy_parse(&got, fsdp_strategy_name((enum fsdp_strategy)i), &err) == 0 &&
                got == (enum fsdp_strategy)i;
    ok(same, "every strategy's name is parsed");
    ok(fsdp_strategy_parse(&got, "hybrid_shard", &err) == 0 && got == FSDP_HYBRID_SHARD,
       "in lower case too");
    ok(fsdp_strategy_parse(&got, "SHARD", &err) == FSDP_EINVAL && strstr(err.text, "'SHARD'") &&
           strstr(err.text, "NO_SHARD"),
       "another name is refused: %s", err.text);
    ok(fsdp_strategy_parse(&got, NULL, &err) == FSDP_EINVAL, "no name is refused");
    ok(!strcmp(fsdp_strategy_name(FSDP_NSTRATEGIES), "?"), "a number out of range has a name");
    struct fsdp_mesh_shape shape = {.shard_size = 12, .replicate_size = 1};
    ok(fsdp_mesh_shape_regather(&shape, 5, &err) == FSDP_EINVAL &&
           strstr(err.text, "false, 2, 3, 4, 6, 12"),
       "a part count that does not divide: %s", err.text);
    ok(!fsdp_mesh_shape_regather(&shape, 4, &err) && shape.regather_size == 4 &&
           !fsdp_mesh_shape_regather(&shape, 12, &err) && shape.regather_size == 0,
       "a divisor makes groups, the whole group none");
}

/* ---- a created mesh -------------------------------------------------------------------------- */

struct plan {
    struct board *board;
    struct fsdp_mesh_shape shape;
};

/* The world ranks of a communicator, in its order. */
static bool members(struct env *env, struct fsdp_comm *comm, int first, int step)
{
    int got[MAX_RANKS];
    struct fsdp_err err = FSDP_ERR_INIT;

    if (fsdp_comm_all_gather(comm, got, &env->oob->rank, 1, FSDP_I32, env->lane, &err))
        return false;
    for (int i = 0; i < fsdp_comm_size(comm); i++)
        if (got[i] != first + i * step)
            return false;
    return true;
}

static int mesh_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    int shard = plan->shape.shard_size, rank = oob->rank;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_mesh *mesh = NULL;
    struct env env;

    if (!env_open(&env, oob, nodes, false))
        return 1;
    if (!check(plan->board,
               fsdp_mesh_create(&mesh, plan->shape, "auto", 60, nodes, oob, env.device, &err) ==
                   FSDP_OK,
               "create: %s", err.text))
        return 1;
    check(plan->board, mesh->rank == rank && mesh->size == oob->size && mesh->oob == oob, "world");
    const int inner = plan->shape.inner_size, index = rank % shard;
    const int group = rank / (inner ? inner : shard) * (inner ? inner : shard);
    const int first = rank - index + (inner ? index % inner : 0);
    check(plan->board, mesh->shard_size == shard, "shard");
    check(plan->board,
          mesh->shard_rank == (inner ? index % inner * (shard / inner) + index / inner : index),
          "rank %d: holds shard %d", rank, mesh->shard_rank);
    check(plan->board,
          mesh->replicate_rank == rank / shard &&
              mesh->replicate_size == plan->shape.replicate_size,
          "replicate");
    check(plan->board, members(&env, mesh->world, 0, 1), "rank %d: world's members", rank);
    check(plan->board, members(&env, mesh->gather, group, 1), "rank %d: gather's members", rank);
    check(plan->board, members(&env, mesh->reduce, group, 1), "rank %d: reduce's members", rank);
    check(plan->board, !inner || members(&env, mesh->outer_gather, first, inner),
          "rank %d: outer gather's members", rank);
    check(plan->board, !inner || members(&env, mesh->outer_reduce, first, inner),
          "rank %d: outer reduce's members", rank);
    check(plan->board, members(&env, mesh->replicate, rank % shard, shard),
          "rank %d: replicate's members", rank);
    check(plan->board, fsdp_comm_size(mesh->replicate) == plan->shape.replicate_size,
          "replicate's size");
    fsdp_comm_barrier(mesh->world, env.lane, &err);
    fsdp_mesh_abort(mesh, why("enough"));
    struct fsdp_comm *comms[] = {mesh->world, mesh->gather, mesh->reduce, mesh->replicate};
    for (int i = 0; i < 4; i++)
        check(plan->board,
              fsdp_comm_barrier(comms[i], env.lane, &err) == FSDP_ECANCELED &&
                  strstr(err.text, "enough"),
              "comm %d after abort: %s", i, err.text);
    fsdp_mesh_destroy(mesh);
    fsdp_mesh_destroy(NULL);
    fsdp_mesh_abort(NULL, why("nothing"));
    env_close(&env);
    return 0;
}

/* Shapes that do not fit, or differ between ranks; the channel stays in step. */
static int bad_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_mesh *mesh = NULL;
    struct fsdp_mesh_shape shape = {.shard_size = 3, .replicate_size = 1},
                           odd = {.shard_size = oob->rank ? 4 : 2,
                                  .replicate_size = oob->rank ? 1 : 2};
    struct env env;

    if (!env_open(&env, oob, nodes, false))
        return 1;
    int rc = fsdp_mesh_create(&mesh, shape, "auto", 60, nodes, oob, env.device, &err);
    check(plan->board, rc == FSDP_EINVAL && strstr(err.text, "1 x 3"), "%d: %s", rc, err.text);
    rc = fsdp_mesh_create(&mesh, odd, "auto", 60, nodes, oob, env.device, &err);
    check(plan->board, rc == FSDP_EMISMATCH, "%d: %s", rc, err.text);
    rc = fsdp_mesh_create(&mesh, plan->shape, "pigeon", 60, nodes, oob, env.device, &err);
    check(plan->board, rc == FSDP_EINVAL && strstr(err.text, "pigeon"), "%d: %s", rc, err.text);
    rc = fsdp_mesh_create(&mesh, plan->shape, "auto", 60, nodes, oob, env.device, &err);
    check(plan->board, rc == FSDP_OK && !mesh == false, "afterwards: %s", err.text);
    fsdp_mesh_destroy(mesh);
    env_close(&env);
    return 0;
}

static void test_created(rank_main_f *fn, int nranks, int nnodes, int shard, int inner)
{
    struct plan plan = {
        board_make(), {.shard_size = shard, .replicate_size = nranks / shard, .inner_size = inner}};
    int bad = ranks_run(nranks, nnodes, 60, fn, &plan, NULL);

    ok(bad == 0 && atomic_load(&plan.board->nbad) == 0 &&
           atomic_load(&plan.board->nchecks) >= 4 * nranks,
       "%s mesh of %d x %d on %d nodes%s: %d bad%s%s", fn == mesh_main ? "a" : "after bad ones, a",
       nranks / shard, shard, nnodes, inner ? ", two levels" : "", atomic_load(&plan.board->nbad),
       plan.board->first_bad[0] ? ": " : "", plan.board->first_bad);
    munmap(plan.board, sizeof *plan.board);
}

int main(void)
{
    test_shapes();
    test_arguments();
    test_names();
    test_advice();
    test_two_level();
    test_created(mesh_main, 1, 1, 1, 0);
    test_created(mesh_main, 4, 2, 2, 0);
    test_created(mesh_main, 4, 1, 4, 0);
    test_created(mesh_main, 4, 2, 1, 0);
    test_created(mesh_main, 6, 2, 3, 0);
    test_created(mesh_main, 6, 2, 6, 3);
    test_created(mesh_main, 8, 4, 4, 2);
    test_created(bad_main, 4, 2, 2, 0);
    return tap_done();
}
