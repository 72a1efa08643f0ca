/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "data.h"
#include "data/source/list.h"
#include "remote/store_remote.h"
#include "text/tokenizer/tokenizer.h"

int train_blame_missing(struct fsdp_err *err, int status, const char *key)
{
    return status == FSDP_ENOTFOUND ? fsdp_err_blame(err, status, key) : status;
}

int train_data_blame(struct fsdp_err *why, int rc, const char *where, const char *key,
                     struct fsdp_err *err)
{
    const char *dot = strchr(why->setting, '.');
    char setting[sizeof why->setting + 8];

    snprintf(setting, sizeof setting, "%s%s", dot ? "" : "data.", why->setting);
    const bool blamed = why->setting[0], by_path = !strcmp(why->setting, "path");
    why->setting[0] = 0; /* the key takes its place */
    fsdp_err_prefix(why, rc, "%s: ", where);
    fsdp_err_pass(err, rc, why);
    return blamed ? fsdp_err_blame(err, rc, by_path ? key : setting)
                  : train_blame_missing(err, rc, key);
}

/* tokens: the token file of the paths' text; NULL: there is none. */
static int open_paths(struct data **out, struct data_opts *opts, const char *tokens,
                      const struct fsdp_tunable_list *list, const char *where, const char *key,
                      struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    const char **paths = fsdp_alloc((size_t)list->nelem, sizeof *paths, "data paths", err);

    if (!paths)
        return FSDP_ENOMEM;
    for (int i = 0; i < list->nelem; i++)
        paths[i] = fsdp_tunable_list_at(list, i);
    opts->npaths = tokens ? 1 : list->nelem;
    opts->paths = tokens ? &tokens : paths;
    opts->tokens_of = tokens ? paths[0] : NULL;
    int rc = data_open(out, opts, &why);
    fsdp_free(paths);
    return rc ? train_data_blame(&why, rc, where, key, err) : FSDP_OK;
}

/* Changes the options of a source to read its text's token file, if there is one. */
static void take_tokens(struct data_opts *opts, const char *tokens)
{
    if (!tokens)
        return;
    opts->whole_documents = opts->format == DATA_JSONL;
    opts->format = data_name_ends(tokens, ".u16") ? DATA_U16 : DATA_U32;
    opts->tokenizer_hash = 0; /* the cache key already contains the run's */
}

static bool keeps_apart(const struct config *c, const struct config_source *source)
{
    return c->train.objective != CONFIG_DPO &&
           (source->pack == CONFIG_PACK_DOCUMENTS ||
            (source->pack == CONFIG_PACK_AUTO && source->format == DATA_JSONL));
}

bool train_data_is_packed(const struct config *c)
{
    struct config_source source;

    config_source_plain(&source, c);
    bool packed = c->data.eval_path.nelem && keeps_apart(c, &source);
    for (int i = 0; i < config_nsources(c); i++) {
        config_source(&source, c, i);
        packed |= keeps_apart(c, &source);
    }
    return packed;
}

static void set_documents(const struct train_parts *p, const struct config_source *source,
                          struct data_opts *opts)
{
    struct model_info info;

    opts->documents = keeps_apart(p->config, source);
    if (source->document_end >= 0)
        opts->ends[opts->nends++] = (int)source->document_end;
    if (source->document_end != -1)
        return;
    p->ops->info(p->model, &info);
    for (int i = 0; i < info.neos && opts->nends < DATA_MAX_ENDS; i++)
        if (info.eos[i] >= 0 && info.eos[i] < opts->vocab_size)
            opts->ends[opts->nends++] = info.eos[i];
}

/* How source i of the training data is read. Texts are borrowed from the settings. */
static struct data_opts source_opts(const struct train_parts *p, int i,
                                    const struct config_source *source)
{
    const struct config *c = p->config;
    struct data_opts opts = DATA_OPTS_INIT;

    opts.format = (enum data_format)source->format;
    opts.layout = (enum data_layout)source->layout;
    opts.seq_len = (int)c->data.seq_len;
    opts.vocab_size = p->ops->vocab_size(p->model);
    opts.too_long = (enum data_too_long)source->too_long;
    opts.remote = &store_remote;
    opts.remote_nbytes = (uint64_t)c->data.remote_cache << 20;
    opts.skip_bad_lines = source->on_bad_line == CONFIG_BAD_LINE_SKIP;
    opts.text = &p->text.of[i];
    opts.tokenizer_hash = p->text.tokenizer ? tokenizer_hash(p->text.tokenizer) : 0;
    set_documents(p, source, &opts);
    if (c->train.objective == CONFIG_DPO) {
        opts.pairs = true;
        if (opts.too_long != DATA_TRUNCATE)
            opts.too_long = DATA_REFUSE;
    }
    take_tokens(&opts, p->tokens[i]);
    return opts;
}

/* Text that is read as tokens was not looked at: a file of documents, taken for plain text. */
static void warn_documents(const struct config_source *source)
{
    for (int i = 0; i < source->path.nelem; i++) {
        const char *path = fsdp_tunable_list_at(&source->path, i);
        if (!data_name_ends(path, ".jsonl") && !data_name_ends(path, ".json"))
            continue;
        fsdp_log(FSDP_LOG_WARN,
                 "data: %s is read as plain text, braces and quotes included; data.format: jsonl "
                 "reads a document or a chat from each line",
                 path);
        return;
    }
}

/* Source i, into out[i], *weight and *passes. */
static int open_source(struct train_parts *p, int i, struct data **out, double *weight,
                       double *passes, struct fsdp_err *err)
{
    const char *key = p->config->nsources ? "data.sources" : "data.path";
    char where[CONFIG_TEXT + 128];
    struct config_source source;

    config_source(&source, p->config, i);
    struct data_opts opts = source_opts(p, i, &source);
    opts.seed = data_mixture_seed((uint64_t)p->config->train.seed, i);
    opts.text_key = config_source_text_key(p->config, i);
    if (p->config->data.weight_key[0] && source.format == DATA_JSONL)
        opts.weight_key = p->config->data.weight_key;
    *weight = source.weight;
    *passes = source.passes > 0 ? source.passes : 1;
    config_where_source(where, sizeof where, p->config, i);
    return open_paths(out, &opts, p->tokens[i], &source.path, where, key, err);
}

static int open_sources(struct train_parts *p, struct fsdp_err *err)
{
    struct data *sources[CONFIG_MAX_SOURCES] = {0};
    double weights[CONFIG_MAX_SOURCES] = {0}, passes[CONFIG_MAX_SOURCES];
    const int nsources = config_nsources(p->config);

    for (int i = 0; i < nsources; i++) {
        const int rc = open_source(p, i, &sources[i], &weights[i], &passes[i], err);
        if (!rc)
            continue;
        while (i-- > 0)
            data_close(sources[i]);
        return rc;
    }
    return data_mixture_create(&p->data, sources, nsources, weights[0] > 0 ? weights : NULL,
                               p->config->nsources ? passes : NULL, err);
}

/* Held-out data has the settings of `data`, not those of a source. */
static int open_eval(struct train_parts *p, struct fsdp_err *err)
{
    const struct config *c = p->config;
    char where[CONFIG_TEXT + 128];
    struct config_source source;
    struct data *eval;

    config_source_plain(&source, c);
    const int i = config_nsources(c);
    struct data_opts opts = source_opts(p, i, &source);
    opts.seed = (uint64_t)c->train.seed;
    opts.text_key = c->data.text_key;
    opts.shuffle = false;
    opts.max_rows = (uint64_t)c->data.eval_rows;
    config_where(where, sizeof where, c, "data.eval_path");
    FSDP_TRY(
        open_paths(&eval, &opts, p->tokens[i], &c->data.eval_path, where, "data.eval_path", err));
    return data_mixture_create(&p->eval, &eval, 1, NULL, NULL, err);
}

/* Documents that end without a token, although the model names one. */
static void warn_end(const struct train_parts *p)
{
    const int vocab_size = p->ops->vocab_size(p->model);
    struct model_info info;

    p->ops->info(p->model, &info);
    if (p->config->data.special == DATA_SPECIAL_EOS && info.neos &&
        (info.eos[0] < 0 || info.eos[0] >= vocab_size))
        fsdp_log(FSDP_LOG_WARN,
                 "model.path: its eos_token_id %d is none of the model's %d tokens, and ends no "
                 "document; data.document_end can name another",
                 info.eos[0], vocab_size);
}

void train_data_warn(const struct train_parts *p)
{
    warn_end(p);
    for (int i = 0; i < config_nsources(p->config); i++) {
        struct config_source source;

        config_source(&source, p->config, i);
        if (p->tokens[i] && source.format == DATA_TEXT)
            warn_documents(&source);
    }
}

int train_data_open(struct train_parts *p, struct fsdp_err *err)
{
    if (p->config->train.steps == 0)
        return FSDP_OK;
    FSDP_TRY(open_sources(p, err));
    FSDP_TRY(config_count_steps(p->config, data_mixture_nrows(p->data), err));
    return p->config->data.eval_path.nelem ? open_eval(p, err) : FSDP_OK;
}
