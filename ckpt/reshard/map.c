/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <string.h>

#include "map.h"
#include "store/store.h"
#include "util/text.h"

enum { MAX_RULES = 4096, MAX_GROUPS = 10, MAX_RULES_NBYTES = 1 << 20 };

/* ---- ready maps ------------------------------------------------------------------------------ */

/* torchtitan's names and Hugging Face's, of Llama and Qwen3. Llama's rotary embedding turns
 * neighbours there, Hugging Face's the two halves of a head: rows of queries and keys change
 * places. That of Qwen3 turns halves in both (apply_map.c). */
static const struct {
    const char *titan, *hf;
    enum ckpt_map_rows rows;
} llama[] = {
    {"tok_embeddings.$1", "model.embed_tokens.$1", CKPT_MAP_ROWS_SAME},
    {"layers.$1.attention.wq.$2", "model.layers.$1.self_attn.q_proj.$2", CKPT_MAP_ROWS_QUERY},
    {"layers.$1.attention.wk.$2", "model.layers.$1.self_attn.k_proj.$2", CKPT_MAP_ROWS_KEY},
    {"layers.$1.attention.wv.$2", "model.layers.$1.self_attn.v_proj.$2", CKPT_MAP_ROWS_SAME},
    {"layers.$1.attention.wo.$2", "model.layers.$1.self_attn.o_proj.$2", CKPT_MAP_ROWS_SAME},
    {"layers.$1.feed_forward.w1.$2", "model.layers.$1.mlp.gate_proj.$2", CKPT_MAP_ROWS_SAME},
    {"layers.$1.feed_forward.w3.$2", "model.layers.$1.mlp.up_proj.$2", CKPT_MAP_ROWS_SAME},
    {"layers.$1.feed_forward.w2.$2", "model.layers.$1.mlp.down_proj.$2", CKPT_MAP_ROWS_SAME},
    {"layers.$1.attention_norm.$2", "model.layers.$1.input_layernorm.$2", CKPT_MAP_ROWS_SAME},
    {"layers.$1.ffn_norm.$2", "model.layers.$1.post_attention_layernorm.$2", CKPT_MAP_ROWS_SAME},
    {"layers.$1.attention.q_norm.$2", "model.layers.$1.self_attn.q_norm.$2", CKPT_MAP_ROWS_SAME},
    {"layers.$1.attention.k_norm.$2", "model.layers.$1.self_attn.k_norm.$2", CKPT_MAP_ROWS_SAME},
    {"layers.$1.moe.router.gate.$2", "model.layers.$1.mlp.gate.$2", CKPT_MAP_ROWS_SAME},
    {"norm.$1", "model.norm.$1", CKPT_MAP_ROWS_SAME},
    {"output.$1", "lm_head.$1", CKPT_MAP_ROWS_SAME},
    /* Names of 2026, which are read; the names above are written. */
    {"layers.$1.attention.qkv_linear.wq.$2", "model.layers.$1.self_attn.q_proj.$2",
     CKPT_MAP_ROWS_QUERY},
    {"layers.$1.attention.qkv_linear.wk.$2", "model.layers.$1.self_attn.k_proj.$2",
     CKPT_MAP_ROWS_KEY},
    {"layers.$1.attention.qkv_linear.wv.$2", "model.layers.$1.self_attn.v_proj.$2",
     CKPT_MAP_ROWS_SAME},
};
enum { NLLAMA = sizeof llama / sizeof llama[0] };

static const struct {
    const char *name;
    enum ckpt_map_action action;
    bool to_titan;
} ready[] = {
    {CKPT_MAP_TO_HF, CKPT_MAP_TITAN, false},
    {CKPT_MAP_TO_TITAN, CKPT_MAP_TITAN, true},
    {"fuse-qkv", CKPT_MAP_FUSE_QKV, false},
    {"split-qkv", CKPT_MAP_SPLIT_QKV, false},
    {"fuse-gate-up", CKPT_MAP_FUSE_GATE_UP, false},
    {"split-gate-up", CKPT_MAP_SPLIT_GATE_UP, false},
    {"megatron-to-hf", CKPT_MAP_MEGATRON, false},
};

/* ---- rules ----------------------------------------------------------------------------------- */

/* The expression for a glob; "$1" is a star too, so that tables read both ways. */
static void glob_to_regex(struct ckpt_text *out, const char *glob)
{
    for (const char *p = glob; *p; p++) {
        if (p[0] == '*' && p[1] == '*') {
            ckpt_text_printf(out, "(.*)");
            p++;
        } else if (*p == '*' || (*p == '$' && isdigit((unsigned char)p[1]))) {
            ckpt_text_printf(out, "([^.]+)");
            p += *p == '$';
        } else if (*p == '?') {
            ckpt_text_printf(out, "[^.]");
        } else if (isalnum((unsigned char)*p) || *p == '_') {
            ckpt_text_add(out, p, 1);
        } else {
            ckpt_text_printf(out, "[%c]", *p);
        }
    }
}

static int rule_add(struct ckpt_map *map, const char *from, const char *to, enum ckpt_map_rows rows,
                    const char *where, struct fsdp_err *err)
{
    struct ckpt_map_rule *rule = &map->rules[map->nrules];
    struct ckpt_text text = {0};
    size_t len = strlen(from);

    ckpt_text_add(&text, "^", 1);
    if (len > 1 && from[0] == '/' && from[len - 1] == '/')
        ckpt_text_add(&text, from + 1, len - 2);
    else
        glob_to_regex(&text, from);
    ckpt_text_add(&text, "$", 1);
    if (text.failed)
        return fsdp_err_set(err, FSDP_ENOMEM, "rename rules: out of memory");
    int bad = regcomp(&rule->regex, text.data, REG_EXTENDED);
    ckpt_text_free(&text);
    if (bad) {
        char why[128];
        regerror(bad, &rule->regex, why, sizeof why);
        return fsdp_err_set(err, FSDP_EINVAL, "%s: '%s': %s", where, from, why);
    }
    map->nrules++;
    rule->rows = rows;
    rule->to = fsdp_strdup(to, err);
    return rule->to ? FSDP_OK : FSDP_ENOMEM;
}

static int make_llama(struct ckpt_map *map, bool to_titan, struct fsdp_err *err)
{
    map->to_pairs = to_titan;
    for (int i = 0; i < NLLAMA; i++)
        FSDP_TRY(rule_add(map, to_titan ? llama[i].hf : llama[i].titan,
                          to_titan ? llama[i].titan : llama[i].hf, llama[i].rows, "ready map",
                          err));
    return FSDP_OK;
}

static char *trim(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    for (size_t len = strlen(text); len && isspace((unsigned char)text[len - 1]); len--)
        text[len - 1] = 0;
    return text;
}

static int read_line(struct ckpt_map *map, char *line, const char *path, int number,
                     struct fsdp_err *err)
{
    char where[600];
    line = trim(line);
    if (!*line || *line == '#')
        return FSDP_OK;
    snprintf(where, sizeof where, "%.500s:%d", path, number);
    char *arrow = strstr(line, "->");
    if (!arrow)
        return fsdp_err_set(err, FSDP_EINVAL, "%s: not a rule of the form FROM -> TO", where);
    if (map->nrules == MAX_RULES)
        return fsdp_err_set(err, FSDP_EINVAL, "%s: more than %d rules", where, MAX_RULES);
    *arrow = 0;
    char *from = trim(line), *to = trim(arrow + 2);
    if (!*from || !*to)
        return fsdp_err_set(err, FSDP_EINVAL, "%s: not a rule of the form FROM -> TO", where);
    return rule_add(map, from, to, CKPT_MAP_ROWS_SAME, where, err);
}

static int read_rules(struct ckpt_map *map, const char *path, struct fsdp_err *err)
{
    const struct ckpt_store_ops *ops;
    char *data = NULL, *rest;
    int number = 0;
    FSDP_TRY(ckpt_store_of(&ops, path, err));
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = ckpt_store_get(&data, NULL, ops, path, MAX_RULES_NBYTES, &why);
    if (rc == FSDP_ENOTFOUND)
        return fsdp_err_set(err, rc,
                            "'%s' is neither a file of rename rules nor one of torchtitan-to-hf, "
                            "hf-to-torchtitan, megatron-to-hf, fuse-qkv, split-qkv, fuse-gate-up, "
                            "split-gate-up",
                            path);
    if (rc)
        return fsdp_err_pass(err, rc, &why);
    for (char *line = strtok_r(data, "\n", &rest); rc == FSDP_OK && line;
         line = strtok_r(NULL, "\n", &rest))
        rc = read_line(map, line, path, ++number, err);
    fsdp_free(data);
    return rc;
}

int ckpt_map_create(struct ckpt_map *out, const char *text, struct fsdp_err *err)
{
    int rc = FSDP_OK;
    bool known = false;
    memset(out, 0, sizeof *out);
    out->rules = fsdp_alloc(MAX_RULES, sizeof *out->rules, "rename rules", err);
    if (!out->rules)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < sizeof ready / sizeof ready[0]; i++) {
        if (strcmp(text, ready[i].name))
            continue;
        known = true;
        out->action = ready[i].action;
        if (out->action == CKPT_MAP_TITAN)
            rc = make_llama(out, ready[i].to_titan, err);
    }
    if (!known)
        rc = read_rules(out, text, err);
    if (rc)
        ckpt_map_destroy(out);
    return rc;
}

void ckpt_map_destroy(struct ckpt_map *map)
{
    for (int i = 0; i < map->nrules; i++) {
        regfree(&map->rules[i].regex);
        fsdp_free(map->rules[i].to);
    }
    fsdp_free(map->rules);
    memset(map, 0, sizeof *map);
}

/* ---- names ----------------------------------------------------------------------------------- */

static void replace(struct ckpt_text *out, const char *to, const char *name,
                    const regmatch_t *groups)
{
    for (const char *p = to; *p; p++) {
        if (*p == '$' && isdigit((unsigned char)p[1])) {
            const regmatch_t *group = &groups[*++p - '0'];
            if (group->rm_so >= 0)
                ckpt_text_add(out, name + group->rm_so, (size_t)(group->rm_eo - group->rm_so));
        } else {
            ckpt_text_add(out, p, 1);
        }
    }
}

char *ckpt_map_name(const struct ckpt_map *map, const char *name, enum ckpt_map_rows *rows,
                    struct fsdp_err *err)
{
    regmatch_t groups[MAX_GROUPS];
    for (int i = 0; i < map->nrules; i++) {
        struct ckpt_text text = {0};
        if (regexec(&map->rules[i].regex, name, MAX_GROUPS, groups, 0))
            continue;
        if (rows)
            *rows = map->rules[i].rows;
        ckpt_text_add(&text, "", 0);
        replace(&text, map->rules[i].to, name, groups);
        if (text.failed) {
            ckpt_text_free(&text);
            fsdp_err_set(err, FSDP_ENOMEM, "rename rules: out of memory");
            return NULL;
        }
        return text.data;
    }
    if (rows)
        *rows = CKPT_MAP_ROWS_SAME;
    return fsdp_strdup(name, err);
}

size_t ckpt_map_state_nbytes(const char *name)
{
    const char *state = strncmp(name, "state.", 6) ? strstr(name, ".state.") : name;
    return !state ? 0 : (size_t)(state - name) + (state == name ? 6 : 7);
}

/* "state.<parameter>.<name>": the parameter between prefix and suffix; else all of it. */
static void find_parameter(const char *name, bool optim, size_t *begin, size_t *end)
{
    const char *dot = strrchr(name, '.');
    const size_t front = optim ? ckpt_map_state_nbytes(name) : 0;
    *begin = 0;
    *end = strlen(name);
    if (front && dot > name + front) {
        *begin = front;
        *end = (size_t)(dot - name);
    }
}

char *ckpt_map_tensor_name(const struct ckpt_map *map, const char *name, bool optim,
                           enum ckpt_map_rows *rows, struct fsdp_err *err)
{
    size_t begin, end;
    find_parameter(name, optim, &begin, &end);
    char *inner = fsdp_sprintf(err, "%.*s", (int)(end - begin), name + begin);
    char *mapped = inner ? ckpt_map_name(map, inner, rows, err) : NULL;
    char *out = mapped ? fsdp_sprintf(err, "%.*s%s%s", (int)begin, name, mapped, name + end) : NULL;
    fsdp_free(inner);
    fsdp_free(mapped);
    return out;
}
