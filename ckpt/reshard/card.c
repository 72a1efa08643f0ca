/* SPDX-License-Identifier: Apache-2.0 */
/* The model card of a folder for transformers: README.md, with YAML as the Hub reads it, and what
 * is known of the weights. It names files, not where they lie. */
#include <ctype.h>
#include <string.h>

#include "ckpt/adapter.h"
#include "average/average.h"
#include "keep/card.h"
#include "source/format_ops.h"
#include "util/limits.h"
#include "util/text.h"
#include "writer.h"

enum { NAME_NBYTES = 256 };

/* ---- the base model -------------------------------------------------------------------------- */

static bool is_word(const char *text, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        if (!isalnum((unsigned char)text[i]) && (!text[i] || !strchr("_.-", text[i])))
            return false;
    return nbytes && isalnum((unsigned char)text[0]);
}

/* Folders that people keep models in: models/llama is a path, not a model of a user `models`. */
static bool is_usual_folder(const char *text, size_t nbytes)
{
    static const char *const names[] = {"base",   "checkpoints", "data",   "merged", "model",
                                        "models", "out",         "output", "runs",   "saved"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i]) == nbytes && !memcmp(names[i], text, nbytes))
            return true;
    return false;
}

static bool is_there(const char *path)
{
    const struct ckpt_store_ops *store;
    struct ckpt_store_stat st;
    struct fsdp_err quiet = FSDP_ERR_INIT;
    return !ckpt_store_of(&store, path, &quiet) && !ckpt_store_stat(&st, store, path, &quiet);
}

/* A model's name on the Hub, as OWNER/NAME: of a text that is one, or of a path in the Hub's cache,
 * .../models--OWNER--NAME/snapshots/REVISION. Else `out` is left alone. */
static bool hub_name(char out[NAME_NBYTES], const char *text)
{
    static const char cached[] = "models--";
    const char *at = strstr(text, cached), *end = at ? strchr(at, '/') : NULL;
    const char *split = at ? strstr(at + sizeof cached - 1, "--") : NULL;
    if (end && split && split < end && !strncmp(end, "/snapshots/", 11)) {
        const char *owner = at + sizeof cached - 1;
        const size_t nowner = (size_t)(split - owner), nname = (size_t)(end - split) - 2;
        if (nowner + nname + 2 > NAME_NBYTES || !is_word(owner, nowner) ||
            !is_word(split + 2, nname))
            return false;
        snprintf(out, NAME_NBYTES, "%.*s/%.*s", (int)nowner, owner, (int)nname, split + 2);
        return true;
    }
    const char *slash = strchr(text, '/');
    if (!slash || strlen(text) >= NAME_NBYTES || !is_word(text, (size_t)(slash - text)) ||
        !is_word(slash + 1, strlen(slash + 1)) || is_usual_folder(text, (size_t)(slash - text)) ||
        is_there(text))
        return false;
    snprintf(out, NAME_NBYTES, "%s", text);
    return true;
}

/* Of a path that may end in slashes. */
static void last_part(char out[NAME_NBYTES], const char *path)
{
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    const char *end = path + len, *begin = end;
    while (begin > path && begin[-1] != '/')
        begin--;
    snprintf(out, NAME_NBYTES, "%.*s", (int)(end - begin), begin);
}

struct base {
    char hub[NAME_NBYTES];  /* "": not known to be of the Hub */
    char name[NAME_NBYTES]; /* "": not known */
};

static bool base_take(struct base *out, const char *text)
{
    if (!text || !*text)
        return false;
    if (hub_name(out->hub, text)) {
        snprintf(out->name, sizeof out->name, "%s", out->hub);
        return true;
    }
    last_part(out->name, text);
    return out->name[0] && out->name[0] != '.';
}

/* As adapters or config.json name it, or where it was downloaded to. */
static void base_find(struct base *out, const struct ckpt_job *job, const json_t *config)
{
    *out = (struct base){"", ""};
    for (int i = 0; job->args->adapters && i < ckpt_adapters_count(job->args->adapters); i++)
        if (base_take(out, ckpt_adapters_base(job->args->adapters, i)))
            return;
    if (base_take(out, json_string_value(json_object_get(config, "_name_or_path"))))
        return;
    *out = (struct base){"", ""};
    if (hub_name(out->hub, ckpt_path(job->ckpt)))
        snprintf(out->name, sizeof out->name, "%s", out->hub);
}

/* ---- the text -------------------------------------------------------------------------------- */

/* In Markdown and in a table's cell; a name may hold anything. */
static void text_add(struct ckpt_text *card, const char *text)
{
    for (; *text; text++) {
        if (strchr("\\`*_[]<>|#", *text))
            ckpt_text_add(card, "\\", 1);
        const char byte = (char)(iscntrl((unsigned char)*text) ? ' ' : *text);
        ckpt_text_add(card, &byte, 1);
    }
}

static void row_add(struct ckpt_text *card, const char *what, const char *text)
{
    ckpt_text_printf(card, "| %s | ", what);
    text_add(card, text);
    ckpt_text_printf(card, " |\n");
}

static const char *family_of(const json_t *config)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    return type && is_word(type, strlen(type)) ? type : NULL;
}

static const char *class_of(const json_t *config)
{
    const char *name =
        json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    return name && is_word(name, strlen(name)) ? name : NULL;
}

static bool ends_in(const char *text, const char *end)
{
    const size_t len = strlen(text), nbytes = strlen(end);
    return len >= nbytes && !strcmp(text + len - nbytes, end);
}

static void front_add(struct ckpt_text *card, const struct ckpt_job *job, const struct base *base,
                      const json_t *config)
{
    const char *class = class_of(config), *family = family_of(config);
    ckpt_text_printf(card, "---\nlibrary_name: transformers\n");
    if (class && (ends_in(class, "ForCausalLM") || ends_in(class, "LMHeadModel")))
        ckpt_text_printf(card, "pipeline_tag: text-generation\n");
    if (base->hub[0])
        ckpt_text_printf(card, "base_model: %s\n", base->hub);
    if (base->hub[0] && (job->args->adapters || job->ckpt->format->has_manifest))
        ckpt_text_printf(card, "base_model_relation: finetune\n");
    if (family)
        ckpt_text_printf(card, "tags:\n- %s\n", family);
    ckpt_text_printf(card, "---\n");
}

/* "1,235,814,400" */
static void count_text(char out[40], uint64_t count)
{
    char digits[24];
    const int len = snprintf(digits, sizeof digits, "%llu", (unsigned long long)count);
    int to = 0;
    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0)
            out[to++] = ',';
        out[to++] = digits[i];
    }
    out[to] = 0;
}

/* Elements of a weight; scales have none. */
static uint64_t weight_nelem(const struct ckpt_job *job, const struct ckpt_job_tensor *t)
{
    if (t->kind != FSDP_SLICE_MODEL)
        return 0;
    if (t->form == CKPT_FORM_VALUES)
        return fsdp_tensor_nelem(&t->tensor);
    return t->form == CKPT_FORM_CODES ? fsdp_tensor_nelem(&job->quant->weights[t->weight].tensor)
                                      : 0;
}

static void weights_add(struct ckpt_text *card, const struct ckpt_job *job)
{
    char text[40];
    uint64_t nelem = 0;
    for (int i = 0; i < job->ntensors; i++)
        nelem += weight_nelem(job, &job->tensors[i]);
    count_text(text, nelem);
    row_add(card, "parameters", text);
    const char *dtype = ckpt_job_dtype_name(job);
    row_add(card, "dtype", dtype ? dtype : "several");
}

/* With their weights, where these are not equal. */
static void members_add(struct ckpt_text *card, const struct ckpt_average *average)
{
    const struct ckpt *of;
    char name[NAME_NBYTES], row[NAME_NBYTES + 32];
    for (int i = 0; (of = ckpt_average_member(average, i)); i++) {
        const double weight = ckpt_average_weight(average, i);
        last_part(name, ckpt_path(of));
        if (weight == 1)
            snprintf(row, sizeof row, "%s", name);
        else
            snprintf(row, sizeof row, "%s, weight %g", name, weight);
        row_add(card, i ? "and" : "average of", row);
    }
}

static void source_add(struct ckpt_text *card, const struct ckpt_job *job)
{
    const struct ckpt *of;
    const char *folder;
    char step[24], name[NAME_NBYTES];
    for (int i = 0; job->args->adapters; i++) {
        if (!(folder = ckpt_adapters_folder(job->args->adapters, i, &of)))
            break;
        last_part(name, folder);
        row_add(card, "adapter", name);
    }
    if (job->args->average) {
        members_add(card, job->args->average);
    } else {
        last_part(name, ckpt_path(job->ckpt));
        row_add(card, "checkpoint", name);
    }
    snprintf(step, sizeof step, "%lld", (long long)job->ckpt->m.step);
    if (job->ckpt->m.step >= 0 && !job->args->average) /* it is the first checkpoint's alone */
        row_add(card, "step", step);
    if (job->args->quantize)
        row_add(card, "quantized", job->args->quantize);
    if (job->args->ema)
        row_add(card, "weights", "moving averages over the steps of training");
}

static void card_make(struct ckpt_text *card, const struct ckpt_job *job, const json_t *config)
{
    const char *class = class_of(config), *family = family_of(config);
    struct base base;
    char title[NAME_NBYTES];
    base_find(&base, job, config);
    front_add(card, job, &base, config);
    last_part(title, base.name[0] ? base.name : ckpt_path(job->ckpt));
    ckpt_text_printf(card, "\n# ");
    text_add(card, title);
    ckpt_text_printf(card, "\n\nWhat is known of these weights:\n\n| | |\n| --- | --- |\n");
    if (base.name[0])
        row_add(card, "base model", base.name);
    if (family)
        row_add(card, "family", family);
    if (class)
        row_add(card, "class", class);
    weights_add(card, job);
    source_add(card, job);
    row_add(card, "written by", "ckpt-merge of libfsdp " FSDP_VERSION_STRING);
    ckpt_text_printf(card, "\nWhat they were trained for, on which data, under which license, and "
                           "how well they do is not known to the program: say so here.\n\n");
    ckpt_card_seal(card);
}

int ckpt_job_write_card(struct ckpt_job *job, struct fsdp_err *err)
{
    struct ckpt_text card = {0};
    struct fsdp_err said = FSDP_ERR_INIT; /* when it was copied */
    json_t *config;
    if (!job->args->card || !job->writer->has_card || !job->folder)
        return FSDP_OK;
    if (ckpt_extra_json(&config, job->ckpt, "config.json", &said))
        config = NULL;
    card_make(&card, job, config);
    json_decref(config);
    char *path = ckpt_path_join(job->commit.out, CKPT_CARD_NAME, err);
    int rc = !path         ? FSDP_ENOMEM
             : card.failed ? fsdp_err_set(err, FSDP_ENOMEM, "'%s': out of memory", path)
                           : ckpt_store_replace(job->store, path, card.data, card.nbytes, err);
    fsdp_free(path);
    ckpt_text_free(&card);
    return rc;
}
