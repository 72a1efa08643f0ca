/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a folder of whole tensors, as transformers reads it: index and configuration. */
#include <stdlib.h>
#include <string.h>

#include "util/text.h"
#include "writer.h"

static int compare_texts(const void *a, const void *b)
{
    return strcmp(((const struct ckpt_alias *)a)->name, ((const struct ckpt_alias *)b)->name);
}

/* Name and file of every tensor, and of `more`, sorted by name. */
static struct ckpt_alias *list_places(const struct ckpt_job *job, const struct ckpt_alias *more,
                                      int nmore, struct fsdp_err *err)
{
    size_t count = (size_t)job->ntensors + (size_t)nmore;
    struct ckpt_alias *places = fsdp_alloc(count, sizeof *places, "index", err);
    if (!places)
        return NULL;
    for (int i = 0; i < job->nfiles; i++)
        for (int k = 0; k < job->files[i].ntensors; k++) {
            int at = job->files[i].first + k;
            places[at].name = job->tensors[job->order[at]].tensor.name;
            places[at].target = job->files[i].name;
        }
    for (int i = 0; i < nmore; i++)
        places[job->ntensors + i] = more[i];
    qsort(places, count, sizeof *places, compare_texts);
    return places;
}

static int write_index(const struct ckpt_job *job, const struct ckpt_alias *more, int nmore,
                       struct fsdp_err *err)
{
    struct ckpt_text text = {0};
    struct ckpt_alias *places = list_places(job, more, nmore, err);
    char *path = places ? ckpt_path_join(job->commit.out, job->writer->index_name, err) : NULL;
    int rc = FSDP_ENOMEM;

    if (!path)
        goto out;
    ckpt_text_printf(&text,
                     "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n"
                     "  \"weight_map\": {",
                     (unsigned long long)job->nbytes.total);
    for (int i = 0; i < job->ntensors + nmore; i++) {
        ckpt_text_printf(&text, "%s\n    ", i ? "," : "");
        ckpt_text_json(&text, places[i].name);
        ckpt_text_printf(&text, ": \"%s\"", places[i].target);
    }
    ckpt_text_printf(&text, "\n  }\n}\n");
    rc = text.failed ? fsdp_err_set(err, FSDP_ENOMEM, "index: out of memory")
                     : ckpt_store_replace(job->store, path, text.data, text.nbytes, err);
out:
    ckpt_text_free(&text);
    fsdp_free(path);
    fsdp_free(places);
    return rc;
}

static bool has_tokenizer(const struct ckpt *ckpt)
{
    static const char *const names[] = {
        "tokenizer.json", "tokenizer.model", "tokenizer_config.json",   "vocab.json",
        "vocab.txt",      "spiece.model",    "sentencepiece.bpe.model", "tekken.json"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (ckpt_extra_path(ckpt, names[i]))
            return true;
    return false;
}

/* transformers reads no folder without a configuration, and no text without a tokenizer. */
static void note_missing(const struct ckpt_job *job)
{
    if (!ckpt_extra_path(job->ckpt, "config.json"))
        fsdp_log(FSDP_LOG_INFO,
                 "'%s' has no config.json, and neither has '%s': transformers needs one next to "
                 "the weights; copy the model's there",
                 job->ckpt->path, job->commit.final);
    else if (!has_tokenizer(job->ckpt))
        fsdp_log(FSDP_LOG_INFO,
                 "'%s' has no tokenizer, and neither has '%s': to serve text, copy the model's "
                 "tokenizer files there",
                 job->ckpt->path, job->commit.final);
}

int ckpt_job_finish_folder(struct ckpt_job *job, const struct ckpt_alias *more, int nmore,
                           struct fsdp_err *err)
{
    note_missing(job);
    return job->nfiles > 1 ? write_index(job, more, nmore, err) : FSDP_OK;
}
