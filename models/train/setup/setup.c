/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/ckpt.h"
#include "nn/nn.h"
#include "setup.h"
#include "data.h"
#include "tokens.h"
#include "update_choice.h"

enum { AUTO_SEQ_LEN = 256 };

int train_stores_check(const struct config *c, struct fsdp_err *err)
{
    static const char *const keys[] = {"checkpoint.path", "checkpoint.resume"};
    const char *const paths[] = {c->checkpoint.path, c->checkpoint.resume};
    char where[CONFIG_TEXT + 128];

    for (int i = 0; i < 2; i++) {
        int rc = ckpt_path_check(paths[i], err);
        if (rc)
            return fsdp_err_prefix(err, rc, "%s: ", config_where(where, sizeof where, c, keys[i]));
    }
    return FSDP_OK;
}

int train_parts_config(struct train_parts *p, struct fsdp_oob *oob, const char *path,
                       int noverrides, char *const *overrides, struct fsdp_err *err)
{
    int rc = config_load(&p->config, path, noverrides, overrides, err);
    if (rc == FSDP_OK)
        rc = train_stores_check(p->config, err);
    if (rc == FSDP_OK)
        rc = config_agree_text(&p->agree, p->config, err);
    FSDP_TRY(fsdp_oob_agree(oob, rc, err));
    return fsdp_oob_agree_text(oob, "configuration", p->agree, err);
}

/* ---- model, data, device --------------------------------------------------------------------- */

/* status, with a hint if the folder that is missing here is next to the configuration file. */
static int hint_folder(const struct config *config, int status, struct fsdp_err *err)
{
    const char *path = config->model.path, *end = strrchr(config->file, '/');
    char full[2 * CONFIG_TEXT + 2];
    struct stat st;

    if (!end || path[0] == '/')
        return status;
    snprintf(full, sizeof full, "%.*s/%s", (int)(end - config->file), config->file, path);
    if (stat(full, &st) != 0)
        return status;
    return fsdp_err_hint(err, status,
                         "; paths are relative to the folder in which the command is typed, and %s "
                         "is there: change to %.*s first",
                         full, (int)(end - config->file + (end == config->file)), config->file);
}

/* full: config.json's own path; is_folder: model.path is another. */
static int keep_model(struct train_parts *p, const char *full, bool is_folder, struct fsdp_err *err)
{
    const char *slash = strrchr(full, '/');

    p->model_config = fsdp_strdup(full, err);
    p->model_folder =
        slash ? fsdp_sprintf(err, "%.*s", (int)(slash - full), full) : fsdp_strdup(".", err);
    p->weights = is_folder ? p->config->model.path : p->model_folder;
    return p->model_config && p->model_folder ? FSDP_OK : FSDP_ENOMEM;
}

/* config.json of a Hugging Face folder or of a checkpoint, or the file itself. */
static int find_model_config(struct train_parts *p, struct fsdp_err *err)
{
    static const char *const places[] = {"/config.json", "/hf/config.json", ""};
    const char *path = p->config->model.path;
    char where[CONFIG_TEXT + 128], full[CONFIG_TEXT + 32];
    struct stat st;

    if (stat(path, &st) != 0)
        return train_blame_missing(
            err,
            hint_folder(p->config,
                        fsdp_err_sys(err, errno, "%s: %s",
                                     config_where(where, sizeof where, p->config, "model.path"),
                                     path),
                        err),
            "model.path");
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(full, sizeof full, "%s%s", path, places[i]);
        if (stat(full, &st) == 0 && !S_ISDIR(st.st_mode))
            return keep_model(p, full, places[i][0] != 0, err);
    }
    return train_blame_missing(
        err,
        fsdp_err_set(err, FSDP_ENOTFOUND,
                     "%s: %s holds no config.json (Hugging Face's, of the model)",
                     config_where(where, sizeof where, p->config, "model.path"), path),
        "model.path");
}

static int hash_file(uint64_t *out, const char *path, struct fsdp_err *err)
{
    enum { MAX_NBYTES = 16 << 20 };
    size_t nbytes;
    char *text;

    FSDP_TRY(fsdp_file_read(&text, &nbytes, path, MAX_NBYTES, err));
    *out = fsdp_hash(FSDP_HASH_SEED, text, nbytes);
    fsdp_free(text);
    return FSDP_OK;
}

static int check_router(const struct train_parts *p, struct fsdp_err *err)
{
    char where[CONFIG_TEXT + 128];

    if (!(p->config->train.router_z_loss > 0) || p->ops->router(p->model).nexperts)
        return FSDP_OK;
    return fsdp_err_set_blame(
        err, FSDP_EINVAL, "train.router_z_loss", "%s: the model has no experts (%s)",
        config_where(where, sizeof where, p->config, "train.router_z_loss"), p->model_config);
}

/* What lora.base asks for, and how the model is stored. */
static int check_base(const struct train_parts *p, struct fsdp_err *err)
{
    const bool packs = p->config->lora.base != CONFIG_BASE_AUTO;
    const bool experts = p->config->lora.base == CONFIG_BASE_NF4_EXPERTS;
    struct model_info info;
    int rc = FSDP_OK;

    p->ops->info(p->model, &info);
    if (info.packed && !packs)
        rc = fsdp_err_set(err, FSDP_EUNSUPPORTED,
                          "%s: the model is quantized by bitsandbytes: set it to nf4, to train "
                          "adapters on it",
                          p->model_config);
    else if (info.packed && experts)
        rc =
            fsdp_err_set(err, FSDP_EUNSUPPORTED,
                         "%s: the model is quantized by bitsandbytes, which leaves experts as they "
                         "are: set it to nf4",
                         p->model_config);
    else if (experts && !p->ops->router(p->model).nexperts)
        rc = fsdp_err_set(err, FSDP_EINVAL, "%s: a %s has no experts: set it to nf4",
                          p->model_config, p->ops->family(p->model));
    else if (info.transposed && packs)
        rc = fsdp_err_set(err, FSDP_EUNSUPPORTED,
                          "%s: a %s has matrices of (in, out), which are not held in NF4 here",
                          p->model_config, p->ops->family(p->model));
    return config_blame(p->config, fsdp_err_blame(err, rc, "base"), err);
}

static enum nn_f8_scale f8_scale_of(const struct config *c)
{
    return c->model.linear_scales == CONFIG_LINEAR_ROW     ? NN_F8_ROW
           : c->model.linear_scales == CONFIG_LINEAR_BLOCK ? NN_F8_BLOCK
                                                           : NN_F8_TENSOR;
}

/* Products in 8 bits. */
static int set_f8(const struct train_parts *p, struct fsdp_err *err)
{
    const struct config *c = p->config;
    const struct fsdp_tunable_list *list = &c->model.linear_targets;
    const bool e5m2 = c->model.linear_grad_dtype == CONFIG_LINEAR_GRAD_E5M2;
    struct model_f8 f8 = {.dtype = FSDP_F8_E4M3,
                          .grad_dtype = e5m2 ? FSDP_F8_E5M2 : FSDP_F8_E4M3,
                          .scale = f8_scale_of(c),
                          .ntargets = list->nelem,
                          .gathered = c->fsdp.gather_dtype == CONFIG_GATHER_FLOAT8};
    const char **targets;

    if (c->model.linear_dtype == CONFIG_LINEAR_AUTO)
        return FSDP_OK;
    if (!(targets = fsdp_alloc((size_t)list->nelem + 1, sizeof *targets, "linear maps", err)))
        return FSDP_ENOMEM;
    for (int i = 0; i < list->nelem; i++)
        targets[i] = fsdp_tunable_list_at(list, i);
    f8.targets = targets;
    const int rc = p->ops->set_f8(p->model, &f8, err);
    fsdp_free(targets);
    return rc;
}

static int open_model(struct train_parts *p, struct fsdp_err *err)
{
    char where[CONFIG_TEXT + 128];

    FSDP_TRY(find_model_config(p, err));
    FSDP_TRY(hash_file(&p->model_hash, p->model_config, err));
    FSDP_TRY(model_find(&p->ops, p->model_config, err));
    FSDP_TRY(p->ops->create(&p->model, p->model_config, err));
    FSDP_TRY(check_router(p, err));
    FSDP_TRY(p->ops->set_device(p->model, p->device, err));
    FSDP_TRY(train_carried_open(&p->carried, p->config, p->weights, p->ops, p->model, err));
    if (p->config->train.objective == CONFIG_DPO)
        p->ops->set_dropout(p->model, 0); /* both passes of a pair see the same model */
    else if (p->config->model.dropout >= 0)
        p->ops->set_dropout(p->model, p->config->model.dropout);
    if (p->config->model.attention_dropout == CONFIG_DROPOUT_FAST)
        p->ops->set_fast_dropout(p->model);
    FSDP_TRY(config_blame(p->config, train_adapter_open(&p->adapter, p->config, err), err));
    FSDP_TRY(config_blame(p->config, p->ops->set_lora(p->model, &p->adapter.lora, err), err));
    FSDP_TRY(check_base(p, err));
    FSDP_TRY(config_blame(p->config, set_f8(p, err), err));
    int longest = p->ops->max_seq_len(p->model);
    if (!p->config->data.seq_len)
        p->config->data.seq_len = longest < AUTO_SEQ_LEN ? longest : AUTO_SEQ_LEN;
    if (p->config->data.seq_len > longest)
        return fsdp_err_set_blame(err, FSDP_EINVAL, "data.seq_len",
                                  "%s: %" PRId64 " is longer than the model's %d (%s)",
                                  config_where(where, sizeof where, p->config, "data.seq_len"),
                                  p->config->data.seq_len, longest, p->model_config);
    return FSDP_OK;
}

static void set_schedule(struct train_parts *p)
{
    const struct config *c = p->config;
    int64_t decay = c->optim.decay_steps >= 0 ? c->optim.decay_steps : (c->train.steps + 4) / 5;

    p->schedule = (struct fsdp_schedule){
        .kind = (enum fsdp_schedule_kind)c->optim.schedule,
        .lr = c->optim.lr,
        .min_lr = c->optim.min_lr,
        .warmup_steps = c->optim.warmup_steps,
        .total_steps = c->train.steps,
        .decay_steps = decay,
    };
}

/* The device of fsdp.device could not be had. */
static int blame_device(struct train_parts *p, int rc, struct fsdp_err *err)
{
    char device[16];

    config_word(device, sizeof device, p->config, "fsdp.device");
    if (rc && strcmp(device, "auto") != 0)
        fsdp_err_blame(err, rc, "device");
    return config_blame(p->config, rc, err);
}

static int choose_gpu(struct train_parts *p, struct fsdp_err *err)
{
    char device[16];

    config_word(device, sizeof device, p->config, "fsdp.device");
    return blame_device(p, train_gpu_choose(&p->gpu, device, p->info, err), err);
}

static int open_local(struct train_parts *p, int nranks, struct fsdp_err *err)
{
    FSDP_TRY(blame_device(p, fsdp_device_open(&p->device, p->gpu.device, 0, err), err));
    FSDP_TRY(open_model(p, err));
    config_divide(&p->batch, p->config, nranks);
    return train_text_open(&p->text, p->config, p->model_folder, p->ops, p->model, err);
}

/* Does this rank's device multiply in param_dtype? */
static bool multiplies(const struct train_parts *p)
{
    struct fsdp_err none = FSDP_ERR_INIT;
    enum fsdp_dtype dtype;
    char word[32];

    config_word(word, sizeof word, p->config, "fsdp.param_dtype");
    return fsdp_dtype_parse(&dtype, word, &none) == FSDP_OK && nn_multiplies(p->device, dtype);
}

/* Processors of a job may differ, and what they compute should not. */
static int agree_on_products(struct train_parts *p, struct fsdp_oob *oob, struct fsdp_err *err)
{
    const uint8_t own = !multiplies(p);
    uint8_t *all = fsdp_alloc((size_t)oob->size, sizeof *all, "ranks", err);
    int rc = fsdp_oob_agree(oob, all ? FSDP_OK : FSDP_ENOMEM, err);

    if (rc == FSDP_OK)
        rc = oob->allgather(oob, &own, sizeof own, all, err);
    for (int r = 0; r < oob->size && rc == FSDP_OK; r++)
        p->converts |= all[r];
    fsdp_free(all);
    return rc;
}

/* The files themselves may lie on each node's own disk; what is in them must be alike. */
static int agree_on_files(struct train_parts *p, struct fsdp_oob *oob, struct fsdp_err *err)
{
    uint64_t hash = p->data ? data_mixture_hash(p->data) : 0,
             nrows = p->data ? data_mixture_nrows(p->data) : 0;
    uint64_t eval_hash = p->eval ? data_mixture_hash(p->eval) : 0;
    uint64_t eval_nrows = p->eval ? data_mixture_nrows(p->eval) : 0;
    char *text = fsdp_sprintf(err,
                              "hash of config.json = %016" PRIx64 "\nrows = %" PRIu64
                              "\nhash of file sizes = %016" PRIx64 "\nheld-out rows = %" PRIu64
                              "\nhash of held-out file sizes = %016" PRIx64 "\n",
                              p->model_hash, nrows, hash, eval_nrows, eval_hash);
    FSDP_TRY(fsdp_oob_agree(oob, text ? FSDP_OK : FSDP_ENOMEM, err));
    int rc = fsdp_oob_agree_text(oob, "model or data", text, err);
    fsdp_free(text);
    return rc;
}

int train_parts_local(struct train_parts *p, struct fsdp_oob *oob,
                      const struct fsdp_node_map *nodes, struct fsdp_err *err)
{
    const struct config *c = p->config;

    FSDP_TRY(fsdp_oob_agree(oob, choose_gpu(p, err), err));
    FSDP_TRY(train_bind(&p->binding, &p->gpu, c->train.bind == CONFIG_BIND_NONE, oob, nodes, err));
    FSDP_TRY(train_cores_find(&p->cores, oob, nodes, err));
    p->threads = c->train.threads    ? (int)c->train.threads
                 : p->binding.ncores ? p->binding.ncores
                                     : train_cores_share(&p->cores);
    nn_set_threads(p->threads);
    FSDP_TRY(fsdp_oob_agree(oob, open_local(p, oob->size, err), err));
    FSDP_TRY(agree_on_products(p, oob, err));
    FSDP_TRY(train_tokens_prepare(p, oob, nodes, err));
    FSDP_TRY(fsdp_oob_agree(oob, train_data_open(p, err), err));
    if (oob->rank == 0)
        train_data_warn(p);
    set_schedule(p);
    return agree_on_files(p, oob, err);
}

/* ---- the engine ------------------------------------------------------------------------------ */

/* The texts of a list as an array that ends with NULL; NULL for an empty list. */
static int texts_of(const char ***out, const struct fsdp_tunable_list *list, const char *what,
                    struct fsdp_err *err)
{
    *out = NULL;
    if (!list->nelem)
        return FSDP_OK;
    if (!(*out = fsdp_alloc((size_t)list->nelem + 1, sizeof **out, what, err)))
        return FSDP_ENOMEM;
    for (int i = 0; i < list->nelem; i++)
        (*out)[i] = fsdp_tunable_list_at(list, i);
    return FSDP_OK;
}

static int set_names(struct train_parts *p, struct fsdp_opts *opts, struct fsdp_err *err)
{
    const struct config *c = p->config;

    FSDP_TRY(texts_of(&p->wrap_classes, &c->fsdp.wrap_classes, "wrap classes", err));
    FSDP_TRY(texts_of(&p->wrap_modules, &c->fsdp.wrap_modules, "modules", err));
    FSDP_TRY(texts_of(&p->checkpoint_modules, &c->fsdp.checkpoint_modules, "modules", err));
    FSDP_TRY(texts_of(&p->frozen, &c->fsdp.frozen, "frozen parameters", err));
    FSDP_TRY(texts_of(&p->ignored, &c->fsdp.ignored, "ignored parameters", err));
    opts->wrap_classes = p->wrap_classes ? p->wrap_classes : p->ops->wrap_classes(p->model);
    opts->wrap_modules = p->wrap_modules;
    opts->checkpoint_modules = p->checkpoint_modules;
    opts->frozen = p->frozen;
    opts->ignored = p->ignored;
    return FSDP_OK;
}

static int set_overrides(struct train_parts *p, struct fsdp_opts *opts, struct fsdp_err *err)
{
    const struct fsdp_tunable_list *list = &p->config->fsdp.unit_overrides;
    size_t nelem = (size_t)list->nelem;

    p->overrides = fsdp_alloc(nelem, sizeof *p->overrides, "unit overrides", err);
    p->override_texts = fsdp_alloc(nelem, sizeof *p->override_texts, "unit overrides", err);
    if (!p->overrides || !p->override_texts)
        return FSDP_ENOMEM;
    for (int i = 0; i < list->nelem; i++) {
        if (!(p->override_texts[i] = fsdp_strdup(fsdp_tunable_list_at(list, i), err)))
            return FSDP_ENOMEM;
        p->noverrides++;
        int rc = fsdp_unit_override_parse(&p->overrides[i], p->override_texts[i], err);
        FSDP_TRY(fsdp_err_blame(err, rc, "unit_overrides"));
    }
    opts->unit_overrides = p->overrides;
    opts->nunit_overrides = p->noverrides;
    return FSDP_OK;
}

static int set_groups(struct train_parts *p, struct fsdp_optim_opts *optim, struct fsdp_err *err)
{
    const struct config *c = p->config;
    const struct fsdp_tunable_list *list = &c->optim.groups;

    p->groups = fsdp_alloc((size_t)list->nelem, sizeof *p->groups, "parameter groups", err);
    if (!p->groups)
        return FSDP_ENOMEM;
    for (int i = 0; i < list->nelem; i++) {
        const char *text = fsdp_tunable_list_at(list, i);
        int rc = fsdp_optim_group_parse(&p->groups[i], text, c->optim.lr, err);
        FSDP_TRY(fsdp_err_blame(err, rc, "groups"));
    }
    optim->groups = p->groups;
    optim->ngroups = list->nelem;
    return FSDP_OK;
}

static int set_opts(struct train_parts *p, struct fsdp_opts *opts, struct fsdp_err *err)
{
    FSDP_TRY(config_opts(opts, p->config, err));
    opts->optim.name = config_word(p->optimizer, sizeof p->optimizer, p->config, "optim.name");
    opts->accumulation = p->batch.accumulation;
    opts->frozen_in_param_dtype = train_adapter_is_on(&p->adapter);
    opts->frozen_in_nf4 = p->config->lora.base != CONFIG_BASE_AUTO;
    opts->agree = p->agree;
    FSDP_TRY(set_groups(p, &opts->optim, err));
    FSDP_TRY(set_overrides(p, opts, err));
    FSDP_TRY(set_names(p, opts, err));
    p->optim = opts->optim;
    return FSDP_OK;
}

static int choose_shape(struct fsdp_mesh_shape *out, const struct config *c,
                        const struct fsdp_opts *opts, const struct fsdp_node_map *nodes,
                        struct fsdp_err *err)
{
    int regather = fsdp_opts_regather_size(opts);
    FSDP_TRY(
        fsdp_mesh_shape_for(out, opts->sharding_strategy, (int)c->fsdp.shard_size, nodes, err));
    if (regather)
        FSDP_TRY(fsdp_mesh_shape_regather(out, regather, err));
    if (c->fsdp.two_level)
        FSDP_TRY(fsdp_mesh_shape_two_level(out, nodes, err));
    return FSDP_OK;
}

/* Logits are as PyTorch's where the device of every rank multiplies in their type: in fp32 they are
 * the largest tensor of a pass, and the products behind them take about twice as long. */
const char *train_output_dtype(char *out, size_t out_nbytes, const struct train_parts *p)
{
    config_word(out, out_nbytes, p->config, "fsdp.output_dtype");
    if (strcmp(out, "auto") != 0)
        return out;
    config_word(out, out_nbytes, p->config, "fsdp.param_dtype");
    if (p->converts || !multiplies(p))
        snprintf(out, out_nbytes, "float32");
    return out;
}

/* Activations are computed in param_dtype, residual stream included, as under PyTorch's
 * MixedPrecisionPolicy; a unit with another type of its own keeps that for its weights. */
static int set_dtypes(struct train_parts *p, const struct fsdp_opts *opts, struct fsdp_err *err)
{
    struct model_dtypes dtypes = {.activation = opts->param_dtype,
                                  .grad = opts->reduce_dtype,
                                  .overrides = opts->nunit_overrides > 0};
    char word[32];

    FSDP_TRY(fsdp_dtype_parse(&dtypes.buffer,
                              config_word(word, sizeof word, p->config, "fsdp.buffer_dtype"), err));
    FSDP_TRY(fsdp_dtype_parse(&dtypes.output, train_output_dtype(word, sizeof word, p), err));
    p->ops->set_dtypes(p->model, &dtypes);
    return FSDP_OK;
}

static int describe_model(struct train_parts *p, const struct fsdp_opts *opts, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_module_tree_create(&p->tree, err));
    FSDP_TRY(set_dtypes(p, opts, err));
    if (train_data_is_packed(p->config))
        p->ops->set_packed(p->model);
    const int rc =
        p->ops->describe(p->model, p->tree, p->batch.micro_rows * train_parts_row_sequences(p),
                         (int)p->config->data.seq_len, err);
    train_carried_close(&p->carried);
    return rc;
}

/* What every rank does alone ends in agreement, so that nobody waits for one that failed and a
 * mistake of all is reported by one. */
int train_parts_engine(struct train_parts *p, struct fsdp_oob *oob,
                       const struct fsdp_node_map *nodes, struct fsdp_err *err)
{
    const struct config *c = p->config;
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct fsdp_mesh_shape shape;
    struct fsdp_comm_opts comm = FSDP_COMM_OPTS_INIT;
    char backend[16];

    int rc = set_opts(p, &opts, err);
    if (rc == FSDP_OK)
        rc = choose_shape(&shape, c, &opts, nodes, err);
    if (rc == FSDP_OK)
        rc = describe_model(p, &opts, err);
    if (rc == FSDP_OK)
        train_choose_update(&opts, p, nodes, shape);
    FSDP_TRY(fsdp_oob_agree(oob, config_blame(c, rc, err), err));
    FSDP_TRY(train_agree_update(&opts, oob, err));
    comm.backend = config_word(backend, sizeof backend, c, "fsdp.backend");
    comm.timeout_s = c->fsdp.timeout;
    comm.nodes = nodes;
    comm.nccl.no_copy_engines = !c->fsdp.nccl_copy_engines;
    comm.nccl.most_ctas = (int)c->fsdp.nccl_max_ctas;
    rc = fsdp_mesh_create_with(&p->mesh, shape, &comm, oob, p->device, err);
    if ((rc == FSDP_EINVAL || rc == FSDP_EUNSUPPORTED) && strcmp(backend, "auto") != 0)
        fsdp_err_blame(err, rc, "backend");
    p->updates_on_host = opts.offload_update == FSDP_OFFLOAD_UPDATE_HOST;
    if (rc == FSDP_OK)
        rc = fsdp_create(&p->fsdp, p->tree, &opts, p->device, p->mesh, err);
    return err->of_other ? rc
                         : config_blame(c, rc, err); /* that rank's configuration is at fault */
}

/* What fsdp.device means here: auto takes a GPU where this machine has one that can be used. */
static const char *planned_device(const struct train_parts *p)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    char device[16];
    int ngpus = 0;

    if (p->target)
        return p->target;
    config_word(device, sizeof device, p->config, "fsdp.device");
    if (!strcmp(device, "cpu"))
        return "cpu";
    return !strcmp(device, "cuda") || (!fsdp_device_count(&ngpus, &why) && ngpus) ? "cuda" : "cpu";
}

static int describe_device(struct train_parts *p, const struct fsdp_node_map *nodes,
                           struct fsdp_err *err)
{
    FSDP_TRY(fsdp_device_describe(&p->device, planned_device(p), err));
    if (!fsdp_device_is_host(p->device))
        return FSDP_OK;
    p->threads = (int)p->config->train.threads;
    if (!p->threads)
        p->threads = train_cores_planned(nodes, p->config->train.bind != CONFIG_BIND_NONE);
    nn_set_threads(p->threads);
    return FSDP_OK;
}

int train_parts_plan(struct train_parts *p, const char *path, int noverrides,
                     char *const *overrides, const struct fsdp_node_map *nodes,
                     struct fsdp_err *err)
{
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct fsdp_mesh_shape shape;

    FSDP_TRY(config_load(&p->config, path, noverrides, overrides, err));
    FSDP_TRY(config_agree_text(&p->agree, p->config, err));
    FSDP_TRY(describe_device(p, nodes, err));
    FSDP_TRY(open_model(p, err));
    config_divide(&p->batch, p->config, nodes->nranks);
    if (p->most_accumulation && p->batch.accumulation > p->most_accumulation)
        p->batch.accumulation = p->most_accumulation;
    int rc = set_opts(p, &opts, err);
    if (rc == FSDP_OK)
        rc = choose_shape(&shape, p->config, &opts, nodes, err);
    if (rc == FSDP_OK)
        rc = describe_model(p, &opts, err);
    if (rc == FSDP_OK)
        train_choose_update(&opts, p, nodes, shape);
    p->updates_on_host = opts.offload_update == FSDP_OFFLOAD_UPDATE_HOST;
    if (rc == FSDP_OK)
        rc = fsdp_plan(&p->fsdp, p->tree, &opts, p->device, shape, err);
    return config_blame(p->config, rc, err);
}

uint64_t train_parts_trained(const struct train_parts *p)
{
    const struct fsdp_state_layout *layout = fsdp_state_layout(p->fsdp);
    uint64_t nelem = 0;

    for (int k = 0; k < layout->nflats; k++)
        for (int i = 0; layout->flats[k].trainable && i < layout->flats[k].ntensors; i++)
            nelem += fsdp_tensor_nelem(&layout->flats[k].tensors[i]);
    return nelem;
}

struct train_state train_parts_state(const struct train_parts *p)
{
    struct train_state state = {
        .model_seed = p->config->model.seed,
        .global_batch_size = p->config->train.global_batch_size,
        .schedule = p->schedule,
        .optim = p->optim,
        .data = {.seq_len = p->config->data.seq_len, .seed = p->config->train.seed},
    };
    config_word(state.data.layout, sizeof state.data.layout, p->config, "data.layout");
    if (p->data) {
        state.data.nrows = data_mixture_nrows(p->data);
        state.data.hash = data_mixture_hash(p->data);
    }
    return state;
}

void train_parts_close(struct train_parts *p)
{
    fsdp_destroy(p->fsdp);
    fsdp_module_tree_destroy(p->tree);
    fsdp_mesh_destroy(p->mesh);
    fsdp_free(p->checkpoint_modules);
    fsdp_free(p->wrap_classes);
    fsdp_free(p->wrap_modules);
    fsdp_free(p->frozen);
    fsdp_free(p->ignored);
    for (int i = 0; i < p->noverrides; i++)
        fsdp_free(p->override_texts[i]);
    fsdp_free(p->override_texts);
    fsdp_free(p->overrides);
    fsdp_free(p->groups);
    data_mixture_close(p->eval);
    data_mixture_close(p->data);
    train_tokens_close(p);
    train_text_close(&p->text);
    if (p->model)
        p->ops->destroy(p->model);
    train_carried_close(&p->carried);
    train_adapter_close(&p->adapter);
    fsdp_device_close(p->device);
    fsdp_free(p->model_config);
    fsdp_free(p->model_folder);
    fsdp_free(p->agree);
    fsdp_free(p->config);
    *p = (struct train_parts){0};
}
