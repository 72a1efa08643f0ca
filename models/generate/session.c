/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "fsdp/device.h"
#include "files.h"
#include "session.h"
#include "weights/weights.h"

/* ---- weights --------------------------------------------------------------------------------- */

static int open_device(struct generate_session *s, const char *kind, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_device_open(&s->device, kind, 0, err));
    if (!strcmp(kind, "auto") && !fsdp_device_is_host(s->device))
        fsdp_log(FSDP_LOG_INFO, "device auto: the first GPU is used (--device cpu for the CPU)");
    return fsdp_lane_create(&s->lane, s->device, "compute", err);
}

struct destination {
    struct fsdp_lane *lane;
    char *at;
};

/* The reader uses src again when this returns. */
static int write_param(void *ctx, uint64_t pos, const void *src, size_t nbytes,
                       struct fsdp_err *err)
{
    const struct destination *to = ctx;
    FSDP_TRY(fsdp_copy(to->lane, to->at + pos, src, nbytes, err));
    return fsdp_lane_sync(to->lane, err);
}

static int keep_param(void *ctx, uint64_t pos, const void *src, size_t nbytes, struct fsdp_err *err)
{
    (void)err;
    memcpy((char *)ctx + pos, src, nbytes);
    return FSDP_OK;
}

/* With what adapters add to it, which is made in fp32. */
static int load_adapted(struct generate_session *s, const struct fsdp_slice *slice, float *to,
                        struct fsdp_err *err)
{
    const size_t nelem = (size_t)fsdp_tensor_nelem(&slice->tensor);
    float *whole = fsdp_alloc(nelem, sizeof *whole, slice->tensor.name, err);
    const struct fsdp_slice_io io = {.ctx = whole, .write = keep_param};
    int rc = whole ? ckpt_read_slice(s->ckpt, slice, &io, err) : FSDP_ENOMEM;

    if (rc == FSDP_OK)
        rc = ckpt_adapters_apply(s->adapters, &slice->tensor, &slice->box, whole, err);
    if (rc == FSDP_OK)
        rc = fsdp_copy(s->lane, to, whole, nelem * sizeof *whole, err);
    if (rc == FSDP_OK)
        rc = fsdp_lane_sync(s->lane, err);
    fsdp_free(whole);
    return rc;
}

static int load_param(struct generate_session *s, int i, struct fsdp_err *err)
{
    struct fsdp_slice slice = {.tensor = fsdp_param_tensor(s->tree, i), .nreplica = 1};
    const size_t nbytes = fsdp_tensor_nelem(&slice.tensor) * sizeof(float);
    memcpy(slice.box.length, slice.tensor.shape, sizeof slice.box.length);
    s->param[i] = fsdp_device_alloc(s->device, nbytes, slice.tensor.name, err);
    if (!s->param[i])
        return FSDP_ENOMEM;
    if (ckpt_adapters_change(s->adapters, slice.tensor.name))
        return load_adapted(s, &slice, s->param[i], err);
    struct destination to = {s->lane, (char *)s->param[i]};
    struct fsdp_slice_io io = {.ctx = &to, .write = write_param};
    return ckpt_read_slice(s->ckpt, &slice, &io, err);
}

static int load_params(struct generate_session *s, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_module_tree_create(&s->tree, err));
    FSDP_TRY(s->ops->describe(s->model, s->tree, 1, 1, err));
    FSDP_TRY(weights_find(s->ckpt, s->tree, err));
    FSDP_TRY(weights_check_tied(s->ckpt, s->tree, err));
    s->param = fsdp_alloc((size_t)fsdp_param_count(s->tree), sizeof *s->param, "weights", err);
    if (!s->param)
        return FSDP_ENOMEM;
    for (int i = 0; i < fsdp_param_count(s->tree); i++)
        FSDP_TRY(load_param(s, i, err));
    return ckpt_unchanged(s->ckpt, err);
}

/* ---- the model ------------------------------------------------------------------------------- */

static int create_model(struct generate_session *s, struct fsdp_err *err)
{
    char *config;

    FSDP_TRY(generate_session_file(&config, s, "config.json", err));
    if (!config)
        return fsdp_err_set(err, FSDP_ENOTFOUND,
                            "%s: no config.json with it, which says what model this is", s->path);
    int rc = model_find(&s->ops, config, err);
    if (!rc)
        rc = s->ops->create(&s->model, config, err);
    fsdp_free(config);
    return rc;
}

/* End tokens are those of generation_config.json where it names some, as transformers has it. */
static int read_config(struct generate_session *s, bool ignore, struct fsdp_err *err)
{
    struct model_info info;
    char *path = NULL;

    s->config = generate_config_none;
    if (!ignore)
        FSDP_TRY(generate_session_file(&path, s, "generation_config.json", err));
    const int rc = path ? generate_config_read(&s->config, path, err) : FSDP_OK;
    fsdp_free(path);
    if (rc)
        return rc;
    s->ops->info(s->model, &info);
    s->bos = s->config.bos >= 0 ? s->config.bos : info.bos;
    s->neos = s->config.neos ? s->config.neos : info.neos;
    memcpy(s->eos, s->config.neos ? s->config.eos : info.eos, sizeof s->eos);
    return FSDP_OK;
}

/* ---- the session ----------------------------------------------------------------------------- */

int generate_session_open(struct generate_session *s, const struct generate_settings *set,
                          struct fsdp_err *err)
{
    s->path = set->model;
    FSDP_TRY(ckpt_open(&s->ckpt, s->path, err));
    FSDP_TRY(ckpt_unpack(s->ckpt, err));
    if (ckpt_holds_adapters(s->ckpt))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "'%s' holds adapters and not the model that they belong to: give "
                            "--model MODEL --adapter %s",
                            s->path, s->path);
    if (set->nadapters) {
        FSDP_TRY(ckpt_adapters_open(&s->adapters, set->adapters, set->nadapters, err));
        FSDP_TRY(ckpt_adapters_check(s->adapters, s->ckpt, err));
    }
    FSDP_TRY(create_model(s, err));
    FSDP_TRY(read_config(s, set->ignore_config, err));
    FSDP_TRY(open_device(s, set->device, err));
    FSDP_TRY(s->ops->set_device(s->model, s->device, err));
    s->vocab = s->ops->vocab_size(s->model);
    s->max_seq_len = s->ops->max_seq_len(s->model);
    return load_params(s, err);
}

int generate_session_decoder(struct generate_session *s, int max_tokens, int nsequences,
                             int kv_dtype, struct fsdp_err *err)
{
    char cache_text[FSDP_NBYTES_TEXT], all_text[FSDP_NBYTES_TEXT];
    struct model_info info;
    size_t cache, all;

    if (s->decoder)
        s->ops->decoder_destroy(s->decoder);
    s->decoder = NULL;
    s->ops->info(s->model, &info);
    const bool is_short = info.dtype == FSDP_BF16 || info.dtype == FSDP_F16;
    const enum fsdp_dtype own = is_short ? info.dtype : FSDP_F32;
    const struct model_decoder_opts opts = {
        .max_tokens = max_tokens,
        .nsequences = nsequences,
        .kv_dtype = kv_dtype < 0 ? own : (enum fsdp_dtype)kv_dtype,
    };
    FSDP_TRY(s->ops->decoder_create(&s->decoder, s->model, (const float *const *)s->param, s->lane,
                                    &opts, err));
    s->nsequences = nsequences;
    s->ops->decoder_nbytes(s->decoder, &cache, &all);
    fsdp_log(FSDP_LOG_INFO, "keys and values: %s in %s, for %d x %d tokens; %s with scratch",
             fsdp_nbytes_text(cache_text, cache), fsdp_dtype_name(opts.kv_dtype), nsequences,
             max_tokens, fsdp_nbytes_text(all_text, all));
    return FSDP_OK;
}

bool generate_session_ends(const struct generate_session *s, int32_t token)
{
    for (int i = 0; i < s->neos; i++)
        if (s->eos[i] == token)
            return true;
    return false;
}

void generate_session_close(struct generate_session *s)
{
    if (s->decoder)
        s->ops->decoder_destroy(s->decoder);
    for (int i = 0; s->param && i < fsdp_param_count(s->tree); i++)
        fsdp_device_free(s->device, s->param[i]);
    fsdp_lane_destroy(s->lane);
    fsdp_device_close(s->device);
    fsdp_free(s->param);
    fsdp_module_tree_destroy(s->tree);
    if (s->model)
        s->ops->destroy(s->model);
    generate_files_remove(s);
    ckpt_adapters_close(s->adapters);
    ckpt_close(s->ckpt);
}
