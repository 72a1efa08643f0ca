/* SPDX-License-Identifier: Apache-2.0 */
/* The list of tensors of a quantized model: weights of linear layers become codes and scales, as
 * compressed-tensors has them. */
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/average.h"
#include "format/ctensors/ctensors.h"
#include "source/code_names.h"
#include "source/unpack.h"
#include "util/text.h"
#include "writer.h"

static const char head_name[] = "lm_head";
static const char weight_end[] = ".weight";

static bool is_8_bits(enum fsdp_dtype dtype)
{
    return fsdp_dtype_nbytes(dtype) == 1;
}

/* ---- what is refused ------------------------------------------------------------------------- */

static int refuse_weight(const struct ckpt_job *job, const char *name, const char *why,
                         struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EUNSUPPORTED, "'%s': tensor '%s' %s", job->ckpt->path, name, why);
}

/* A config.json, which says of no other quantization than one whose weights were decoded. */
static int check_config(const struct ckpt_job *job, struct fsdp_err *err)
{
    json_t *root;
    int rc = FSDP_OK;

    FSDP_TRY(ckpt_extra_json(&root, job->ckpt, "config.json", err));
    if (!root)
        return fsdp_err_set(err, FSDP_ENOTFOUND,
                            "'%s' has no config.json, and a quantized model says there how it is "
                            "quantized: copy the model's there",
                            job->ckpt->path);
    const json_t *config = json_object_get(root, "quantization_config");
    const char *method = json_string_value(json_object_get(config, "quant_method"));
    if (json_is_object(config) && !job->ckpt->npacked)
        rc = fsdp_err_set(err, FSDP_EUNSUPPORTED,
                          "'%s' is quantized already (%.40s): quantize the model that it was made "
                          "of",
                          job->ckpt->path, method ? method : "quantization_config");
    json_decref(root);
    return rc;
}

static int check_output(const struct ckpt_job *job, struct fsdp_err *err)
{
    if (!job->writer->quantizes || !job->folder)
        return fsdp_err_set_blame(err, FSDP_EINVAL, "quantize",
                                  "a quantized model is a Hugging Face folder: name a "
                                  "folder as the output, and no other form");
    if (job->args->all)
        return fsdp_err_set_blame(err, FSDP_EINVAL, "all",
                                  "a quantized model has no tensors of an optimizer");
    return check_config(job, err);
}

static int check_weight(const struct ckpt_job *job, const struct ckpt_job_tensor *of,
                        struct fsdp_err *err)
{
    const struct fsdp_tensor *t = &of->tensor;
    const struct ckpt_ct_scheme *scheme = job->quant->scheme;
    const uint64_t most = CKPT_JOB_BLOCK_NBYTES / CKPT_JOB_COMPUTED_NBYTES;
    for (int i = of->first_part; i < of->first_part + of->nparts; i++)
        if (is_8_bits(job->ckpt->m.layout.tensors[job->parts[i].tensor].tensor.dtype))
            return refuse_weight(job, t->name,
                                 "has 8 bits an element, as codes have: quantize the model that it "
                                 "was made of",
                                 err);
    if (t->dtype != FSDP_F32 && t->dtype != FSDP_BF16 && t->dtype != FSDP_F16)
        return refuse_weight(job, t->name,
                             "is quantized from float32, bfloat16 or float16, and has another "
                             "type: give --dtype bfloat16",
                             err);
    if (!fsdp_tensor_nelem(t))
        return refuse_weight(job, t->name,
                             "has no elements to quantize: leave it (--quantize-ignore)", err);
    if (t->shape[1] > most)
        return refuse_weight(job, t->name,
                             "has rows too long to quantize: leave it "
                             "(--quantize-ignore)",
                             err);
    if (scheme->strategy == CKPT_CT_GROUP && t->shape[1] % scheme->group)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "'%s': tensor '%s' has rows of %llu elements, which %s cannot cut into "
                            "groups of %u: use w8a16_channel or smaller groups, or leave the "
                            "tensor as it is (--quantize-ignore)",
                            job->ckpt->path, t->name, (unsigned long long)t->shape[1], scheme->name,
                            scheme->group);
    return FSDP_OK;
}

/* ---- codes that are there already ------------------------------------------------------------ */

static int refuse_codes(const struct ckpt *ckpt, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &ckpt->m.layout;
    for (int i = 0; i < layout->ntensors; i++) {
        const struct fsdp_tensor *t = &layout->tensors[i].tensor;
        const struct ckpt_tensor *scales = ckpt_scales_of(ckpt, t);
        if (scales)
            return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                                "'%s': tensor '%s' holds codes, which mean nothing without '%s', "
                                "and is no weight to change: take the model that it was made of, "
                                "or decode it first (in transformers: from_pretrained with "
                                "CompressedTensorsConfig(dequantize=True), save_pretrained)",
                                ckpt->path, t->name, scales->tensor.name);
    }
    return FSDP_OK;
}

int ckpt_job_check_codes(const struct ckpt_job *job, struct fsdp_err *err)
{
    const struct ckpt_reshard_args *args = job->args;
    const struct ckpt *of = job->ckpt;
    if (!args->dtype && !args->quantize && !args->adapters && !args->select.nmaps &&
        !args->average && !job->writer->own_types)
        return FSDP_OK; /* copied as they are */
    for (int i = 1; of; i++) {
        FSDP_TRY(refuse_codes(of, err));
        of = args->average ? ckpt_average_member(args->average, i) : NULL;
    }
    return FSDP_OK;
}

/* ---- the list -------------------------------------------------------------------------------- */

/* A layer of the name of its weight, with another end. The job keeps it. */
static const char *named(struct ckpt_job *job, const char *weight, const char *end,
                         struct fsdp_err *err)
{
    const size_t n = strlen(weight), cut = sizeof weight_end - 1;
    const size_t nstem = n > cut && !strcmp(weight + n - cut, weight_end) ? n - cut : n;
    char *text = ckpt_pool_text(&job->names, nstem + strlen(end) + 1, err);
    if (text) {
        memcpy(text, weight, nstem);
        memcpy(text + nstem, end, strlen(end) + 1);
    }
    return text;
}

static int ignore_layer(struct ckpt_job *job, const char *layer, struct fsdp_err *err)
{
    struct ckpt_job_quant *q = job->quant;
    const char **ignored = fsdp_alloc_grow(q->ignored, (size_t)q->nignored, &q->max_ignored,
                                           sizeof *ignored, "layers", err);
    if (!ignored)
        return FSDP_ENOMEM;
    q->ignored = ignored;
    q->ignored[q->nignored++] = layer;
    return FSDP_OK;
}

/* used[i]: glob i matched something. */
static bool is_ignored(const struct ckpt_job *job, const char *layer, const char *weight,
                       bool *used)
{
    bool found = false;
    for (int i = 0; i < job->args->nquantize_ignore; i++)
        if (!fnmatch(job->args->quantize_ignore[i], layer, 0) ||
            !fnmatch(job->args->quantize_ignore[i], weight, 0))
            found = used[i] = true;
    return found;
}

/* A tensor of the weight's layer. */
static int add_form(struct ckpt_job *job, const struct ckpt_job_tensor *of, enum ckpt_job_form form,
                    const struct fsdp_tensor *tensor, const char *end, struct fsdp_err *err)
{
    struct fsdp_tensor made = *tensor;
    if (!(made.name = named(job, of->tensor.name, end, err)))
        return FSDP_ENOMEM;
    FSDP_TRY(ckpt_job_add_tensor(job, &made, of->kind, err));
    struct ckpt_job_tensor *mine = &job->tensors[job->ntensors - 1];
    mine->role = of->role;
    mine->own = made.name;
    mine->form = form;
    mine->weight = job->quant->nweights - 1;
    if (form == CKPT_FORM_SHAPE) /* none of the weight's rows */
        return ckpt_job_add_part(
            job, &(struct ckpt_job_part){.tensor = job->parts[of->first_part].tensor, .nrows = 2},
            err);
    mine->first_part = of->first_part;
    mine->nparts = of->nparts;
    return FSDP_OK;
}

static int add_weight(struct ckpt_job *job, const struct ckpt_job_tensor *of, struct fsdp_err *err)
{
    struct ckpt_job_quant *q = job->quant;
    const struct ckpt_ct_scheme *scheme = q->scheme;
    const uint64_t nrows = of->tensor.shape[0], row_nelem = of->tensor.shape[1];
    FSDP_TRY(check_weight(job, of, err));
    struct ckpt_job_weight *weights = fsdp_alloc_grow(
        q->weights, (size_t)q->nweights, &q->max_weights, sizeof *weights, "weights", err);
    if (!weights)
        return FSDP_ENOMEM;
    q->weights = weights;
    q->weights[q->nweights++] = (struct ckpt_job_weight){
        .tensor = of->tensor, .first_part = of->first_part, .nparts = of->nparts};

    const bool one = scheme->strategy == CKPT_CT_TENSOR;
    const struct fsdp_tensor packed = {
        .dtype = FSDP_I32, .ndim = 2, .shape = {nrows, ckpt_ct_row_nbytes(scheme, row_nelem) / 4}};
    const struct fsdp_tensor codes = {
        .dtype = FSDP_F8_E4M3, .ndim = 2, .shape = {nrows, row_nelem}};
    const struct fsdp_tensor shape = {.dtype = FSDP_I64, .ndim = 1, .shape = {2}};
    const struct fsdp_tensor scales = {
        .dtype = of->tensor.dtype,
        .ndim = one ? 1 : 2,
        .shape = {one ? 1 : nrows, one ? 0 : ckpt_ct_nscales(scheme, row_nelem)}};
    FSDP_TRY(scheme->integers ? add_form(job, of, CKPT_FORM_CODES, &packed, ".weight_packed", err)
                              : add_form(job, of, CKPT_FORM_CODES, &codes, weight_end, err));
    if (scheme->integers)
        FSDP_TRY(add_form(job, of, CKPT_FORM_SHAPE, &shape, ".weight_shape", err));
    return add_form(job, of, one ? CKPT_FORM_SCALE : CKPT_FORM_SCALES, &scales, ".weight_scale",
                    err);
}

static int keep_tensor(struct ckpt_job *job, const struct ckpt_job_tensor *from,
                       struct fsdp_err *err)
{
    FSDP_TRY(ckpt_job_add_tensor(job, &from->tensor, from->kind, err));
    job->tensors[job->ntensors - 1] = *from;
    return FSDP_OK;
}

/* The name of the module that all experts of a layer are in, or of the last module but one. */
static void experts_of(char *out, size_t nbytes, const char *layer)
{
    const char *begin = strstr(layer, ".experts"), *end = strrchr(layer, '.');
    if (begin) {
        snprintf(out, nbytes, "*.experts*");
        return;
    }
    for (begin = end; begin && begin > layer && begin[-1] != '.'; begin--)
        ;
    snprintf(out, nbytes, "*.%.*s.*", begin ? (int)(end - begin) : 0, begin ? begin : "");
}

static int refuse_experts(const struct ckpt_job *job, const char *name, const char *layer,
                          struct fsdp_err *err)
{
    char glob[80];
    experts_of(glob, sizeof glob, layer);
    return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                        "'%s': tensor '%s' is of experts, which transformers holds in one tensor "
                        "for all and compressed-tensors does not quantize: leave them as they are "
                        "(--quantize-ignore '%s')",
                        job->ckpt->path, name, glob);
}

/* *head: the head was seen, under transformers' name. */
static int take_tensor(bool *head, struct ckpt_job *job, const struct ckpt_job_tensor *t,
                       bool *used, struct fsdp_err *err)
{
    const char *layer = named(job, t->tensor.name, "", err);
    const enum ckpt_ct_role role =
        t->kind == FSDP_SLICE_MODEL ? ckpt_ct_role_of(&t->tensor) : CKPT_CT_PLAIN;

    if (!layer)
        return FSDP_ENOMEM;
    *head |= !strcmp(layer, head_name);
    if (role == CKPT_CT_PLAIN)
        return keep_tensor(job, t, err);
    if (is_ignored(job, layer, t->tensor.name, used) || role == CKPT_CT_HEAD ||
        role == CKPT_CT_ROUTER) {
        FSDP_TRY(ignore_layer(job, layer, err));
        return keep_tensor(job, t, err);
    }
    if (role == CKPT_CT_LINEAR)
        return add_weight(job, t, err);
    if (role == CKPT_CT_EXPERT)
        return refuse_experts(job, t->tensor.name, layer, err);
    return refuse_weight(job, t->tensor.name,
                         "is a matrix, and its name is not known to be that of a linear layer: "
                         "leave it as it is (--quantize-ignore)",
                         err);
}

static int take_tensors(struct ckpt_job *job, const struct ckpt_job_tensor *tensors, int ntensors,
                        struct fsdp_err *err)
{
    const struct ckpt_reshard_args *args = job->args;
    bool *used = fsdp_alloc((size_t)args->nquantize_ignore, sizeof *used, "layers", err);
    bool head = false;
    int rc = used ? FSDP_OK : FSDP_ENOMEM;
    for (int i = 0; rc == FSDP_OK && i < ntensors; i++)
        rc = take_tensor(&head, job, &tensors[i], used, err);
    /* It is a layer even if it is tied to the embedding, or has another name in the file. */
    if (rc == FSDP_OK && !head)
        rc = ignore_layer(job, head_name, err);
    for (int i = 0; rc == FSDP_OK && i < args->nquantize_ignore; i++)
        if (!used[i])
            fsdp_log(FSDP_LOG_WARN, "--quantize-ignore '%s' changes nothing: it fits no layer",
                     args->quantize_ignore[i]);
    if (rc == FSDP_OK && !job->quant->nweights)
        rc = fsdp_err_set(err, FSDP_EINVAL, "'%s' has no weight of a linear layer to quantize",
                          job->ckpt->path);
    fsdp_free(used);
    return rc;
}

int ckpt_job_quantize(struct ckpt_job *job, struct fsdp_err *err)
{
    const struct ckpt_ct_scheme *scheme;
    const int known = ckpt_ct_scheme_of(&scheme, job->args->quantize, err);
    if (known)
        return fsdp_err_blame(err, known, "quantize");
    FSDP_TRY(check_output(job, err));
    if (!(job->quant = fsdp_alloc(1, sizeof *job->quant, "quantization", err)))
        return FSDP_ENOMEM;
    job->quant->scheme = scheme;
    job->plan_hash = fsdp_hash(FSDP_HASH_SEED, scheme->name, strlen(scheme->name) + 1);

    struct ckpt_job_tensor *tensors = job->tensors;
    const int ntensors = job->ntensors;
    job->tensors = NULL;
    job->ntensors = 0;
    job->max_tensors = 0;
    const int rc = take_tensors(job, tensors, ntensors, err);
    fsdp_free(tensors);
    for (int i = 0; i < job->quant->nignored; i++)
        job->plan_hash =
            fsdp_hash(job->plan_hash, job->quant->ignored[i], strlen(job->quant->ignored[i]) + 1);
    return rc;
}

void ckpt_job_quant_free(struct ckpt_job *job)
{
    if (job->quant) {
        fsdp_free(job->quant->weights);
        fsdp_free(job->quant->ignored);
    }
    fsdp_free(job->quant);
    job->quant = NULL;
}
