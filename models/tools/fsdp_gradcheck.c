/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp-gradcheck: compares a model family's backward pass with finite differences. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "check/gradcheck.h"
#include "family/model.h"
#include "fsdp/sys/cli.h"

struct settings {
    const char *model, *device;
    int batch, seq_len, directions, seed; /* seq_len 0: not given */
    int documents;
    double tolerance, dropout;
    int checkpointing; /* FSDP_AC_* */
    bool mask;
};

struct session {
    const struct model_ops *ops;
    struct model *model;
    struct fsdp_module_tree *tree;
    struct fsdp_oob *oob;
    struct fsdp_device *device;
    struct fsdp_lane *lane; /* carries losses */
    double *loss;           /* on the device */
    struct fsdp_mesh *mesh;
    struct fsdp *f;
    int32_t *tokens, *labels, *starts;
    struct gradcheck_row *rows;
    struct model_batch batch;
};

/* ---- settings ------------------------------------------------------------------------------- */

static const char *const checkpointing[] = {
    [FSDP_AC_NONE] = "none", [FSDP_AC_FULL] = "full", [FSDP_AC_SELECTIVE] = "selective", NULL};

enum { MOST = 1 << 20 };
#define AT(field) offsetof(struct settings, field)
static const struct fsdp_cli_option model_rows[] = {
    {"model", .arg = "PATH", .kind = FSDP_CLI_FILE, .offset = AT(model),
     .help = "the model to check: a config.json or its folder"},
    {"batch", .arg = "B", .kind = FSDP_CLI_INT, .offset = AT(batch), .least = 1, .most = MOST,
     .help = "sequences (default: 2)"},
    {"seq-len", .arg = "T", .kind = FSDP_CLI_INT, .offset = AT(seq_len), .least = 1, .most = MOST,
     .help = "tokens per sequence (default: 8, or the model's positions)"},
    {"documents", .arg = "N", .kind = FSDP_CLI_INT, .offset = AT(documents), .least = 1,
     .most = MOST, .help = "documents per sequence, which attention does not cross (default: 1)"},
    {"mask", .offset = AT(mask), .help = "ignore every third token in the loss"},
    {"dropout", .arg = "P", .kind = FSDP_CLI_BELOW, .offset = AT(dropout), .least = 0, .most = 1,
     .help = "probability of dropout, where the model has it (default: 0)"},
    {"activation-checkpointing", .arg = "KIND", .kind = FSDP_CLI_WORD, .offset = AT(checkpointing),
     .words = checkpointing, .help = "none, full or selective (default: none)"},
    {.help = NULL}};
static const struct fsdp_cli_option check_rows[] = {
    {"directions", .arg = "N", .kind = FSDP_CLI_INT, .offset = AT(directions), .least = 1,
     .most = MOST, .help = "directions to move each parameter in (default: 8)"},
    {"tolerance", .arg = "X", .kind = FSDP_CLI_WITHIN, .offset = AT(tolerance), .least = 0,
     .most = 1, .help = "largest relative difference that passes (default: 0.003)"},
    {"seed", .arg = "S", .kind = FSDP_CLI_INT, .offset = AT(seed), .least = 0, .most = MOST,
     .help = "seed of weights, tokens and directions (default: 0)"},
    {"device", .arg = "KIND", .kind = FSDP_CLI_NAME, .offset = AT(device),
     .words = fsdp_cli_devices,
     .help = "auto (a GPU if there is one), cpu or cuda (default: auto)"},
    {.help = NULL}};
static const struct fsdp_cli_group groups[] = {
    {"Model and input", model_rows}, {"Check", check_rows}, {NULL, NULL}};
static const struct fsdp_cli_note exits[] = {{"0", "all parameters pass"},
                                             {"1", "some fail, or the model cannot be checked"},
                                             {"2", "wrong usage"},
                                             {NULL, NULL}};
static const struct fsdp_cli_program program = {
    .name = "fsdp-gradcheck",
    .usage = "--model PATH [options]",
    .purpose =
        "Compares the backward pass of a model with central finite differences of its loss, on "
        "random weights and tokens, and prints the largest relative difference of each parameter. "
        "A small model (some 10,000 weights) is enough.",
    .groups = groups,
    .examples = "fsdp-gradcheck --model config.json\n"
                "fsdp-gradcheck --model tiny --seq-len 16 --documents 3 --mask\n"
                "fsdp-gradcheck --model tiny --device cuda --tolerance 0.01",
    .exits = exits,
};

/* -1, or the exit code where the program ends here. */
static int parse_options(struct settings *s, int argc, char **argv)
{
    struct fsdp_cli_line line;
    const int rc = fsdp_cli_begin(&line, &program, s, argc, argv, stderr);

    if (rc >= 0)
        return rc;
    return s->model ? -1 : fsdp_cli_refuse(stderr, &program, "give the model: --model PATH");
}

/* ---- the model ------------------------------------------------------------------------------ */

static int open_model(struct session *s, const struct settings *set, struct fsdp_err *err)
{
    struct stat st;
    const bool folder = stat(set->model, &st) == 0 && S_ISDIR(st.st_mode);
    char *config = fsdp_sprintf(err, "%s%s", set->model, folder ? "/config.json" : "");
    if (!config)
        return FSDP_ENOMEM;
    int rc = model_find(&s->ops, config, err);
    if (!rc)
        rc = s->ops->create(&s->model, config, err);
    fsdp_free(config);
    return rc;
}

/* Documents of about equal length; with --mask labels of which every third does not count. */
static int make_documents(struct session *s, const struct settings *set, int T,
                          struct fsdp_err *err)
{
    const size_t nrows = (size_t)set->batch;

    if (set->documents > T)
        return fsdp_err_set(err, FSDP_EINVAL, "%d documents do not fit into %d tokens",
                            set->documents, T);
    if (!(s->labels = fsdp_alloc(nrows * (size_t)T, sizeof *s->labels, "labels", err)) ||
        !(s->starts = fsdp_alloc(nrows * (size_t)T, sizeof *s->starts, "documents", err)))
        return FSDP_ENOMEM;
    for (size_t b = 0; b < nrows; b++)
        for (int t = 0, start = 0; t < T; t++) {
            const size_t at = b * (size_t)T + (size_t)t;
            if ((int64_t)t * set->documents / T != (int64_t)(t - 1) * set->documents / T)
                start = t;
            s->starts[at] = start;
            s->labels[at] = set->mask && at % 3 == 1 ? MODEL_IGNORE : s->tokens[at + b + 1];
        }
    return FSDP_OK;
}

static int make_batch(struct session *s, const struct settings *set, struct fsdp_err *err)
{
    const int room = s->ops->max_seq_len(s->model), vocab = s->ops->vocab_size(s->model);
    const int T = set->seq_len ? set->seq_len : room < 8 ? room : 8;
    const size_t ntokens = (size_t)set->batch * ((size_t)T + 1);
    uint64_t hash = fsdp_hash(FSDP_HASH_SEED, &set->seed, sizeof set->seed);

    if (!(s->tokens = fsdp_alloc(ntokens, sizeof *s->tokens, "tokens", err)))
        return FSDP_ENOMEM;
    for (size_t i = 0; i < ntokens; i++) {
        hash = fsdp_hash(hash, &i, sizeof i);
        s->tokens[i] = (int32_t)(hash % (uint64_t)vocab);
    }
    FSDP_TRY(make_documents(s, set, T, err));
    s->ops->set_dropout(s->model, set->dropout);
    s->batch = (struct model_batch){.tokens = s->tokens,
                                    .B = set->batch,
                                    .T = T,
                                    .loss_scale = 1,
                                    .labels = set->mask ? s->labels : NULL,
                                    .starts = set->documents > 1 ? s->starts : NULL,
                                    .dropout = set->dropout > 0,
                                    .seed = (uint64_t)set->seed};
    return FSDP_OK;
}

static int open_session(struct session *s, const struct settings *set, struct fsdp_err *err)
{
    static const int node_of[1];
    const struct fsdp_node_map nodes = {.nranks = 1, .nnodes = 1, .node_of = node_of};
    const struct fsdp_mesh_shape shape = {.shard_size = 1, .replicate_size = 1};
    struct fsdp_opts opts = gradcheck_opts();

    FSDP_TRY(open_model(s, set, err));
    FSDP_TRY(make_batch(s, set, err));
    FSDP_TRY(fsdp_module_tree_create(&s->tree, err));
    FSDP_TRY(s->ops->describe(s->model, s->tree, s->batch.B, s->batch.T, err));
    FSDP_TRY(fsdp_oob_self_create(&s->oob, err));
    FSDP_TRY(fsdp_device_open(&s->device, set->device, 0, err));
    FSDP_TRY(fsdp_lane_create(&s->lane, s->device, "losses", err));
    if (!(s->loss = fsdp_device_alloc(s->device, sizeof *s->loss, "loss", err)))
        return FSDP_ENOMEM;
    FSDP_TRY(fsdp_mesh_create(&s->mesh, shape, "auto", 60, &nodes, s->oob, s->device, err));
    opts.activation_checkpointing = set->checkpointing;
    opts.wrap_policy = FSDP_WRAP_TRANSFORMER;
    opts.wrap_classes = s->ops->wrap_classes(s->model);
    FSDP_TRY(fsdp_create(&s->f, s->tree, &opts, s->device, s->mesh, err));
    FSDP_TRY(fsdp_init_params(s->f, err));
    s->rows = fsdp_alloc((size_t)fsdp_param_count(s->tree), sizeof *s->rows, "results", err);
    if (!s->rows)
        return FSDP_ENOMEM;
    return gradcheck_randomize(s->f, s->tree, (uint64_t)set->seed, err);
}

static void close_session(struct session *s)
{
    fsdp_free(s->rows);
    fsdp_destroy(s->f);
    fsdp_mesh_destroy(s->mesh);
    fsdp_lane_destroy(s->lane);
    if (s->device)
        fsdp_device_free(s->device, s->loss);
    fsdp_device_close(s->device);
    if (s->oob)
        s->oob->close(s->oob);
    fsdp_module_tree_destroy(s->tree);
    if (s->model)
        s->ops->destroy(s->model);
    fsdp_free(s->starts);
    fsdp_free(s->labels);
    fsdp_free(s->tokens);
}

static int pass_model(void *ctx, struct fsdp *f, bool train, double *loss, struct fsdp_err *err)
{
    struct session *s = ctx;
    double here;

    FSDP_TRY(fsdp_zero(s->lane, s->loss, sizeof here, err));
    FSDP_TRY(fsdp_lane_sync(s->lane, err));
    FSDP_TRY(s->ops->run(s->model, f, &s->batch, train, s->loss, err));
    FSDP_TRY(fsdp_sync(f, err));
    FSDP_TRY(fsdp_copy(s->lane, &here, s->loss, sizeof here, err));
    FSDP_TRY(fsdp_lane_sync(s->lane, err));
    *loss += here;
    return FSDP_OK;
}

/* ---- output --------------------------------------------------------------------------------- */

/* How many parameters fail. */
static int report_params(const struct session *s, double tolerance)
{
    const int nparams = fsdp_param_count(s->tree);
    int nfailed = 0;

    printf("%-12s %-12s %s\n", "difference", "gradient", "parameter");
    for (int i = 0; i < nparams; i++) {
        const struct gradcheck_row *row = &s->rows[i];
        const bool good = row->worst <= tolerance || row->below_noise;
        printf("%-12.1e %-12.1e %s%s\n", row->worst, row->grad_norm, row->name,
               !good              ? "   WRONG"
               : row->below_noise ? "   (too small to tell)"
                                  : "");
        nfailed += !good;
    }
    printf("%s: %d parameters, %d over %g\n", s->ops->family(s->model), nparams, nfailed,
           tolerance);
    if (nfailed && s->ops->router(s->model).nexperts)
        printf("A finite step may change which experts are chosen, and differ then: try other "
               "seeds.\n");
    return nfailed;
}

int main(int argc, char **argv)
{
    struct settings settings = {
        .device = "auto", .batch = 2, .directions = 8, .documents = 1, .tolerance = 0.003};
    struct session session = {0};
    struct fsdp_err err = FSDP_ERR_INIT;
    bool failed = true;

    int rc = parse_options(&settings, argc, argv);
    if (rc >= 0)
        return rc;
    rc = open_session(&session, &settings, &err);
    if (rc == FSDP_OK)
        rc = gradcheck_run(session.rows, session.f, session.tree, settings.directions,
                           (uint64_t)settings.seed, pass_model, &session, &err);
    if (rc == FSDP_OK)
        failed = report_params(&session, settings.tolerance) > 0;
    else
        fprintf(stderr, "fsdp-gradcheck: %s\n", err.text);
    close_session(&session);
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "fsdp-gradcheck: standard output cannot be written\n");
        failed = true;
    }
    return failed;
}
