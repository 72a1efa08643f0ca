/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a tokenizer: which file, which reader. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "impl.h"

enum { MAX_FILE = 1 << 30 };

/* ---- what files there are -------------------------------------------------------------------- */

/* Looked for in a folder in this order; a file of another name is recognized by its beginning. */
static const char *const names[] = {"tokenizer.json", "tekken.json", "tokenizer.model",
                                    "tokenizer.model.v3", "tokenizer.model.v7"};

static bool is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static int find_file(char **out, const char *path, struct fsdp_err *err)
{
    struct stat st;

    if (stat(path, &st) != 0)
        return fsdp_err_sys(err, errno, "%s", path);
    if (!S_ISDIR(st.st_mode))
        return (*out = fsdp_strdup(path, err)) ? FSDP_OK : FSDP_ENOMEM;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *full = fsdp_sprintf(err, "%s/%s", path, names[i]);
        if (!full)
            return FSDP_ENOMEM;
        if (is_file(full)) {
            *out = full;
            return FSDP_OK;
        }
        fsdp_free(full);
    }
    return fsdp_err_set(err, FSDP_ENOTFOUND,
                        "%s: the folder has no tokenizer.json, tekken.json or tokenizer.model",
                        path);
}

typedef int read_f(struct tokenizer *t, const char *text, size_t nbytes, struct fsdp_err *err);

/* JSON begins with a brace, ranks with base64 and a space, SentencePiece's protocol buffer with
 * field 1. */
static read_f *find_reader(const char *text, size_t nbytes)
{
    const char *json = text + strspn(text, " \t\r\n\xef\xbb\xbf");
    const char *space = memchr(text, ' ', nbytes < 512 ? nbytes : 512);

    if (*json == '{')
        return memmem(text, nbytes < 4096 ? nbytes : 4096, "\"num_vocab_tokens\"", 18) ||
                       memmem(text, nbytes < 4096 ? nbytes : 4096, "\"default_vocab_size\"", 20)
                   ? tokenizer_read_tekken
                   : tokenizer_read_json;
    if (nbytes && text[0] == '\n')
        return tokenizer_read_spm;
    if (space && space[1] >= '0' && space[1] <= '9')
        return tokenizer_read_tiktoken;
    return NULL;
}

/* ---- tokenizer_config.json ------------------------------------------------------------------- */

/* A special token is its content, or an object with it. */
static int32_t config_token(const struct tokenizer *t, const char *key)
{
    const json_t *token = json_object_get(t->config, key);
    const char *content = json_is_object(token)
                              ? json_string_value(json_object_get(token, "content"))
                              : json_string_value(token);

    return content ? tokenizer_find(t, content, strlen(content)) : -1;
}

static void use_config(struct tokenizer *t)
{
    const int32_t bos = config_token(t, "bos_token"), eos = config_token(t, "eos_token");

    t->bos = bos >= 0 ? bos : t->bos;
    t->eos = eos >= 0 ? eos : t->eos;
}

static int load_config(struct tokenizer *t, struct fsdp_err *err)
{
    const char *slash = strrchr(t->path, '/');
    char *path = fsdp_sprintf(err, "%.*stokenizer_config.json",
                              slash ? (int)(slash + 1 - t->path) : 0, t->path);
    json_error_t why;
    char *text = NULL;
    size_t nbytes;
    int rc = FSDP_OK;

    if (!path)
        return FSDP_ENOMEM;
    if (!is_file(path))
        goto out;
    FSDP_TRY_GOTO(fsdp_file_read(&text, &nbytes, path, MAX_FILE, err), out);
    /* model_max_length is often 10^30. */
    t->config = json_loadb(text, nbytes, JSON_DECODE_INT_AS_REAL, &why);
    if (!t->config)
        rc = fsdp_err_set(err, FSDP_EINVAL, "%s:%d: not valid JSON: %s", path, why.line, why.text);
    t->hash = fsdp_hash(t->hash, text, nbytes);
out:
    fsdp_free(text);
    fsdp_free(path);
    return rc;
}

/* ---- life ------------------------------------------------------------------------------------ */

static int check_specials(const struct tokenizer *t, struct fsdp_err *err)
{
    const int nids = tokenizer_vocab_size(t);

    for (int i = 0; i < t->nbefore + t->nafter; i++) {
        const int32_t id = i < t->nbefore ? t->before[i] : t->after[i - t->nbefore];
        if (id >= nids)
            return fsdp_err_set(err, FSDP_EINVAL,
                                "post-processor: special token %d, and the vocabulary has %d", id,
                                nids);
    }
    return FSDP_OK;
}

static int read_tokenizer(struct tokenizer *t, struct fsdp_err *err)
{
    char *text;
    size_t nbytes;
    int rc;

    t->hash = FSDP_HASH_SEED;
    FSDP_TRY(load_config(t, err));
    FSDP_TRY(fsdp_file_read(&text, &nbytes, t->path, MAX_FILE, err));
    read_f *read = find_reader(text, nbytes);
    t->hash = fsdp_hash(t->hash, text, nbytes);
    rc = read ? read(t, text, nbytes, err)
              : fsdp_err_set(err, FSDP_EINVAL,
                             "neither a tokenizer.json, a tekken.json, SentencePiece's "
                             "tokenizer.model nor ranks of tiktoken");
    if (rc == FSDP_OK)
        rc = added_index(t, err);
    if (rc == FSDP_OK)
        rc = check_specials(t, err);
    fsdp_free(text);
    if (rc != FSDP_OK)
        return fsdp_err_prefix(err, rc, "%s: ", t->path);
    use_config(t);
    json_decref(t->config);
    t->config = NULL;
    return FSDP_OK;
}

static struct tokenizer *new_tokenizer(struct fsdp_err *err)
{
    struct tokenizer *t = fsdp_alloc(1, sizeof *t, "tokenizer", err);

    if (t)
        t->bos = t->eos = -1;
    return t;
}

int tokenizer_open(struct tokenizer **out, const char *path, struct fsdp_err *err)
{
    struct tokenizer *t = new_tokenizer(err);
    int rc = FSDP_ENOMEM;

    if (t)
        rc = find_file(&t->path, path, err);
    if (rc == FSDP_OK)
        rc = read_tokenizer(t, err);
    if (rc != FSDP_OK) {
        tokenizer_close(t);
        return rc;
    }
    *out = t;
    return FSDP_OK;
}

int tokenizer_open_json(struct tokenizer **out, const char *name, const char *text, size_t nbytes,
                        struct fsdp_err *err)
{
    struct tokenizer *t = new_tokenizer(err);
    int rc = FSDP_ENOMEM;

    if (t && (t->path = fsdp_strdup(name, err))) {
        t->hash = fsdp_hash(FSDP_HASH_SEED, text, nbytes);
        rc = tokenizer_read_json(t, text, nbytes, err);
        if (rc == FSDP_OK)
            rc = added_index(t, err);
        if (rc != FSDP_OK)
            rc = fsdp_err_prefix(err, rc, "%s: ", name);
    }
    if (rc != FSDP_OK) {
        tokenizer_close(t);
        return rc;
    }
    *out = t;
    return FSDP_OK;
}

int tokenizer_open_bytes(struct tokenizer **out, struct fsdp_err *err)
{
    struct tokenizer *t = new_tokenizer(err);
    int rc = FSDP_ENOMEM;

    if (t && (t->path = fsdp_strdup("bytes", err)))
        rc = FSDP_OK;
    for (int byte = 0; rc == FSDP_OK && byte < 256; byte++) {
        const char one = (char)byte;
        rc = vocab_add(&t->vocab, byte, &one, 1, err);
    }
    if (rc == FSDP_OK)
        rc = vocab_index(&t->vocab, err);
    if (rc != FSDP_OK) {
        tokenizer_close(t);
        return rc;
    }
    t->decoder.bytes = true;
    t->hash = fsdp_hash(FSDP_HASH_SEED, "bytes", 5);
    *out = t;
    return FSDP_OK;
}

static void free_steps(struct tokenizer *t)
{
    for (int i = 0; i < t->normalizer.nsteps; i++) {
        fsdp_free(t->normalizer.steps[i].content);
        fsdp_free(t->normalizer.steps[i].matcher.literal);
    }
    for (int i = 0; i < t->splitter.nsteps; i++)
        fsdp_free(t->splitter.steps[i].matcher.literal);
    for (int i = 0; i < t->decoder.nreplaces; i++) {
        fsdp_free(t->decoder.replaces[i].from);
        fsdp_free(t->decoder.replaces[i].to);
    }
    for (int i = 0; i < t->nregexes; i++)
        regex_destroy(t->regexes[i]);
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    if (t->words)
        t->words->ops->destroy(t->words);
    json_decref(t->config);
    free_steps(t);
    added_free(&t->added);
    vocab_free(&t->vocab);
    fsdp_free(t->scores);
    fsdp_free(t->ranks);
    fsdp_free(t->path);
    fsdp_free(t);
}
