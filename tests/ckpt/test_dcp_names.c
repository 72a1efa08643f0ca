/* SPDX-License-Identifier: Apache-2.0 */
/* What the names of a torch state dict mean: weights, optimizers, others, and what they are called.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../ckpt/format/dcp/dcp_names.h"
#include "tap.h"

enum { MAX_ENTRIES = 16, MAX_ITEMS = 40 };

/* A path as a text, "app/model/layer.weight": its items are divided by slashes, "#3" is an integer.
 * "=" before it: a Python value. */
struct path {
    char text[400], stored[400];
    struct ckpt_pk tuple, items[MAX_ITEMS], *pointers[MAX_ITEMS];
};

static void path_make(struct path *p, struct ckpt_dcp_name *name, const char *text)
{
    *name = (struct ckpt_dcp_name){.is_tensor = *text != '=', .stored = p->stored};
    snprintf(p->text, sizeof p->text, "%s", text + !name->is_tensor);
    p->tuple = (struct ckpt_pk){.type = CKPT_PK_T_TUPLE};
    p->stored[0] = 0;
    for (char *item = p->text, *next; item; item = next) {
        struct ckpt_pk *at = &p->items[p->tuple.nitems];
        next = strchr(item, '/');
        if (next)
            *next++ = 0;
        bool number = *item == '#';
        *at = number ? (struct ckpt_pk){.type = CKPT_PK_T_INT, .u.integer = atoi(item + 1)}
                     : (struct ckpt_pk){.type = CKPT_PK_T_TEXT,
                                        .nitems = (uint32_t)strlen(item),
                                        .u.text = item};
        strcat(strcat(p->stored, p->tuple.nitems ? "." : ""), item + number);
        p->pointers[p->tuple.nitems++] = at;
    }
    p->tuple.u.items = p->pointers;
    name->path = &p->tuple;
}

/* "path > ROLE name", the name with a bar where the own one begins if it has containers. */
static const struct sample {
    const char *what, *entries[MAX_ENTRIES];
} samples[] = {
    {"model and optim",
     {"model/w > M w", "optim/state/w/exp_avg > O state.w.exp_avg", "step > X step"}},
    {"an optimizer that torch flattened",
     {"model/w > M w", "optim/state.w.exp_avg > O state.w.exp_avg", "=optim/param_groups.w.lr"}},
    {"weights alone", {"w > M w", "model.norm > M model.norm"}},
    {"containers around the model",
     {"app/model/w > M app.model.|w", "app/optim/state/w/exp_avg > O state.w.exp_avg",
      "app/ema/w > X app.ema.w", "app/step > X app.step", "rng > X rng"}},
    {"model and optimizer in a container called model",
     {"model/model/w > M model.model.|w", "model/optim/state/w/exp_avg > O state.w.exp_avg",
      "=model/optim/param_groups/#0/lr", "model/step > X model.step"}},
    {"an optimizer in the model's own dict",
     {"model/w > M w", "model/opt/state/w/exp_avg > O state.w.exp_avg",
      "=model/opt/param_groups/#0/lr", "model/opt/scale > X model.opt.scale"}},
    {"two models and two optimizers",
     {"g/w > M g.w", "d/w > M d.w", "g_opt/state/w/exp_avg > O g_opt.|state.w.exp_avg",
      "d_opt/state/w/exp_avg > O d_opt.|state.w.exp_avg", "=g_opt/param_groups/#0/lr",
      "=d_opt/param_groups/#0/lr"}},
    {"numbered parameters",
     {"net/w > M net.w", "opt/state/#0/exp_avg > O state.0.exp_avg",
      "opt/state/#0/step > O state.0.step"}},
    {"a list of optimizers",
     {"model/w > M w", "optimizers/#0/state/#0/exp_avg > O optimizers.0.|state.0.exp_avg",
      "optimizers/#1/state/#0/exp_avg > O optimizers.1.|state.0.exp_avg",
      "=optimizers/#0/param_groups/#0/lr", "=optimizers/#1/param_groups/#0/lr"}},
    {"all in one flat dict",
     {"w > M w", "optim.state.w.exp_avg > O state.w.exp_avg",
      "optim.state.w.step > O state.w.step"}},
    {"an optimizer alone",
     {"state/w/exp_avg > O state.w.exp_avg", "param_groups/#0/lr > X param_groups.0.lr",
      "=param_groups/#0/betas"}},
    {"modules called state, model and optim",
     {"encoder/state.linear.weight > M encoder.state.linear.weight",
      "encoder/model.w > M encoder.model.w", "encoder/optim.bias > M encoder.optim.bias",
      "state/w > M state.w"}},
    {"a module called state inside the model",
     {"model/state.w > M state.w", "model/decoder.state.x.weight > M decoder.state.x.weight"}},
    {"a buffer and a tensor of one name",
     {"model/step > M model.|step", "model/w > M w", "step > X step"}},
    {"settings of an optimizer that are tensors",
     {"model/w > M w", "optim/state/w/exp_avg > O state.w.exp_avg",
      "optim/param_groups/#0/lr > X optim.param_groups.0.lr"}},
    {"a full name that meets another",
     {"a/x > M a.x", "p/state/x/exp_avg > O p.|state.x.exp_avg",
      "q/state/x/exp_avg > O q.|state.x.exp_avg", "model_p.state > M model_p.state"}},
};

static void test_sample(const struct sample *s)
{
    struct ckpt_dcp_name names[MAX_ENTRIES];
    struct path *paths = calloc(MAX_ENTRIES, sizeof *paths);
    char path[400], have[500];
    size_t count = 0;
    bool good = true;
    for (; s->entries[count]; count++) {
        snprintf(path, sizeof path, "%s", s->entries[count]);
        if (strstr(path, " > "))
            *strstr(path, " > ") = 0;
        path_make(&paths[count], &names[count], path);
    }
    good = ckpt_dcp_names_settle(names, count, NULL) == FSDP_OK;
    for (size_t i = 0; good && i < count; i++) {
        static const char roles[] = {
            [CKPT_ROLE_MODEL] = 'M', [CKPT_ROLE_OPTIM] = 'O', [CKPT_ROLE_OTHER] = 'X'};
        const char *want = strstr(s->entries[i], " > "), *here = ckpt_dcp_name_here(&names[i]);
        snprintf(have, sizeof have, "%c %.*s%s%s", roles[names[i].role], (int)names[i].outer_nbytes,
                 here, names[i].outer_nbytes ? "|" : "", here + names[i].outer_nbytes);
        if (want && strcmp(have, want + 3)) {
            diag("%s: is '%s', should be '%s'", names[i].stored, have, want + 3);
            good = false;
        }
    }
    ok(good, "%s", s->what);
    free(paths);
}

/* Any set of paths: distinct names stay distinct, and own names are ends of the stored ones. */
static void test_random(void)
{
    static const char *const words[] = {
        "model", "optim", "state",        "w",   "exp_avg",
        "app",   "step",  "param_groups", "#0",  "state.w.exp_avg",
        "opt",   "x.y",   "model.w",      "ema", "w.state.w.exp_avg"};
    struct ckpt_dcp_name names[MAX_ENTRIES];
    struct path *paths = calloc(MAX_ENTRIES, sizeof *paths);
    bool good = true;
    srand(1);
    for (int round = 0; good && round < 20000; round++) {
        size_t count = 1 + (size_t)rand() % MAX_ENTRIES;
        for (size_t i = 0; i < count; i++) {
            char text[400] = "";
            int nitems = 1 + rand() % 5;
            strcat(text, rand() % 6 ? "" : "=");
            for (int k = 0; k < nitems; k++)
                strcat(strcat(text, k ? "/" : ""),
                       words[(size_t)rand() % (sizeof words / sizeof *words)]);
            path_make(&paths[i], &names[i], text);
        }
        good = ckpt_dcp_names_settle(names, count, NULL) == FSDP_OK;
        for (size_t i = 0; good && i < count; i++) {
            size_t skip = names[i].container_nbytes;
            good = skip <= strlen(names[i].stored) && names[i].outer_nbytes <= skip &&
                   (!skip || names[i].stored[skip - 1] == '.');
            for (size_t k = 0; good && k < i; k++)
                good = !names[i].is_tensor || !names[k].is_tensor ||
                       strcmp(ckpt_dcp_name_here(&names[i]), ckpt_dcp_name_here(&names[k])) ||
                       !strcmp(names[i].stored, names[k].stored);
            if (!good)
                diag("round %d: %s", round, names[i].stored);
        }
    }
    ok(good, "20000 random state dicts keep their names apart");
    free(paths);
}

/* A path that does not spell its name, or is too long, is not used. */
static void test_paths(void)
{
    struct ckpt_dcp_name names[2];
    struct path *paths = calloc(2, sizeof *paths);
    path_make(&paths[0], &names[0], "model/w");
    path_make(&paths[1], &names[1], "model/w2");
    paths[0].stored[0] = 'M';
    ok(ckpt_dcp_names_settle(names, 2, NULL) == FSDP_OK && !names[0].path && names[1].path &&
           names[0].role == CKPT_ROLE_OTHER && !strcmp(ckpt_dcp_name_here(&names[0]), "Model.w"),
       "a path that does not spell the name");
    char text[400] = "model";
    for (int i = 0; i < MAX_ITEMS - 1; i++)
        strcat(text, "/a");
    path_make(&paths[0], &names[0], text);
    ok(ckpt_dcp_names_settle(names, 1, NULL) == FSDP_OK && !names[0].path,
       "a path that is too long");
    free(paths);
}

/* Names of a large model with two optimizers; quadratic work would take minutes. */
static void test_large(void)
{
    enum { NPARAMS = 40000, COUNT = 5 * NPARAMS };
    static const char *const begins[] = {"g/layers", "d/layers", "opt_g/state/layers",
                                         "opt_d/state/layers", "opt_d/state/layers"};
    static const char *const ends[] = {"", "", "/exp_avg", "/exp_avg", "/step"};
    struct ckpt_dcp_name *names = calloc(COUNT, sizeof *names);
    struct path *paths = calloc(COUNT, sizeof *paths);
    for (int i = 0; i < COUNT; i++) {
        char text[200];
        snprintf(text, sizeof text, "%s.%d.weight%s", begins[i % 5], COUNT - i / 5, ends[i % 5]);
        path_make(&paths[i], &names[i], text);
    }
    tap_limit_cpu(60);
    int rc = ckpt_dcp_names_settle(names, COUNT, NULL);
    tap_limit_cpu(0);
    bool good = rc == FSDP_OK;
    for (int i = 0; good && i < COUNT; i++)
        good = names[i].role == (i % 5 < 2 ? CKPT_ROLE_MODEL : CKPT_ROLE_OPTIM) &&
               (i % 5 != 3 || names[i].outer_nbytes);
    ok(good, "200000 names");
    free(names);
    free(paths);
}

int main(void)
{
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++)
        test_sample(&samples[i]);
    test_random();
    test_paths();
    test_large();
    return tap_done();
}
