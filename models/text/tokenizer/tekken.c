/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of tokens: Mistral's tekken.json, and the lines of tiktoken. */
#include <stdlib.h>
#include <string.h>

#include "impl.h"

static int base64_digit(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

int tokenizer_base64(char *out, const char *text, size_t nbytes)
{
    uint32_t bits = 0;
    int nbits = 0, n = 0;

    while (nbytes && text[nbytes - 1] == '=')
        nbytes--;
    for (size_t i = 0; i < nbytes; i++) {
        const int digit = base64_digit(text[i]);
        if (digit < 0)
            return -1;
        bits = bits << 6 | (uint32_t)digit;
        nbits += 6;
        if (nbits >= 8) {
            nbits -= 8;
            out[n++] = (char)(bits >> nbits);
        }
    }
    return n;
}

/* ---- what both have -------------------------------------------------------------------------- */

static int add_rank(struct tokenizer *t, int32_t id, const char *base64, size_t nbytes,
                    struct fsdp_err *err)
{
    char token[1024];
    const int n = nbytes < sizeof token ? tokenizer_base64(token, base64, nbytes) : -1;

    if (n <= 0)
        return fsdp_err_set(err, FSDP_EINVAL, "token %d is not base64 of at most %zu bytes", id,
                            sizeof token / 4 * 3);
    return vocab_add(&t->vocab, id, token, (size_t)n, err);
}

static int add_special(struct tokenizer *t, int32_t id, const char *content, struct fsdp_err *err)
{
    struct added_token token = {
        .id = id, .content = (char *)content, .nbytes = strlen(content), .special = true};
    return added_add(t, &token, err);
}

/* All tokens are there: merges are what gives a token, the lowest rank first. */
static int finish_ranks(struct tokenizer *t, const char *pattern, size_t nbytes,
                        struct fsdp_err *err)
{
    const struct bpe_opts opts = {.vocab = &t->vocab,
                                  .unk = -1,
                                  .ignore_merges = true,
                                  .unit_bytes = true,
                                  .merge_by_content = true};

    FSDP_TRY(vocab_index(&t->vocab, err));
    for (int byte = 0; byte < 256; byte++) {
        const char one = (char)byte;
        if (vocab_find(&t->vocab, &one, 1) < 0)
            return fsdp_err_set(err, FSDP_EINVAL, "byte 0x%02x is no token", byte);
    }
    FSDP_TRY(splitter_add_regex(t, pattern, nbytes, SPLIT_REMOVED, REGEX_TIKTOKEN, err));
    /* What the pattern does not match is left out; what it matches is kept. */
    t->splitter.steps[t->splitter.nsteps - 1].invert = true;
    t->splitter.bytes = t->decoder.bytes = true;
    return bpe_create(&t->words, &opts, 0, err);
}

/* ---- tekken.json ----------------------------------------------------------------------------- */

static int read_tekken_specials(struct tokenizer *t, const json_t *root, json_int_t nspecial,
                                struct fsdp_err *err)
{
    const json_t *list = json_object_get(root, "special_tokens"), *item;
    /* Those of files that do not list them. */
    static const char *const first[] = {"<unk>",
                                        "<s>",
                                        "</s>",
                                        "[INST]",
                                        "[/INST]",
                                        "[AVAILABLE_TOOLS]",
                                        "[/AVAILABLE_TOOLS]",
                                        "[TOOL_RESULTS]",
                                        "[/TOOL_RESULTS]",
                                        "[TOOL_CALLS]",
                                        "[IMG]",
                                        "<pad>",
                                        "[IMG_BREAK]",
                                        "[IMG_END]",
                                        "[PREFIX]",
                                        "[MIDDLE]",
                                        "[SUFFIX]",
                                        "[SYSTEM_PROMPT]",
                                        "[/SYSTEM_PROMPT]",
                                        "[TOOL_CONTENT]"};
    char name[32];
    size_t i;

    json_array_foreach(list, i, item)
    {
        const char *content = json_string_value(json_object_get(item, "token_str"));
        const json_t *rank = json_object_get(item, "rank");
        if (!content || !json_is_integer(rank) || json_integer_value(rank) < 0 ||
            json_integer_value(rank) >= nspecial)
            return fsdp_err_set(err, FSDP_EINVAL, "special_tokens[%zu] has no rank or token_str",
                                i);
        FSDP_TRY(add_special(t, (int32_t)json_integer_value(rank), content, err));
    }
    const json_int_t listed = json_is_array(list) ? (json_int_t)json_array_size(list) : 0;
    for (json_int_t id = listed; id < nspecial; id++) {
        snprintf(name, sizeof name, "<SPECIAL_%d>", (int)id);
        const bool named = !listed && id < (json_int_t)(sizeof first / sizeof first[0]);
        FSDP_TRY(add_special(t, (int32_t)id, named ? first[id] : name, err));
    }
    return FSDP_OK;
}

int tokenizer_read_tekken(struct tokenizer *t, const char *text, size_t nbytes,
                          struct fsdp_err *err)
{
    json_error_t why;
    json_t *root = json_loadb(text, nbytes, JSON_ALLOW_NUL, &why);
    const json_t *config = json_object_get(root, "config"), *item;
    const json_t *pattern = json_object_get(config, "pattern");
    const json_int_t size = json_integer_value(json_object_get(config, "default_vocab_size")),
                     nspecial =
                         json_integer_value(json_object_get(config, "default_num_special_tokens"));
    size_t i;
    int rc = FSDP_OK;

    if (!root)
        return fsdp_err_set(err, FSDP_EINVAL, "line %d: not valid JSON: %s", why.line, why.text);
    if (!json_is_string(pattern) || nspecial < 3 || nspecial > 1 << 20 || size <= nspecial) {
        rc = fsdp_err_set(err, FSDP_EINVAL, "config has no pattern or sizes of the vocabulary");
        goto out;
    }
    FSDP_TRY_GOTO(read_tekken_specials(t, root, nspecial, err), out);
    json_array_foreach(json_object_get(root, "vocab"), i, item)
    {
        const json_t *bytes = json_object_get(item, "token_bytes");
        if ((json_int_t)i >= size - nspecial)
            break;
        FSDP_TRY_GOTO(add_rank(t, (int32_t)((json_int_t)i + nspecial),
                               json_is_string(bytes) ? json_string_value(bytes) : "",
                               json_string_length(bytes), err),
                      out);
    }
    FSDP_TRY_GOTO(finish_ranks(t, json_string_value(pattern), json_string_length(pattern), err),
                  out);
    t->bos = 1;
    t->eos = 2;
    t->before[t->nbefore++] = t->bos;
    t->skip_special = true;
out:
    json_decref(root);
    return rc;
}

/* ---- lines of tiktoken ----------------------------------------------------------------------- */

#define CL100K                                                                                     \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| "                         \
    "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s"
#define GPT2                                                                                       \
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|\\s++$|\\s+(?!\\S)|\\s"
#define LLAMA3                                                                                     \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "                     \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN                                                                                       \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "                          \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define O200K                                                                                      \
    "[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]*[" LOWER "]+" CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[" UPPER  \
    "]+[" LOWER "]*" CONTRACTION "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|"     \
    "\\s+(?!\\S)|\\s+"

/* The lines say neither pattern nor special tokens: the number of ranks says whose they are. */
static const struct known {
    const char *name;
    int32_t nranks;
    const char *pattern;
    struct {
        const char *content;
        int32_t id;
    } specials[6];
    int32_t bos, eos;
} known[] = {
    {"gpt2, r50k_base", 50256, GPT2, {{"<|endoftext|>", 50256}}, -1, 50256},
    {"p50k_base", 50280, GPT2, {{"<|endoftext|>", 50256}}, -1, 50256},
    {"cl100k_base",
     100256,
     CL100K,
     {{"<|endoftext|>", 100257},
      {"<|fim_prefix|>", 100258},
      {"<|fim_middle|>", 100259},
      {"<|fim_suffix|>", 100260},
      {"<|endofprompt|>", 100276}},
     -1,
     100257},
    {"o200k_base",
     199998,
     O200K,
     {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}},
     -1,
     199999},
    {"Llama 3",
     128000,
     LLAMA3,
     {{"<|begin_of_text|>", 128000},
      {"<|end_of_text|>", 128001},
      {"<|start_header_id|>", 128006},
      {"<|end_header_id|>", 128007},
      {"<|eot_id|>", 128009}},
     128000,
     128001},
    {"Qwen",
     151643,
     QWEN,
     {{"<|endoftext|>", 151643}, {"<|im_start|>", 151644}, {"<|im_end|>", 151645}},
     -1,
     151643},
};

static int use_known(struct tokenizer *t, int32_t nranks, struct fsdp_err *err)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const struct known *k = &known[i];
        if (k->nranks != nranks)
            continue;
        for (int j = 0; j < 6 && k->specials[j].content; j++)
            FSDP_TRY(add_special(t, k->specials[j].id, k->specials[j].content, err));
        t->bos = k->bos;
        t->eos = k->eos;
        if (k->bos >= 0)
            t->before[t->nbefore++] = k->bos;
        return finish_ranks(t, k->pattern, strlen(k->pattern), err);
    }
    return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                        "%d ranks of tiktoken, whose pattern is not known: only gpt2, p50k_base, "
                        "cl100k_base, o200k_base, Llama 3 and Qwen are; use the model's "
                        "tokenizer.json",
                        nranks);
}

int tokenizer_read_tiktoken(struct tokenizer *t, const char *text, size_t nbytes,
                            struct fsdp_err *err)
{
    const char *end = text + nbytes;
    int32_t nranks = 0;
    int line = 1;

    for (const char *at = text, *next; at < end; at = next, line++) {
        const char *feed = memchr(at, '\n', (size_t)(end - at));
        const char *space = memchr(at, ' ', (size_t)((feed ? feed : end) - at));
        char *number_end;
        next = feed ? feed + 1 : end;
        if (next - at <= 1)
            continue;
        const long rank = space ? strtol(space + 1, &number_end, 10) : -1;
        if (!space || rank < 0 || rank >= VOCAB_MAX_IDS || number_end == space + 1)
            return fsdp_err_set(err, FSDP_EINVAL, "line %d: not a token and its rank", line);
        FSDP_TRY(add_rank(t, (int32_t)rank, at, (size_t)(space - at), err));
        nranks++;
    }
    return use_known(t, nranks, err);
}
