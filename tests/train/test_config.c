/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: what is accepted, and that everything else is refused where it stands. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/config.h"
#include "data/data.h"
#include "tap.h"

#define GOOD "model:\n  path: m\ndata:\n  path: d\ntrain:\n  steps: 10\n"
#define MIXED(sources) "model: {path: m}\ntrain: {steps: 1}\ndata:\n  sources: [" sources "]\n"

static char file[] = "/tmp/test_config_XXXXXX";

static void put(const char *text)
{
    FILE *out = fopen(file, "w");
    if (!out || fputs(text, out) < 0 || fclose(out) != 0)
        abort();
}

static struct config *load(const char *text, int noverrides, char *const *overrides,
                           struct fsdp_err *err)
{
    struct config *config = NULL;
    put(text);
    if (config_load(&config, file, noverrides, overrides, err) != FSDP_OK)
        return NULL;
    return config;
}

/* Text, the line that the error must name (0: none), and what its text must hold. */
static const struct {
    const char *what, *text;
    int line;
    const char *holds[3];
} bad[] = {
    {"unknown key", "train:\n  stepz: 10\n", 2, {"unknown key 'train.stepz'", "train.steps"}},
    {"key of another section", "train:\n  lr: 1\n", 2, {"train.lr", "did you mean optim.lr"}},
    {"far from any key",
     "train:\n  elephant: 1\n",
     2,
     {"section train has steps, epochs, global_batch"}},
    {"unknown section",
     "training:\n  steps: 1\n",
     1,
     {"'training'", "model, lora, data, train, optim"}},
    {"unknown empty section", GOOD "elephant:\n", 7, {"unknown section 'elephant'"}},
    {"word for a number", "train:\n  steps: ten\n", 2, {"train.steps", "'ten'", "whole number"}},
    {"fraction for a whole number", "train:\n  steps: 1.5\n", 2, {"train.steps", "'1.5'"}},
    {"number with a tail", "train:\n  steps: 10k\n", 2, {"train.steps", "'10k'"}},
    {"out of range", "train:\n  steps: -1\n", 2, {"train.steps", "at least 0"}},
    {"too large", "train:\n  steps: 99999999999999999999\n", 2, {"train.steps"}},
    {"word for a float", "optim:\n  lr: fast\n", 2, {"optim.lr", "'fast'", "number of at least 0"}},
    {"modules of no checkpointing",
     GOOD "fsdp:\n  checkpoint_modules: model.layers.0\n",
     8,
     {"fsdp.checkpoint_modules", "activation_checkpointing is none"}},
    {"end of documents that nobody looks for",
     "model:\n  path: m\ndata:\n  path: d\n  document_end: 0\n  tokenizer: bytes\ntrain:\n  steps: "
     "10\n",
     5,
     {"data.document_end", "no effect unless data.pack is documents"}},
    {"dropout of all", "model:\n  dropout: 1\n", 2, {"model.dropout", "auto, or a number of at"}},
    {"nan", "optim:\n  lr: nan\n", 2, {"optim.lr", "'nan'"}},
    {"a number that would be 0",
     "optim:\n  lr: 1e-400\n",
     2,
     {"optim.lr", "'1e-400' is too small"}},
    {"a newline",
     "model:\n  path: |\n    m\n",
     2,
     {"model.path", "'m' ends with a newline", "'|-'"}},
    {"a newline in a list", "data:\n  path: |\n    d\n", 2, {"data.path", "ends with a newline"}},
    {"open end", "optim:\n  betas: [0.9, 1.0]\n", 2, {"optim.betas", "'1.0'", "below 1"}},
    {"too few numbers", "optim:\n  betas: [0.9]\n", 2, {"optim.betas", "list of 2 numbers"}},
    {"a scalar for numbers", "optim:\n  betas: 0.9\n", 2, {"optim.betas", "1 values given"}},
    {"bad choice", "model:\n  init: randomly\n", 2, {"model.init", "pretrained, or random"}},
    {"bad strategy", "fsdp:\n  sharding_strategy: FULL\n", 2, {"HYBRID_SHARD", "NO_SHARD"}},
    {"bad bool", "checkpoint:\n  fsync: 2\n", 2, {"checkpoint.fsync", "true or false"}},
    {"list for a scalar", "train:\n  steps: [1, 2]\n", 2, {"train.steps", "a list is not allowed"}},
    {"mapping for a scalar", "train:\n  steps:\n    a: 1\n", 2, {"train.steps", "mapping"}},
    {"list in a list", "data:\n  path: [[a]]\n", 2, {"data.path", "plain value"}},
    {"mapping in a list", "data:\n  path:\n    - a: 1\n", 3, {"data.path", "plain value"}},
    {"a source that is no mapping", "data:\n  sources: [a]\n", 2, {"data.sources", "mappings"}},
    {"sources that are a text", "data:\n  sources: a\n", 2, {"data.sources", "mappings"}},
    {"a mapping, then none",
     "data:\n  sources:\n    - {path: a}\n    - b\n",
     4,
     {"data.sources", "is no mapping"}},
    {"an unknown key of a source",
     "data:\n  sources:\n    - path: a\n      wieght: 1\n",
     4,
     {"data.sources[0]", "wieght", "did you mean source.weight"}},
    {"a bad value of a source",
     "data:\n  sources: [{path: a}, {weight: 0}]\n",
     2,
     {"data.sources[1]", "weight", "above 0"}},
    {"a key of a source twice",
     "data:\n  sources:\n    - {path: a, path: b}\n",
     3,
     {"key path was given before"}},
    {"a mapping in a source",
     "data:\n  sources: [{path: {a: b}}]\n",
     2,
     {"data.sources[0].path", "mapping"}},
    {"mappings in a source", "data:\n  sources: [{path: [{a: b}]}]\n", 2, {"plain value"}},
    {"a source without a path", MIXED("{weight: 1}"), 4, {"data.sources[0]", "has no path"}},
    {"weight and passes",
     MIXED("{path: a, weight: 1, passes: 1}"),
     4,
     {"data.sources[0]", "one of them"}},
    {"a weight for some",
     MIXED("{path: a, weight: 1}, {path: b}"),
     4,
     {"data.sources[1]", "has no weight"}},
    {"a secret in an address", MIXED("{path: \"s3://u:p@b/d\"}"), 4, {"data.sources", "secret"}},
    {"no value", GOOD "log:\n  metrics:\n", 8, {"log.metrics", "no value"}},
    {"null", GOOD "log:\n  metrics: ~\n", 8, {"log.metrics", "no value"}},
    {"duplicate key",
     "train:\n  steps: 1\n  seed: 2\n  steps: 3\n",
     4,
     {"train.steps", "before, on line 2"}},
    {"duplicate section",
     "train:\n  steps: 1\nmodel:\n  path: m\ntrain:\n  seed: 1\n",
     5,
     {"section train", "before, on line 1"}},
    {"scalar section", "train: 10\n", 1, {"train", "is not a section"}},
    {"list document", "- train\n", 1, {"not a configuration"}},
    {"scalar document", "train\n", 1, {"not a configuration"}},
    {"second document", GOOD "---\ntrain:\n  seed: 1\n", 7, {"second document"}},
    {"tab", "train:\n\tsteps: 1\n", 2, {"not valid YAML", "spaces, not tabs"}},
    {"open bracket", "data:\n  path: [a, b\ntrain:\n  steps: 1\n", 0, {"not valid YAML"}},
    {"open quote", "data:\n  path: \"a\n", 0, {"not valid YAML"}},
    {"bad indent", "train:\n  steps: 1\n seed: 2\n", 3, {"not valid YAML", "indent all keys"}},
    {"anchor", "train:\n  steps: &a 1\n", 2, {"anchors"}},
    {"alias", "train:\n  steps: *a\n", 2, {"anchors"}},
    {"tag", "train:\n  steps: !!int 1\n", 2, {"tags"}},
    {"not text", "\x01\x02\x7f", 0, {"not"}},
    {"no model", "data:\n  path: d\ntrain:\n  steps: 1\n", 0, {"model.path", "must be given"}},
    {"no steps", "model:\n  path: m\ndata:\n  path: d\n", 0, {"train.steps", "must be given"}},
    {"no data", "model:\n  path: m\ntrain:\n  steps: 1\n", 0, {"data.path", "must be given"}},
    {"empty file", "", 0, {"model.path", "must be given"}},
    {"only comments", "# nothing\n", 0, {"model.path", "must be given"}},
    {"min_lr above lr", GOOD "optim:\n  lr: 1e-4\n  min_lr: 1e-3\n", 9, {"optim.min_lr", "above"}},
    {"decay too long",
     GOOD "optim:\n  schedule: wsd\n  warmup_steps: 5\n  decay_steps: 6\n",
     10,
     {"optim.decay_steps", "do not fit"}},
    {"must resume from nowhere", GOOD "checkpoint:\n  resume: must\n", 8, {"checkpoint.resume"}},
    {"a report at an address", GOOD "log:\n  html: s3://b/r\n", 8, {"log.html", "as a file"}},
    {"one file for two",
     GOOD "log:\n  metrics: a.prom\n  prometheus: a.prom\n",
     9,
     {"log.prometheus", "of log.metrics"}},
    {"metrics at an address", GOOD "log:\n  metrics: s3://b/m\n", 8, {"log.metrics", "as a file"}},
    {"a model at an address",
     "model:\n  path: s3://b/m\ntrain:\n  steps: 1\ndata:\n  path: d\n",
     2,
     {"model.path", "s3://b/m", "ckpt-cp"}},
};

static void check_bad(void)
{
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct fsdp_err err = FSDP_ERR_INIT;
        struct config *config = load(bad[i].text, 0, NULL, &err);
        char where[64];
        bool good = !config && err.status == FSDP_EINVAL && strstr(err.text, file);

        snprintf(where, sizeof where, "%s:%d: ", file, bad[i].line);
        if (bad[i].line)
            good &= strstr(err.text, where) == err.text;
        for (int k = 0; k < 3 && bad[i].holds[k]; k++)
            good &= strstr(err.text, bad[i].holds[k]) != NULL;
        ok(good, "%s: %s", bad[i].what, err.text);
        fsdp_free(config);
    }
}

/* Checkpoints may have addresses; a secret in one is refused without being shown. */
static void check_addresses(void)
{
    char *good[] = {(char[]){"checkpoint.path=s3://bucket/run"},
                    (char[]){"checkpoint.resume=s3://bucket/run@5/step-00000001"}};
    char *bad_one[] = {(char[]){"checkpoint.path=s3://KEY:SECRET@bucket/run"}};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct config *config = load(GOOD, 2, good, &err);

    ok(config && !strcmp(config->checkpoint.path, "s3://bucket/run"), "addresses of checkpoints");
    fsdp_free(config);
    config = load(GOOD, 1, bad_one, &err);
    ok(!config && strstr(err.text, "checkpoint.path") && strstr(err.text, "credentials") &&
           !strstr(err.text, "SECRET") && !strstr(err.text, "KEY"),
       "none with a secret in it, which is not shown: %s", err.text);
    fsdp_free(config);
}

static void check_overrides(void)
{
    static const struct {
        const char *override, *holds;
    } refused[] = {
        {"train.stepz=1", "did you mean train.steps"},
        {"train.steps", "is not section.key=value"},
        {"=1", "is not section.key=value"},
        {"train.steps=", "train.steps: ''"},
        {"train.steps=x", "train.steps: 'x'"},
        {"train=1", "unknown key 'train'"},
        {"optim.betas=0.9", "list of 2 numbers"},
        {"model.path=", "model.path: must be given"},
        {"model.path=m\xff", "model.path: the value is not UTF-8"},
        {"checkpoint.path=none", "checkpoint.path: 'none' would be a path of that name; give ''"},
        {"log.metrics=Off", "log.metrics: 'Off' would be a path of that name"},
    };
    struct fsdp_err err = FSDP_ERR_INIT;
    char *good[] = {"train.steps=7",   "data.path=[a, \"b c\"]", "optim.betas=0.8,0.9",
                    "log.metrics=x=y", "checkpoint.resume=must", "checkpoint.path=ck",
                    "train.steps=8"};

    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        char *one = (char *)(uintptr_t)refused[i].override;
        struct config *config = load(GOOD, 1, &one, &err);
        ok(!config && strstr(err.text, "command line: ") == err.text &&
               strstr(err.text, refused[i].holds),
           "override %s: %s", one, err.text);
    }
    struct config *c = load(GOOD, sizeof good / sizeof good[0], good, &err);
    ok(c != NULL, "good overrides are taken %s", c ? "" : err.text);
    if (!c)
        return;
    ok(c->train.steps == 8, "the last override counts");
    ok(c->data.path.nelem == 2 && !strcmp(fsdp_tunable_list_at(&c->data.path, 1), "b c"), "a list");
    ok(c->optim.betas[0] == 0.8 && c->optim.betas[1] == 0.9, "numbers without brackets");
    ok(!strcmp(c->log.metrics, "x=y"), "a value may hold '='");
    char where[200];
    ok(!strcmp(config_where(where, sizeof where, c, "train.steps"), "command line: train.steps"),
       "%s", where);
    fsdp_free(c);
}

static void check_good(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct config *c = load("# comment\n---\nmodel: {path: m, init: Random}\n"
                            "data:\n  path:\n    - a/b, c\n    - \"null\"\n"
                            "train:\n  steps: 1_0\n",
                            0, NULL, &err);
    ok(!c, "underscores are no digits: %s", err.text);
    c = load("# comment\n---\nmodel: {path: m, init: Random}\n"
             "data:\n  path:\n    - a/b, c\n    - \"null\"\noptim:\n"
             "train:\n  steps: 10\n  micro_batch_size: auto\nfsdp:\n"
             "  reshard_after_forward: false\n  param_dtype: bf16\n  forward_prefetch: true\n",
             0, NULL, &err);
    ok(c != NULL, "a good file %s", c ? "" : err.text);
    if (!c)
        return;
    ok(c->model.init == CONFIG_INIT_RANDOM, "case of a choice does not matter");
    ok(c->data.path.nelem == 2 && !strcmp(fsdp_tunable_list_at(&c->data.path, 0), "a/b, c") &&
           !strcmp(fsdp_tunable_list_at(&c->data.path, 1), "null") &&
           !fsdp_tunable_list_at(&c->data.path, 2),
       "a list in a file, commas kept");
    ok(c->train.micro_batch_size == 0 && c->fsdp.reshard_after_forward == 0 &&
           c->fsdp.forward_prefetch == 1 && c->model.dropout == -1,
       "named values");
    char where[200], expect[200], word[32];
    snprintf(expect, sizeof expect, "%s:10: train.steps", file);
    ok(!strcmp(config_where(where, sizeof where, c, "train.steps"), expect), "where: %s", where);
    snprintf(expect, sizeof expect, "%s: train.seed", file);
    ok(!strcmp(config_where(where, sizeof where, c, "train.seed"), expect), "where: %s", where);
    ok(!strcmp(config_word(word, sizeof word, c, "fsdp.param_dtype"), "bf16"), "word: %s", word);
    fsdp_free(c);
}

static void check_sources(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    char *more[] = {"data.sources[1].weight=0.25", "data.sources[2].path=[c, d]",
                    "data.sources[2].weight=2"};
    char *gap[] = {"data.sources[4].path=c"}, *odd[] = {"data.sources[x].path=c"};
    char *both[] = {"data.path=a"};
    const char *file_text = "model: {path: m}\ntrain: {steps: 1}\ndata:\n"
                            "  format: jsonl\n  text_key: body\n  sources:\n"
                            "    - path: a\n      weight: 3\n      format: u16\n"
                            "    - {path: [b, 'x*'], weight: 1, text_key: content}\n";
    struct config *c = load(file_text, 3, more, &err), *again = NULL;
    struct config_source source;
    char *text = NULL, *text_again = NULL, where[200];

    if (!ok(c && c->nsources == 3 && config_nsources(c) == 3, "sources are read %s", err.text))
        return;
    config_source(&source, c, 0);
    ok(source.weight == 3 && source.format == DATA_U16 && !strcmp(source.text_key, "body"),
       "the first one's own format, the text_key of all");
    config_source(&source, c, 1);
    ok(source.weight == 0.25 && source.format == DATA_JSONL && source.path.nelem == 2 &&
           !strcmp(source.text_key, "content"),
       "the second one's weight from the command line");
    ok(!strcmp(config_where_source(where, sizeof where, c, 2), "command line: data.sources[2]") &&
           strstr(config_where_source(where, sizeof where, c, 1), ":10: data.sources[1]"),
       "where: %s", where);
    ok(!config_text(&text, c, &err) &&
           strstr(text, "{path: [a], weight: 3, format: u16}, {path: [b"),
       "printed");
    again = load(text, 0, NULL, &err);
    ok(again && !config_text(&text_again, again, NULL) && !strcmp(text, text_again),
       "and read back %s", err.text);
    fsdp_free(text);
    fsdp_free(text_again);
    fsdp_free(again);
    fsdp_free(c);
    ok(!load(file_text, 1, gap, &err) && strstr(err.text, "data.sources has 2 items"), "a gap: %s",
       err.text);
    ok(!load(file_text, 1, odd, &err) && strstr(err.text, "is not data.sources[0].key"), "%s",
       err.text);
    ok(!load(file_text, 1, both, &err) && strstr(err.text, "give one of them"), "%s", err.text);
}

/* Prints, reads back, and compares. */
static void check_print(bool help)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    char *overrides[] = {"data.path=[plain, with space, it's, \"#x\", back\\slash]",
                         "optim.lr=3.0000000000000004e-4",
                         help ? "model.dropout=0.125" : "model.dropout=auto",
                         "fsdp.reshard_after_forward=true",
                         "log.metrics=-",
                         "checkpoint.path=./none",
                         "data.text_key=null",
                         "fsdp.limit_all_gathers=0"};
    struct config *a = load(GOOD, sizeof overrides / sizeof overrides[0], overrides, &err), *b;
    char *text_a = NULL, *text_b = NULL;
    FILE *out = fopen(file, "w");

    if (!a || !out) {
        ok(false, "print: %s", err.text);
        return;
    }
    ok(config_print(a, help, out, &err) == FSDP_OK && fclose(out) == 0, "printed");
    ok(config_load(&b, file, 0, NULL, &err) == FSDP_OK, "what is printed %s help can be read %s",
       help ? "with" : "without", err.text);
    config_text(&text_a, a, NULL);
    config_text(&text_b, b, NULL);
    ok(text_a && text_b && !strcmp(text_a, text_b), "and says the same");
    ok(!memcmp(&a->model, &b->model, offsetof(struct config, file)), "to the last bit");
    fsdp_free(text_a);
    fsdp_free(text_b);
    fsdp_free(a);
    fsdp_free(b);
}

static char warnings[2000];

static void hear(void *ctx, enum fsdp_log_level level, const char *text)
{
    (void)ctx;
    if (level == FSDP_LOG_WARN)
        snprintf(warnings + strlen(warnings), sizeof warnings - strlen(warnings), "%s\n", text);
}

/* What has no effect is said, once each; what is as by default is not worth a word. */
static void check_idle(void)
{
    static char text[] = GOOD "optim:\n  momentum: 0.5\n  eps: 1.0e-6\n  schedule: constant\n"
                              "  min_lr: 1.0e-4\ncheckpoint:\n  interval: 10\n  keep: 0\n";
    struct fsdp_err err = FSDP_ERR_INIT;
    char *saved[] = {"checkpoint.path=ck", "optim.name=sgd", "optim.min_lr=0"}, expect[600];
    char *scale[] = {"fsdp.loss_scale_init=1", "checkpoint.path=ck", "optim.name=sgd",
                     "optim.min_lr=0",         "optim.eps=1e-8",     "optim.warmup_steps=11"};
    char *half[] = {"fsdp.param_dtype=fp16", "fsdp.reduce_dtype=float16",
                    "fsdp.unit_overrides=[lm_head reduce_dtype=fp16]", "fsdp.loss_scale=true"};
    struct config *c = load(text, 0, NULL, &err);

    fsdp_log_set(hear, NULL, FSDP_LOG_WARN);
    if (!ok(c != NULL, "idle settings are no error %s", err.text))
        return;
    config_warn_idle(c);
    snprintf(expect, sizeof expect,
             "%s:8: optim.momentum has no effect while optim.name is adamw\n"
             "%s:11: optim.min_lr has no effect while optim.schedule is constant\n"
             "%s:13: checkpoint.interval has no effect while checkpoint.path is empty\n",
             file, file, file);
    if (!ok(!strcmp(warnings, expect), "but are told"))
        diag("%s", warnings);
    fsdp_free(c);
    warnings[0] = 0;
    c = load(text, 3, saved, &err);
    config_warn_idle(c);
    snprintf(expect, sizeof expect, "%s:9: optim.eps has no effect while optim.name is sgd\n",
             file);
    if (!ok(!strcmp(warnings, expect), "and what the command line changed counts"))
        diag("%s", warnings);
    fsdp_free(c);
    warnings[0] = 0;
    c = load(text, 6, scale, &err);
    config_warn_idle(c);
    if (!ok(!strcmp(warnings, "command line: fsdp.loss_scale_init has no effect while "
                              "fsdp.loss_scale is auto and no type is float16\n"
                              "command line: optim.warmup_steps: 11 steps of warm-up are more than "
                              "the run's 10: it ends before optim.lr is reached\n"),
            "a loss scale that nothing has, and a warm-up that does not end"))
        diag("%s", warnings);
    fsdp_free(c);
    scale[5] = "train.steps=10";
    for (size_t i = 0; i < sizeof half / sizeof half[0]; i++) {
        warnings[0] = 0;
        scale[4] = half[i];
        c = load(text, 6, scale, &err);
        config_warn_idle(c);
        ok(c && !strstr(warnings, "loss_scale"), "with %s it has one", half[i]);
        fsdp_free(c);
    }
    fsdp_log_set(NULL, NULL, FSDP_LOG_WARN);
}

static void check_agree(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    char *o1[] = {"log.interval=5", "train.threads=3"}, *o2[] = {"optim.lr=0.5"},
         *o3[] = {"log.trace=t.json"};
    struct config *a = load(GOOD, 0, NULL, &err), *b = load(GOOD, 2, o1, &err);
    struct config *c = load(GOOD, 1, o2, &err), *d = load(GOOD, 1, o3, &err);
    char *ta = NULL, *tb = NULL, *tc = NULL, *td = NULL;

    config_agree_text(&ta, a, NULL);
    config_agree_text(&tb, b, NULL);
    config_agree_text(&tc, c, NULL);
    config_agree_text(&td, d, NULL);
    ok(td && strcmp(ta, td), "nor what they write together");
    ok(ta && tb && !strcmp(ta, tb), "how a rank talks and computes may differ");
    ok(tc && strcmp(ta, tc) && strstr(tc, "optim.lr = 0.5\n"), "what it computes may not");
    fsdp_free(ta);
    fsdp_free(tb);
    fsdp_free(tc);
    fsdp_free(td);
    fsdp_free(a);
    fsdp_free(b);
    fsdp_free(c);
    fsdp_free(d);
}

/* ---- the division of a batch ----------------------------------------------------------------- */

static void check_divide(void)
{
    static const struct {
        int ranks, rows, micro, accumulation, micro_rows, better;
        double waste; /* better: the size that is proposed where something is wasted */
    } cases[] = {
        {1, 8, 8, 1, 8, 0, 0},
        {2, 8, 2, 2, 2, 0, 0},
        {3, 15, 5, 1, 5, 0, 0},
        {5, 15, 1, 3, 1, 0, 0},
        {4, 16, 0, 1, 4, 0, 0},
        {4, 15, 1, 4, 1, 16, 1.0 / 16},
        {4, 15, 2, 2, 2, 16, 1.0 / 16},
        {5, 4, 1, 1, 1, 5, 1.0 / 5},
        {7, 1, 0, 1, 1, 7, 6.0 / 7},
        {2, 12, 4, 2, 4, 8, 4.0 / 16},
        {2, 12, 8, 1, 6, 0, 0}, /* no micro-batch is larger than what a rank has */
        {5, 12, 0, 1, 3, 10, 3.0 / 15},
        {7, 12, 0, 1, 2, 14, 2.0 / 14},
        {1, 17, 4, 5, 4, 16, 3.0 / 20},
        {64, 6, 0, 1, 1, 64, 58.0 / 64},
        {16, 6, 0, 1, 1, 16, 10.0 / 16},
        {16, 37, 2, 2, 2, 32, 27.0 / 64},
        {3, 1000, 4, 84, 4, 996, 8.0 / 1008},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fsdp_err err = FSDP_ERR_INIT;
        struct config_batch batch = {0};
        struct config *c = load(GOOD, 0, NULL, &err);
        c->train.global_batch_size = cases[i].rows;
        c->train.micro_batch_size = cases[i].micro;
        config_divide(&batch, c, cases[i].ranks);
        const double waste = config_batch_waste(&batch);
        ok(batch.accumulation == cases[i].accumulation && batch.micro_rows == cases[i].micro_rows &&
               fabs(waste - cases[i].waste) < 1e-12,
           "%d rows in %ds on %d ranks: %d times %d rows, %.1f %% wasted", cases[i].rows,
           cases[i].micro, cases[i].ranks, batch.accumulation, batch.micro_rows, 100 * waste);
        if (cases[i].better) {
            const struct config_batch better = config_batch_better(&batch, c);
            ok(better.rows == cases[i].better && config_batch_waste(&better) == 0,
               "%d rows waste nothing (%d)", cases[i].better, (int)better.rows);
        }
        fsdp_free(c);
    }
}

/* Automatic micro-batches have at most 8192 tokens, and where rows do not divide, as few
 * micro-steps as that allows. */
static void check_auto(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct config_batch batch;
    struct config *c = load(GOOD, 0, NULL, &err);

    c->train.micro_batch_size = 0;
    c->data.seq_len = 2048;
    c->train.global_batch_size = 26;
    config_divide(&batch, c, 2);
    ok(batch.micro_rows == 1 && batch.accumulation == 13, "13 rows of a rank: 13 times 1");
    c->train.global_batch_size = 25;
    config_divide(&batch, c, 2);
    ok(batch.micro_rows == 4 && batch.accumulation == 4, "12 or 13 rows: 4 times 4");
    c->data.seq_len = 100000;
    config_divide(&batch, c, 2);
    ok(batch.micro_rows == 1 && batch.accumulation == 13, "of long rows one at once");
    fsdp_free(c);
}

/* Every row of a step is taken once, ranks have the rows of the formula, and where nothing is
 * padding the micro-steps of the ranks take turns. */
static void check_rows(void)
{
    bool once = true, placed = true, turns = true, follow = true;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct config *c = load(GOOD, 0, NULL, &err);

    for (int ranks = 1; ranks <= 9; ranks++)
        for (int rows = 1; rows <= 40; rows++)
            for (int micro = 0; micro <= 7; micro++) {
                struct config_batch batch;
                int seen[40] = {0};
                c->train.global_batch_size = rows;
                c->train.micro_batch_size = micro;
                config_divide(&batch, c, ranks);
                const bool full = config_batch_places(&batch) == rows;
                for (int r = 0; r < ranks; r++)
                    for (int m = 0; m < batch.accumulation; m++) {
                        const int64_t first = config_batch_first(&batch, r, m);
                        const int nrows = config_batch_nrows(&batch, r, m);
                        follow &= nrows >= 0 && nrows <= batch.micro_rows;
                        turns &= !full || (first == (m * ranks + r) * batch.micro_rows &&
                                           nrows == batch.micro_rows);
                        for (int64_t k = first; k < first + nrows; k++) {
                            seen[k]++;
                            placed &= full || (k >= r * rows / ranks && k < (r + 1) * rows / ranks);
                        }
                    }
                for (int k = 0; k < rows; k++)
                    once &= seen[k] == 1;
            }
    ok(once, "every row of a step is taken once, whatever the division");
    ok(placed, "and by the rank that has it");
    ok(turns && follow, "micro-batches without padding take turns");
    fsdp_free(c);
}

int main(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct config *config = NULL;
    int fd = mkstemp(file);

    if (fd < 0)
        return 1;
    close(fd);
    check_bad();
    check_overrides();
    check_addresses();
    check_good();
    check_sources();
    check_print(true);
    check_print(false);
    check_agree();
    check_idle();
    check_divide();
    check_auto();
    check_rows();
    unlink(file);
    ok(config_load(&config, file, 0, NULL, &err) == FSDP_ENOTFOUND && strstr(err.text, file),
       "missing file: %s", err.text);
    ok(config_load(&config, "/tmp", 0, NULL, &err) == FSDP_EINVAL && strstr(err.text, "folder"),
       "a folder: %s", err.text);
    return tap_done();
}
