/* SPDX-License-Identifier: Apache-2.0 */
/* Parameter groups as text, and the optimizer settings that an engine refuses. */
#include <math.h>

#include "given.h"
#include "optim/optimizer.h"
#include "tap.h"

/* What weight decay is for where optim.decay is not `all`, and what Muon takes. */
static void test_matrices(void)
{
    static const struct {
        const char *name;
        int ndim;
        bool decays, muon;
    } cases[] = {
        {"layers.0.q_proj.weight", 2, true, true},
        {"layers.0.norm.weight", 1, false, false},
        {"layers.0.q_proj.bias", 1, false, false},
        {"experts.gate_up_proj", 3, true, false},
        {"experts.gate_up_proj_bias", 2, false, false},
        {"bias", 2, false, false},
        {"as", 2, true, true},
        {"biases.weight", 2, true, true},
    };
    struct fsdp_optim_opts opts = FSDP_OPTIM_OPTS_INIT;

    opts.name = "muon";
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct fsdp_tensor tensor = {
            .name = cases[i].name, .ndim = cases[i].ndim, .shape = {2, 3, 4}};
        opts.decay = FSDP_DECAY_MATRICES;
        const bool decays = optimizer_hyper_of(&opts, &tensor).weight_decay > 0;
        opts.decay = FSDP_DECAY_ALL;
        ok(decays == cases[i].decays && optimizer_hyper_of(&opts, &tensor).weight_decay > 0 &&
               (optimizer_of(&opts, &tensor) != &optimizer_adamw) == cases[i].muon,
           "%s of %d dimensions %s", cases[i].name, cases[i].ndim,
           cases[i].decays ? "decays" : "does not decay");
    }
}

static void test_parse(void)
{
    static const struct {
        const char *text, *expect; /* in the error */
    } bad[] = {
        {"", "expected PATTERN"},
        {"*.b", "expected PATTERN"},
        {": lr=1", "expected PATTERN"},
        {"*.b:", "sets nothing"},
        {"*.b: lr", "settings are lr="},
        {"*.b: rate=1", "'rate=1'"},
        {"*.b: lr=x", "a number"},
        {"*.b: lr=-1", "a number of at least 0"},
        {"*.b: lr=1e-3x", "'x' is too much"},
        {"*.b: betas=0.9", "two numbers"},
        {"*.b: betas=0.9,", "a number"},
        {"*.b: lr=1e-3 lr_scale=2", "set before"},
        {"*.b: weight_decay=nan", "a number"},
    };
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_optim_group group;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ok(fsdp_optim_group_parse(&group, bad[i].text, 0.01, &err) == FSDP_EINVAL &&
               strstr(err.text, bad[i].expect),
           "'%s': %s", bad[i].text, err.text);
    ok(fsdp_optim_group_parse(&group, "*.b: lr=1e-3", 0, &err) == FSDP_EINVAL &&
           strstr(err.text, "use lr_scale"),
       "no rate to be relative to: %s", err.text);
    ok(fsdp_optim_group_parse(&group, " a  *.b : lr=0.005 weight_decay=0", 0.01, &err) == 0 &&
           fabs(group.lr_scale - 0.5) < 1e-12 && group.weight_decay == 0 && group.betas[0] < 0,
       "a rate becomes a share; what is not said stays open");
    ok(fsdp_optim_group_parse(&group, "*: betas=0.5,0.75 lr_scale=0", 0.01, &err) == 0 &&
           group.betas[0] == 0.5 && group.betas[1] == 0.75 && group.lr_scale == 0,
       "betas, and a rate of nothing");
}

static int plan(struct fsdp_optim_opts optim, struct fsdp_err *err)
{
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct fsdp_mesh_shape shape = {.shard_size = 2, .replicate_size = 1};
    struct fsdp_device *device;
    struct fsdp *f = NULL;
    struct given model;

    given_make(&model);
    opts.wrap_policy = FSDP_WRAP_NONE;
    opts.optim = optim;
    if (fsdp_device_open(&device, "cpu", 0, err))
        return FSDP_EINTERNAL;
    int rc = fsdp_plan(&f, model.tree, &opts, device, shape, err);
    fsdp_destroy(f);
    fsdp_device_close(device);
    fsdp_module_tree_destroy(model.tree);
    return rc;
}

static void refused(struct fsdp_optim_opts optim, const char *expect)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    ok(plan(optim, &err) == FSDP_EINVAL && strstr(err.text, expect), "%s: %s", expect, err.text);
}

static void test_refused(void)
{
    const struct fsdp_optim_opts init = FSDP_OPTIM_OPTS_INIT;
    struct fsdp_optim_group group = {"blocks.*.w blocks.7.*: lr=1", -1, -1, {-1, -1}, ""};
    struct fsdp_optim_opts o = init;
    struct fsdp_err err = FSDP_ERR_INIT;

    ok(plan(init, &err) == FSDP_OK, "the defaults are taken: %s", err.text);
    o.name = "adagrad";
    refused(o, "known: adamw, adamw8bit, adam, adafactor, lion, muon, schedulefree, sgd");
    o = init;
    o.betas[1] = 1;
    refused(o, "beta2 is 1");
    o = init;
    o.eps = 0;
    refused(o, "eps is 0");
    o = init;
    o.ema_decay = 1;
    refused(o, "ema_decay is 1");
    o = init;
    o.weight_decay = NAN;
    refused(o, "weight_decay is nan");
    o = init;
    o.groups = &group;
    o.ngroups = 1;
    refused(o, "matches 'blocks.7.*'");
    group.names = "blocks.1.*";
    ok(plan(o, &err) == FSDP_OK, "a group that matches: %s", err.text);
    o.name = "sgd";
    ok(plan(o, &err) == FSDP_OK, "sgd too: %s", err.text);
    group.betas[0] = 0.5;
    refused(o, "it has no betas");
    group.betas[0] = -1;
    o.nesterov = true;
    o.dampening = 0.1;
    refused(o, "nesterov needs");
    o = init;
    o.name = "sgd";
    o.momentum = -0.5;
    refused(o, "momentum is -0.5");
}

int main(void)
{
    test_matrices();
    ok(fsdp_glob_match("*.b", "blocks.0.b") && !fsdp_glob_match("*.b", "blocks.0.bias") &&
           fsdp_glob_match("blocks.[01].?", "blocks.1.w"),
       "patterns match whole names, a star dots too");
    test_parse();
    test_refused();
    return tap_done();
}
