/* SPDX-License-Identifier: Apache-2.0 */
/* What is trained, in PEFT's files. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base.h"

/* ---- adapter_config.json --------------------------------------------------------------------- */

/* Is a parameter of `spec` the module's weight, or those of experts? */
static bool is_parameter(const struct ckpt_adapter_spec *spec, const char *module, size_t nbytes)
{
    for (int i = 0; i < spec->nparameters; i++)
        if (!strncmp(spec->parameters[i], module, nbytes) &&
            !strcmp(spec->parameters[i] + nbytes, ".weight"))
            return true;
    return ckpt_adapter_is_expert(spec, module, nbytes);
}

/* Linear maps that have adapters, each once; but not the parameters of `spec`. */
static int list_targets(const char ***out, int *count, const struct train_base *base,
                        const struct ckpt_adapter_spec *spec, struct fsdp_err *err)
{
    const int nparams = fsdp_param_count(base->parts->tree);
    const char **texts = fsdp_alloc((size_t)nparams + 1, sizeof *texts, "targets", err);
    json_t *seen = json_object();
    int rc = texts && seen ? FSDP_OK : FSDP_ENOMEM;

    *count = 0;
    for (int p = 0; rc == FSDP_OK && p < nparams; p++) {
        size_t nbytes;
        const char *at = ckpt_adapter_target(&nbytes, fsdp_param_tensor(base->parts->tree, p).name);
        if (at && is_parameter(spec, at, nbytes))
            continue;
        char *target = at ? fsdp_sprintf(err, "%.*s", (int)nbytes, at) : NULL;
        if (!target || json_object_get(seen, target)) {
            fsdp_free(target);
            continue;
        }
        json_object_set_new(seen, target, json_true());
        texts[(*count)++] = target;
    }
    json_decref(seen);
    *out = texts;
    return rc;
}

static int config_text_of(char **out, const struct train_base *base, struct fsdp_err *err)
{
    const struct train_adapter *a = &base->parts->adapter;
    struct model_info info;
    const char **targets = NULL;
    base->parts->ops->info(base->parts->model, &info);
    struct ckpt_adapter_spec spec = {.r = a->lora.r,
                                     .alpha = a->alpha,
                                     .dropout = a->lora.dropout,
                                     .rslora = a->rslora,
                                     .dora = a->lora.dora,
                                     .transposed = info.transposed,
                                     .parameters = info.parameters,
                                     .nparameters = info.nparameters,
                                     .modules_to_save = a->lora.modules_to_save,
                                     .nmodules = a->lora.nmodules};
    if (a->start) {
        spec.rank_pattern = ckpt_adapter_spec(a->start)->rank_pattern;
        spec.alpha_pattern = ckpt_adapter_spec(a->start)->alpha_pattern;
    }
    int ntargets, rc = list_targets(&targets, &ntargets, base, &spec, err);
    char *path = rc == FSDP_OK ? train_base_path(base, err) : NULL;
    spec.base = path;
    spec.targets = targets;
    spec.ntargets = ntargets;
    if (rc == FSDP_OK)
        rc = path ? ckpt_adapter_config(out, &spec, err) : FSDP_ENOMEM;
    for (int i = 0; targets && i < ntargets; i++)
        fsdp_free((char *)(uintptr_t)targets[i]);
    fsdp_free(targets);
    fsdp_free(path);
    return rc;
}

static int write_text(const char *path, const char *text, struct fsdp_err *err)
{
    int fd = -1;

    FSDP_TRY(fsdp_file_open(&fd, path, O_WRONLY | O_CREAT | O_TRUNC, err));
    FILE *file = fdopen(fd, "w");
    if (!file) {
        close(fd);
        return fsdp_err_sys(err, errno, "%s", path);
    }
    const bool whole = fputs(text, file) >= 0;
    return fclose(file) == 0 && whole ? FSDP_OK : fsdp_err_sys(err, errno, "%s", path);
}

static int write_config(const struct train_peft *peft, const struct train_base *base,
                        struct fsdp_err *err)
{
    char *text = NULL;
    int rc = config_text_of(&text, base, err);

    if (rc == FSDP_OK)
        rc = write_text(peft->config, text, err);
    fsdp_free(text);
    return rc;
}

/* ---- adapter_model.safetensors --------------------------------------------------------------- */

static bool is_written(const struct train_base *base, int param)
{
    const char *name = fsdp_param_tensor(base->parts->tree, param).name;
    return json_integer_value(json_object_get(base->kinds, name)) & TRAIN_TRAINED;
}

static int open_tensors(struct ckpt_adapter_file **out, const struct train_peft *peft,
                        const struct train_base *base, struct fsdp_err *err)
{
    const int nparams = fsdp_param_count(base->parts->tree);
    struct fsdp_tensor *tensors = fsdp_alloc((size_t)nparams, sizeof *tensors, "tensors", err);
    int n = 0;

    if (!tensors)
        return FSDP_ENOMEM;
    for (int p = 0; p < nparams; p++)
        if (is_written(base, p))
            tensors[n++] = fsdp_param_tensor(base->parts->tree, p);
    const int rc = ckpt_adapter_file_open(out, peft->tensors, tensors, n, err);
    fsdp_free(tensors);
    return rc;
}

static int put(void *ctx, const struct fsdp_full_param *param, struct fsdp_err *err)
{
    const uint64_t nelem = fsdp_tensor_nelem(&param->tensor);
    return ckpt_adapter_file_put(ctx, param->value, (size_t)nelem * sizeof(float), err);
}

static int put_all(struct ckpt_adapter_file *file, const struct train_base *base,
                   struct fsdp_err *err)
{
    struct fsdp_full_opts opts = FSDP_FULL_OPTS_INIT;

    opts.rank0_only = true;
    for (int p = 0; p < fsdp_param_count(base->parts->tree); p++) {
        opts.param = p;
        if (is_written(base, p))
            FSDP_TRY(fsdp_full_params(base->parts->fsdp, &opts, put, file, err));
    }
    return FSDP_OK;
}

/* Systems remove what lies in temporary folders for long, as this one may between two saves. */
static int make_again(const char *folder, struct fsdp_err *err)
{
    struct stat st;

    if (mkdir(folder, S_IRWXU) == 0)
        return FSDP_OK;
    if (errno != EEXIST || lstat(folder, &st))
        return fsdp_err_sys(err, errno, "%s", folder);
    return S_ISDIR(st.st_mode) && st.st_uid == geteuid()
               ? FSDP_OK
               : fsdp_err_set(err, FSDP_EIO, "%s: another user took this folder's place", folder);
}

int train_peft_write(const struct train_peft *peft, const struct train_base *base,
                     struct fsdp_oob *oob, struct fsdp_err *err)
{
    struct ckpt_adapter_file *file = NULL;
    int rc = FSDP_OK;

    if (peft->folder)
        rc = make_again(peft->folder, err);
    if (rc == FSDP_OK && peft->folder)
        rc = write_config(peft, base, err);
    if (rc == FSDP_OK && peft->folder)
        rc = open_tensors(&file, peft, base, err);
    rc = fsdp_oob_agree(oob, rc, err);
    if (rc == FSDP_OK)
        rc = put_all(file, base, err);
    const int closed = ckpt_adapter_file_close(file, rc ? NULL : err);
    return rc ? rc : fsdp_oob_agree(oob, closed, err);
}

/* ---- the folder ------------------------------------------------------------------------------ */

int train_peft_open(struct train_peft *peft, const struct train_base *base, bool lead,
                    struct fsdp_err *err)
{
    if (!lead || !train_base_is_on(base))
        return FSDP_OK;
    FSDP_TRY(fsdp_folder_temporary(&peft->folder, "fsdp-adapter", err));
    peft->config = fsdp_sprintf(err, "%s/" CKPT_ADAPTER_CONFIG, peft->folder);
    peft->tensors = fsdp_sprintf(err, "%s/" CKPT_ADAPTER_TENSORS, peft->folder);
    return peft->config && peft->tensors ? FSDP_OK : FSDP_ENOMEM;
}

void train_peft_clear(const struct train_peft *peft)
{
    if (peft->config)
        unlink(peft->config);
    if (peft->tensors)
        unlink(peft->tensors);
}

void train_peft_close(struct train_peft *peft)
{
    train_peft_clear(peft);
    if (peft->folder)
        rmdir(peft->folder);
    fsdp_free(peft->config);
    fsdp_free(peft->tensors);
    fsdp_free(peft->folder);
    *peft = (struct train_peft){0};
}
