/* SPDX-License-Identifier: Apache-2.0 */
/* Output of whole tensors: a GGUF file, as llama.cpp reads it. */
#include <string.h>

#include "average/average.h"
#include "format/gguf/gguf.h"
#include "util/crc.h"
#include "file/sink.h"
#include "writer.h"

/* ---- the job's list -------------------------------------------------------------------------- */

/* The job's tensors before the plan. */
struct inputs {
    struct ckpt_job_tensor *tensors;
    struct ckpt_job_part *parts;
    int ntensors;
};

static int refuse_joined(const char *name, struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                        "tensor '%s' is made of others, or of ordered rows, by --map: merge to "
                        "safetensors first, and make the GGUF file of that",
                        name);
}

static int add_part(struct ckpt_job *job, const struct inputs *in,
                    const struct ckpt_gguf_part *from, uint64_t row, struct fsdp_err *err)
{
    static const enum ckpt_row_order orders[] = {[CKPT_GGUF_SAME] = CKPT_ROWS_SAME,
                                                 [CKPT_GGUF_PAIRS] = CKPT_ROWS_TO_PAIRS,
                                                 [CKPT_GGUF_COLUMNS] = CKPT_ROWS_COLUMNS};
    const struct ckpt_job_tensor *t = &in->tensors[from->input];
    const struct ckpt_job_part *stored = &in->parts[t->first_part];
    if (t->nparts != 1 || stored->order != CKPT_ROWS_SAME || stored->src_row)
        return refuse_joined(t->tensor.name, err);
    const struct ckpt_job_part part = {.tensor = stored->tensor,
                                       .row = row,
                                       .nrows = from->nrows,
                                       .src_row = from->src_row,
                                       .order = orders[from->order],
                                       .group = from->group,
                                       .skip = from->skip,
                                       .in_slab = from->in_slab,
                                       .slab = from->slab};
    return ckpt_job_add_part(job, &part, err);
}

/* Experts lie one after the other: all but the last dimension are rows. */
static struct fsdp_tensor as_rows(const struct ckpt_gguf_tensor *t, const char *name)
{
    struct fsdp_tensor tensor = {.name = name, .dtype = t->type->dtype, .ndim = 1};
    uint64_t nrows = 1;
    for (int i = 0; i < t->ndim - 1; i++)
        nrows *= t->dims[i];
    tensor.shape[0] = t->ndim > 1 ? nrows : t->dims[0];
    if (t->ndim > 1) {
        tensor.ndim = 2;
        tensor.shape[1] = t->dims[t->ndim - 1];
    }
    return tensor;
}

static int add_tensor(struct ckpt_job *job, const struct inputs *in, const struct ckpt_gguf *gguf,
                      int index, struct fsdp_err *err)
{
    const struct ckpt_gguf_tensor *t = &gguf->tensors[index];
    struct fsdp_tensor tensor = as_rows(t, ckpt_job_keep_name(job, t->name, err));
    uint64_t row = 0, nrows = 0;
    if (!tensor.name)
        return FSDP_ENOMEM;
    for (int i = 0; i < t->nparts; i++)
        nrows += gguf->parts[t->first_part + i].nrows;
    if (nrows != tensor.shape[0] && tensor.ndim == 2) { /* of vectors: elements are the rows */
        tensor.ndim = 1;
        tensor.shape[0] *= tensor.shape[1];
    }
    FSDP_TRY(ckpt_job_add_tensor(job, &tensor, FSDP_SLICE_MODEL, err));
    struct ckpt_job_tensor *mine = &job->tensors[job->ntensors - 1];
    mine->encoding = t->type->encoding;
    mine->offset = t->offset;
    mine->own = tensor.name;
    for (int i = 0; i < t->nparts; i++) {
        const struct ckpt_gguf_part *part = &gguf->parts[t->first_part + i];
        FSDP_TRY(add_part(job, in, part, row, err));
        row += part->nrows;
    }
    return FSDP_OK;
}

static int list_inputs(struct ckpt_gguf *gguf, const struct ckpt_job *job, struct fsdp_err *err)
{
    const size_t count = (size_t)job->ntensors, naliases = (size_t)job->naliases;
    struct fsdp_tensor *inputs = fsdp_alloc(count, sizeof *inputs, "GGUF inputs", err);
    const char **aliases = fsdp_alloc(naliases, sizeof *aliases, "GGUF inputs", err);
    int rc = FSDP_ENOMEM;
    if (inputs && aliases) {
        for (size_t i = 0; i < count; i++)
            inputs[i] = job->tensors[i].tensor;
        for (size_t i = 0; i < naliases; i++)
            aliases[i] = job->aliases[i].name;
        const struct ckpt_gguf_args args = {.ckpt = job->ckpt,
                                            .type = job->args->dtype,
                                            .inputs = inputs,
                                            .ninputs = job->ntensors,
                                            .aliases = aliases,
                                            .naliases = job->naliases};
        rc = ckpt_gguf_plan(gguf, &args, err);
    }
    fsdp_free(inputs);
    fsdp_free(aliases);
    return rc;
}

static const char *stored_name(const struct ckpt_job *job, int input)
{
    const struct ckpt_job_part *part = &job->parts[job->tensors[input].first_part];
    return job->ckpt->m.layout.tensors[part->tensor].tensor.name;
}

static int check_tied(const struct ckpt_job *job, const struct ckpt_gguf *gguf,
                      struct fsdp_err *err)
{
    const char *one = gguf->tied_head < 0 ? NULL : stored_name(job, gguf->embedding);
    const char *other = one ? stored_name(job, gguf->tied_head) : NULL;
    struct ckpt *of = job->ckpt;
    for (int i = 1; one && of; i++) {
        FSDP_TRY(ckpt_check_equal(of, one, other, err));
        of = job->args->average ? ckpt_average_member(job->args->average, i) : NULL;
    }
    return FSDP_OK;
}

static int plan_gguf(struct ckpt_job *job, struct fsdp_err *err)
{
    const struct ckpt_gguf_file_type *type;
    const char *name = job->args->dtype;
    const int known = name ? ckpt_gguf_file_type_of(&type, name, err) : FSDP_OK;
    if (known)
        return fsdp_err_blame(err, known, "type");
    struct ckpt_gguf *gguf = fsdp_alloc(1, sizeof *gguf, "GGUF plan", err);
    if (!gguf)
        return FSDP_ENOMEM;
    job->plan = gguf;
    FSDP_TRY(list_inputs(gguf, job, err));
    FSDP_TRY(check_tied(job, gguf, err));
    job->plan_hash = fsdp_hash(FSDP_HASH_SEED, gguf->header, gguf->header_nbytes);
    const struct inputs in = {job->tensors, job->parts, job->ntensors};
    job->tensors = NULL;
    job->parts = NULL;
    job->ntensors = job->nparts = 0;
    job->max_tensors = job->max_parts = 0;
    int rc = FSDP_OK;
    for (int i = 0; rc == FSDP_OK && i < gguf->ntensors; i++)
        rc = add_tensor(job, &in, gguf, i, err);
    fsdp_free(in.tensors);
    fsdp_free(in.parts);
    return rc;
}

static void end_gguf(struct ckpt_job *job)
{
    if (job->plan)
        ckpt_gguf_free(job->plan);
    fsdp_free(job->plan);
    job->plan = NULL;
}

/* ---- the file -------------------------------------------------------------------------------- */

static int place_tensors(struct ckpt_job_piece *pieces, int npieces, struct ckpt_job *job, int file,
                         struct fsdp_err *err)
{
    const struct ckpt_gguf *gguf = job->plan;
    (void)err;
    for (int i = 0; i < npieces; i++) {
        pieces[i].pos = gguf->tensors[pieces[i].tensor].pos;
        pieces[i].nbytes = gguf->tensors[pieces[i].tensor].nbytes;
    }
    job->files[file].header_nbytes = gguf->header_nbytes;
    job->files[file].nbytes = gguf->nbytes;
    return FSDP_OK;
}

static char *copy_header(const struct ckpt_job *job, int file, struct fsdp_err *err)
{
    (void)file;
    const struct ckpt_gguf *gguf = job->plan;
    char *copy = fsdp_alloc_unset(gguf->header_nbytes, 1, "GGUF header", err);
    return copy ? memcpy(copy, gguf->header, gguf->header_nbytes) : NULL;
}

/* Zeros up to the next tensor: not every store has files with holes. */
static int fill_gap(struct ckpt_job *job, int file, const struct ckpt_job_piece *piece,
                    uint32_t crc32, struct fsdp_err *err)
{
    static const char zeros[CKPT_GGUF_ALIGN];
    const uint64_t end = piece->pos + piece->nbytes, over = end % CKPT_GGUF_ALIGN;
    const size_t nbytes = over ? (size_t)(CKPT_GGUF_ALIGN - over) : 0;
    (void)crc32;
    return nbytes ? ckpt_job_sink_put(job->files[file].sink, zeros, nbytes, end,
                                      ckpt_crc32c(0, zeros, nbytes), err)
                  : FSDP_OK;
}

const struct ckpt_writer_ops ckpt_writer_gguf = {
    .id = CKPT_OUTPUT_GGUF,
    .place = CKPT_PLACE_GGUF,
    .single_file = true,
    .file_only = true,
    .own_types = true,
    .in_order = true,
    .plan = plan_gguf,
    .end = end_gguf,
    .header = copy_header,
    .place_pieces = place_tensors,
    .wrap = fill_gap,
};
