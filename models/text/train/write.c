/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a vocabulary. Their keys have the order of the original's. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "impl.h"

/* ---- tokenizer.json -------------------------------------------------------------------------- */

/* Puts an item at the end of a list or under a key; false: no memory, or no item. Takes the item.
 */
static bool append_item(json_t *list, json_t *item)
{
    return item && json_array_append_new(list, item) == 0;
}

static bool put(json_t *object, const char *key, json_t *item)
{
    return item && json_object_set_new(object, key, item) == 0;
}

static json_t *token_json(const struct vocab_train *t, uint32_t id)
{
    const struct text *token = &t->tokens.at[id];

    return json_stringn(t->tokens.bytes + token->first, token->nbytes);
}

static json_t *byte_level(bool add_prefix_space, bool use_regex)
{
    return json_pack("{ss sb sb sb}", "type", "ByteLevel", "add_prefix_space", add_prefix_space,
                     "trim_offsets", 1, "use_regex", use_regex);
}

static json_t *cutter_json(const struct vocab_train *t)
{
    if (!t->pattern)
        return byte_level(t->add_prefix_space, true);
    return json_pack("{ss s[{ss s{ss} ss sb} o]}", "type", "Sequence", "pretokenizers", "type",
                     "Split", "pattern", "Regex", t->pattern, "behavior", "Isolated", "invert", 0,
                     byte_level(t->add_prefix_space, false));
}

static json_t *added_json(const struct vocab_train *t)
{
    json_t *list = json_array();
    bool good = list;

    for (int i = 0; good && i < t->nspecial; i++)
        good = append_item(list, json_pack("{si ss sb sb sb sb sb}", "id", i, "content",
                                           t->special[i], "single_word", 0, "lstrip", 0, "rstrip",
                                           0, "normalized", 0, "special", 1));
    if (good)
        return list;
    json_decref(list);
    return NULL;
}

static json_t *vocab_json(const struct vocab_train *t)
{
    json_t *vocab = json_object();
    bool good = vocab;

    for (size_t id = 0; good && id < t->tokens.ntexts; id++) {
        const struct text *token = &t->tokens.at[id];
        json_t *value = json_integer((json_int_t)id);
        good = value && json_object_setn_new(vocab, t->tokens.bytes + token->first, token->nbytes,
                                             value) == 0;
    }
    if (good)
        return vocab;
    json_decref(vocab);
    return NULL;
}

static json_t *merges_json(const struct vocab_train *t)
{
    json_t *merges = json_array();
    bool good = merges;

    for (int i = 0; good && i < t->nmerges; i++)
        good = append_item(merges, json_pack("[oo]", token_json(t, t->merges[i].left),
                                             token_json(t, t->merges[i].right)));
    if (good)
        return merges;
    json_decref(merges);
    return NULL;
}

static json_t *model_json(const struct vocab_train *t)
{
    json_t *model = json_pack("{ss sn sn sn sn sb sb sb}", "type", "BPE", "dropout", "unk_token",
                              "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                              "byte_fallback", 0, "ignore_merges", 0);

    if (model && put(model, "vocab", vocab_json(t)) && put(model, "merges", merges_json(t)))
        return model;
    json_decref(model);
    return NULL;
}

json_t *vocab_train_json(const struct vocab_train *t)
{
    json_t *root = json_pack("{ss sn sn}", "version", "1.0", "truncation", "padding");

    if (root && put(root, "added_tokens", added_json(t)) && put(root, "normalizer", json_null()) &&
        put(root, "pre_tokenizer", cutter_json(t)) && put(root, "post_processor", json_null()) &&
        put(root, "decoder", byte_level(true, true)) && put(root, "model", model_json(t)))
        return root;
    json_decref(root);
    return NULL;
}

/* ---- tokenizer_config.json ------------------------------------------------------------------- */

static json_t *config_json(const struct vocab_train *t)
{
    json_t *root =
        json_pack("{ss sb sb}", "tokenizer_class", "PreTrainedTokenizerFast", "add_prefix_space",
                  t->add_prefix_space, "clean_up_tokenization_spaces", 0);

    if (root && (t->bos < 0 || put(root, "bos_token", json_string(t->special[t->bos]))) &&
        (t->eos < 0 || put(root, "eos_token", json_string(t->special[t->eos]))))
        return root;
    json_decref(root);
    return NULL;
}

/* ---- files ----------------------------------------------------------------------------------- */

struct json_file {
    const json_t *json;
    const char *path;
};

/* It reaches the disk before it takes its name. */
static int put_json(FILE *to, const void *ctx, struct fsdp_err *err)
{
    const struct json_file *file = ctx;

    if (json_dumpf(file->json, to, JSON_INDENT(2)) || fflush(to) || fsync(fileno(to)))
        return fsdp_err_sys(err, errno, "cannot write '%s'", file->path);
    return FSDP_OK;
}

static int write_file(json_t *json, const char *folder, const char *name, struct fsdp_err *err)
{
    char *path = fsdp_sprintf(err, "%s/%s", folder, name);
    const struct json_file file = {json, path};
    int rc = FSDP_ENOMEM;

    if (path && json)
        rc = fsdp_file_replace(path, put_json, &file, err);
    else if (path)
        fsdp_err_set(err, FSDP_ENOMEM, "%s: no memory to write it", path);
    json_decref(json);
    fsdp_free(path);
    return rc;
}

int vocab_train_write(const struct vocab_train *t, const char *folder, struct fsdp_err *err)
{
    if (!t->finished)
        return fsdp_err_set(err, FSDP_EINVAL, "%s: the vocabulary is not finished", folder);
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return fsdp_err_sys(err, errno, "cannot create the folder '%s'", folder);
    FSDP_TRY(write_file(vocab_train_json(t), folder, "tokenizer.json", err));
    return write_file(config_json(t), folder, "tokenizer_config.json", err);
}
