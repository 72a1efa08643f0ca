/* SPDX-License-Identifier: Apache-2.0 */
/* The formats. A new one is a folder next to this file, and a row. */
#include "source/format_ops.h"

/* In the order in which they are asked. */
static const struct ckpt_format_ops *const formats[] = {
    &ckpt_native_ops, &ckpt_dcp_ops,       &ckpt_fsdp1_ops,   &ckpt_torch_ops,
    &ckpt_hf_ops,     &ckpt_deepspeed_ops, &ckpt_megatron_ops};
enum { NFORMATS = sizeof formats / sizeof formats[0] };

static const struct ckpt_format_ops *added[CKPT_MAX_FORMATS_ADDED];
static int nadded;

int ckpt_format_add(const struct ckpt_format_ops *ops, struct fsdp_err *err)
{
    if (nadded == CKPT_MAX_FORMATS_ADDED)
        return fsdp_err_set(err, FSDP_EINVAL, "there is room for %d added formats", nadded);
    added[nadded++] = ops;
    return FSDP_OK;
}

static const struct ckpt_format_ops *format_at(int i)
{
    return i < nadded ? added[i] : formats[i - nadded];
}

static int refuse_unknown(const struct ckpt *ckpt, struct fsdp_err *err)
{
    struct ckpt_names names;

    FSDP_TRY(ckpt_store_names(&names, ckpt->store, ckpt->path, err));
    int rc = FSDP_OK;
    for (int i = 0; rc == FSDP_OK && i < nadded + NFORMATS; i++)
        if (format_at(i)->explain)
            rc = format_at(i)->explain(ckpt, &names, err);
    ckpt_names_free(&names);
    if (rc == FSDP_OK)
        rc = fsdp_err_set(err, FSDP_ENOTFOUND,
                          "'%s' is no checkpoint: it has no " CKPT_MANIFEST_NAME
                          " (a save that never finished has none), no .metadata of torch, no "
                          "*.safetensors, no pytorch_model*.bin, no *_optim_states.pt of DeepSpeed "
                          "and no finished step-*",
                          ckpt->path);
    return rc;
}

int ckpt_format_find(const struct ckpt_format_ops **out, struct ckpt *ckpt, struct fsdp_err *err)
{
    struct ckpt_store_stat st;
    bool is = false;

    const int rc = ckpt_store_stat(&st, ckpt->store, ckpt->path, err);
    if (rc == FSDP_ENOTFOUND && ckpt->path[0] == '-' && !ckpt->path[1])
        return fsdp_err_set(err, rc,
                            "'-' is not there, and a checkpoint cannot come from standard input: "
                            "name its file or folder");
    FSDP_TRY(rc);
    for (int i = 0; i < nadded + NFORMATS; i++) {
        *out = format_at(i);
        if ((*out)->recognize)
            FSDP_TRY((*out)->recognize(&is, ckpt, &st, err));
        if (is)
            return FSDP_OK;
    }
    for (int i = 0; i < nadded + NFORMATS; i++) {
        *out = format_at(i);
        if ((*out)->recognize_within)
            FSDP_TRY((*out)->recognize_within(&is, ckpt, err));
        if (is)
            return FSDP_OK;
    }
    return refuse_unknown(ckpt, err);
}
