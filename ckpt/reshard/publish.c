/* SPDX-License-Identifier: Apache-2.0 */
/* What goes along with the tensors, and the output's final name. */
#include <stdlib.h>
#include <string.h>

#include "format/ctensors/ctensors.h"
#include "format/hf/hf_names.h"
#include "writer.h"
#include "util/text.h"
#include "source/format_ops.h"

/* ---- Hugging Face folder --------------------------------------------------------------------- */

/* Says how the weights are quantized, if they are, or that they are no more. Returns whether that
 * is news. */
static bool adjust_quantization(json_t *root, const struct ckpt_job *job)
{
    static const char key[] = "quantization_config";
    if (!job->quant)
        return job->ckpt->npacked && !json_object_del(root, key); /* its tensors were decoded */
    json_object_set_new(
        root, key, ckpt_ct_config(job->quant->scheme, job->quant->ignored, job->quant->nignored));
    return true;
}

/* config.json says which type the weights have; loaders believe it. *out is NULL where it is right,
 * or is no JSON object: then it is copied as it is. */
static int adjust_config(char **out, const struct ckpt_job *job, const char *path,
                         struct fsdp_err *err)
{
    static const char *const keys[] = {"torch_dtype", "dtype"};
    const char *actual = ckpt_job_dtype_name(job);
    char *data = NULL;
    size_t nbytes;
    json_t *root;
    bool differs = false;

    *out = NULL;
    FSDP_TRY(ckpt_extra_read(&data, &nbytes, path, CKPT_MAX_INDEX_NBYTES, err));
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = ckpt_json_parse(&root, data, nbytes, path, &why);
    fsdp_free(data);
    if (rc) {
        fsdp_log(FSDP_LOG_WARN, "%s; it is copied unchanged", why.text);
        return FSDP_OK;
    }
    for (int i = 0; actual && i < 2; i++) {
        const char *says = json_string_value(json_object_get(root, keys[i]));
        if (says && strcmp(says, actual)) {
            json_object_set_new(root, keys[i], json_string(actual));
            differs = true;
        }
    }
    differs |= adjust_quantization(root, job);
    char *text = differs ? json_dumps(root, JSON_INDENT(2)) : NULL;
    if (text)
        *out = fsdp_sprintf(err, "%s\n", text);
    free(text);
    json_decref(root);
    return !differs || *out ? FSDP_OK
                            : fsdp_err_set(err, FSDP_ENOMEM, "config.json: out of memory");
}

/* A file that goes along, as it is or with config.json's dtype put right; *out gets its size and
 * checksum. */
static int copy_extra(struct ckpt_extra *out, struct ckpt_job *job, const struct ckpt_extra *extra,
                      const char *to, struct fsdp_err *err)
{
    const struct ckpt_store_ops *from;
    char *text = NULL;
    int rc = ckpt_store_of(&from, extra->full_path, err); /* --config may be elsewhere */
    if (rc == FSDP_OK && !job->writer->as_stored && !strcmp(ckpt_path_base(to), "config.json"))
        rc = adjust_config(&text, job, extra->full_path, err);
    if (rc == FSDP_OK && (job->notes.found || !ckpt_store_has_whole_files(job->store)))
        rc = ckpt_store_discard(job->store, to, err); /* of an earlier run */
    if (rc == FSDP_OK && text)
        rc = ckpt_store_put(job->store, to, text, strlen(text), true, err);
    else if (rc == FSDP_OK)
        rc = ckpt_store_copy(&out->nbytes, &out->crc32c, from, extra->full_path, job->store, to,
                             true, err);
    if (rc == FSDP_OK && !text && extra->has_crc32c && out->crc32c != extra->crc32c)
        rc = fsdp_err_set(err, FSDP_ECORRUPT, "'%s': checksum %08x instead of %08x",
                          extra->full_path, out->crc32c, extra->crc32c);
    fsdp_free(text);
    return rc;
}

static int copy_extras(struct ckpt_extra *out, int *nextras, struct ckpt_job *job,
                       struct fsdp_err *err)
{
    const char *below = job->writer->extras_folder;
    char *folder =
        below ? ckpt_path_join(job->commit.out, below, err) : fsdp_strdup(job->commit.out, err);
    int rc = folder ? FSDP_OK : FSDP_ENOMEM;
    if (rc == FSDP_OK && job->ckpt->m.nextras)
        rc = ckpt_temp_mkdir(job->store, folder, err);
    for (int i = 0; rc == FSDP_OK && i < job->ckpt->m.nextras; i++) {
        const struct ckpt_extra *extra = &job->ckpt->m.extras[i];
        const char *name = ckpt_path_base(extra->path);
        if (!strcmp(name, CKPT_CARD_NAME) ||
            (!below && (ckpt_hf_is_weights(name) || ckpt_hf_is_index(name))))
            continue; /* these are written anew */
        char *to = ckpt_path_join(folder, name, err);
        rc = to ? copy_extra(&out[*nextras], job, extra, to, err) : FSDP_ENOMEM;
        fsdp_free(to);
        if (rc == FSDP_OK && !(out[*nextras].path = below ? ckpt_path_join(below, name, err)
                                                          : fsdp_strdup(name, err)))
            rc = FSDP_ENOMEM;
        *nextras += rc == FSDP_OK;
    }
    if (rc == FSDP_OK && below && job->ckpt->m.nextras)
        rc = ckpt_store_sync_folder(job->store, folder, err);
    fsdp_free(folder);
    return rc;
}

static void extras_free(struct ckpt_extra *extras, int nextras)
{
    for (int i = 0; i < nextras; i++)
        fsdp_free(extras[i].path);
    fsdp_free(extras);
}

/* ---- the final name -------------------------------------------------------------------------- */

static int write_companions(struct ckpt_job *job, struct fsdp_err *err)
{
    struct ckpt_extra *extras =
        fsdp_alloc((size_t)job->ckpt->m.nextras, sizeof *extras, "extras", err);
    int nextras = 0;
    if (!extras)
        return FSDP_ENOMEM;
    int rc = copy_extras(extras, &nextras, job, err);
    if (rc == FSDP_OK)
        rc = ckpt_job_write_card(job, err);
    if (rc == FSDP_OK && job->writer->finish)
        rc = job->writer->finish(job, extras, nextras, err);
    extras_free(extras, nextras);
    return rc;
}

/* Hours may have passed since it was proved. The journal remembers, in case this run is killed when
 * it has published, that it was to. */
static int prepare(struct ckpt_job *job, struct fsdp_err *err)
{
    if (job->args->overwrite) {
        int proved = ckpt_job_prove_target(job, err);
        job->refused = proved == FSDP_EEXIST;
        FSDP_TRY(proved);
    }
    return ckpt_journal_add_published(&job->journal, err);
}

static int publish_output(struct ckpt_job *job, struct fsdp_err *err)
{
    const bool overwrite = job->args->overwrite;
    FSDP_TRY(ckpt_commit_seal(&job->commit, err));
    if (job->commit.temp)
        FSDP_TRY(prepare(job, err));
    int rc = ckpt_commit_publish(&job->commit, overwrite, err);
    if (rc != FSDP_EEXIST || (overwrite && job->folder))
        return rc;
    return fsdp_err_set(err, rc,
                        "'%s' was not there when this run began, and is now: another process wrote "
                        "it, and it is left as it is (name another output, or give --overwrite)",
                        job->commit.final);
}

int ckpt_job_publish(struct ckpt_job *job, struct fsdp_err *err)
{
    bool there = false;
    int rc = job->folder ? write_companions(job, err) : FSDP_OK;
    if (rc == FSDP_EEXIST && job->notes.folder &&
        !ckpt_commit_is_there(&there, &job->commit, NULL) && there)
        rc = FSDP_OK; /* the same command, elsewhere, came first */
    FSDP_TRY(rc);
    FSDP_TRY(publish_output(job, err));
    job->made_temp = false;
    ckpt_journal_close(&job->journal);
    struct ckpt_temp temp = ckpt_job_temp(job);
    if (job->notes.folder)
        ckpt_temp_remove_left(&temp, job->notes.folder);
    else if (job->commit.temp)
        ckpt_temp_remove(&temp);
    return FSDP_OK;
}
