/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What torch's optimizers keep besides the moments: a counter for every parameter, and parameter
 * groups with the hyperparameters and the names of their members. All of it is small and goes into
 * one file.
 */
#include <string.h>

#include "archive.h"
#include "meta.h"
#include "util/limits.h"

enum { PARAM_NBYTES = CKPT_MAX_NAME_NBYTES + 1 };

static bool text_is(const json_t *value, const char *text)
{
    return json_is_string(value) && !strcmp(json_string_value(value), text);
}

struct trainer {
    struct ckpt_dcp_meta *meta;
    const char *file;
    const struct ckpt_dcp_train *train;
    json_t *stored; /* names that the checkpoint has, as a set */
    json_t *since;  /* {parameter: updates before its first}; NULL: none had any */
    struct ckpt_text text;
    struct fsdp_err *err;
};

/* Room for the next blob: *pos is where it begins. */
static void blob_begin(struct trainer *t, uint64_t *pos)
{
    while (t->text.nbytes % CKPT_DCP_ALIGN && !t->text.failed)
        ckpt_text_add(&t->text, "\0", 1);
    *pos = t->text.nbytes;
}

static int place_add(struct trainer *t, int at, uint64_t pos)
{
    struct ckpt_dcp_box place = {.tensor = at, .pos = pos, .nbytes = t->text.nbytes - pos};
    if (!(place.file = ckpt_dcp_meta_file(t->meta, t->file, t->err)))
        return FSDP_ENOMEM;
    t->meta->entries[at].place = place;
    return FSDP_OK;
}

/* A Python value under the name that its path spells; takes over both. */
static int value_add(struct trainer *t, const char *stored, json_t *path, json_t *value)
{
    uint64_t pos;
    int rc = FSDP_OK, at = 0;
    if (json_object_get(t->stored, stored)) {
        json_decref(path);
    } else {
        blob_begin(t, &pos);
        struct ckpt_dcp_tag tag = ckpt_dcp_tag_of(t->file, pos);
        rc = ckpt_dcp_value_blob(&t->text, &tag, value, t->err);
        at = rc == FSDP_OK ? ckpt_dcp_meta_add(t->meta, stored, path, t->err) : rc;
        if (rc != FSDP_OK)
            json_decref(path);
        rc = at < 0 ? at : FSDP_OK;
        if (rc == FSDP_OK) {
            t->meta->entries[at].value = true;
            rc = place_add(t, at, pos);
        }
        json_object_set_new(t->stored, stored, json_true());
    }
    json_decref(value);
    return rc;
}

/* ---- counters -------------------------------------------------------------------------------- */

/* optim.state.<name>.step, a float32 scalar */
static int counter_add(struct trainer *t, const char *name, const char *container)
{
    struct fsdp_box box = {{0}, {0}};
    char *own = fsdp_sprintf(t->err, "state.%s.step", name);
    char *stored = fsdp_sprintf(t->err, "%sstate.%s.step", container, name);
    uint64_t pos;
    int rc = own && stored ? FSDP_OK : FSDP_ENOMEM;
    if (rc == FSDP_OK && !json_object_get(t->stored, stored)) {
        struct fsdp_tensor tensor = {.name = own, .dtype = FSDP_F32};
        blob_begin(t, &pos);
        struct ckpt_dcp_tag tag = ckpt_dcp_tag_of(t->file, pos);
        json_int_t since = json_integer_value(json_object_get(t->since, name));
        rc = ckpt_dcp_scalar_blob(&t->text, &tag, (float)(t->train->step - since), t->err);
        int at = rc == FSDP_OK
                     ? ckpt_dcp_meta_tensor(t->meta, &tensor, CKPT_ROLE_OPTIM, stored, t->err)
                     : rc;
        rc = at < 0 ? at : ckpt_dcp_meta_box(t->meta, at, &box, t->file, pos, t->err);
    }
    fsdp_free(own);
    fsdp_free(stored);
    return rc;
}

/* out = the parameter in state.<parameter>.<name>. */
static bool param_of(char out[PARAM_NBYTES], const char *name)
{
    const char *last = strrchr(name, '.');
    if (strncmp(name, "state.", 6) || last <= name + 6)
        return false;
    snprintf(out, PARAM_NBYTES, "%.*s", (int)(last - name - 6), name + 6);
    return true;
}

/* {parameter: container of its state}, in the order of the weights. stateless: of all weights. */
static json_t *params_find(const struct trainer *t, bool stateless)
{
    json_t *have = json_object(), *out = json_object();
    for (int i = 0; i < t->meta->nentries; i++) {
        const struct ckpt_dcp_entry *entry = &t->meta->entries[i];
        char param[PARAM_NBYTES];
        if (entry->role == CKPT_ROLE_OPTIM && entry->name && param_of(param, entry->name))
            json_object_set_new(
                have, param,
                json_stringn(entry->stored, strlen(entry->stored) - strlen(entry->name)));
    }
    for (int i = 0; i < t->meta->nentries; i++) {
        const struct ckpt_dcp_entry *entry = &t->meta->entries[i];
        if (entry->role != CKPT_ROLE_MODEL || !entry->name || entry->same_as >= 0)
            continue;
        json_t *container = json_object_get(have, entry->name);
        if (container)
            json_object_set(out, entry->name, container);
        else if (stateless)
            json_object_set_new(out, entry->name, json_string("optim."));
    }
    json_decref(have);
    return out;
}

/* ---- parameter groups ------------------------------------------------------------------------ */

/* Every key that torch.optim.AdamW and SGD have had; a script's optimizer reads those it knows. */
static json_t *group_make(const json_t *optim, double lr, double weight_decay)
{
    json_t *betas = json_object_get(optim, "betas");
    bool sgd = text_is(json_object_get(optim, "name"), "sgd");
    double eps = json_number_value(json_object_get(optim, "eps"));
    json_t *group = json_pack("{s:f, s:f, s:b, s:n, s:b, s:n}", "lr", lr, "weight_decay",
                              weight_decay, "maximize", 0, "foreach", "differentiable", 0, "fused");
    if (sgd) {
        json_object_set_new(group, "momentum",
                            json_real(json_number_value(json_object_get(optim, "momentum"))));
        json_object_set_new(group, "dampening",
                            json_real(json_number_value(json_object_get(optim, "dampening"))));
        json_object_set_new(group, "nesterov",
                            json_boolean(json_is_true(json_object_get(optim, "nesterov"))));
        return group;
    }
    json_object_set_new(group, "betas",
                        json_array_size(betas) == 2 ? json_incref(betas)
                                                    : json_pack("[f, f]", 0.9, 0.95));
    json_object_set_new(group, "eps", json_real(eps > 0 ? eps : 1e-8));
    json_object_set_new(group, "amsgrad", json_false());
    json_object_set_new(group, "capturable", json_false());
    json_object_set_new(group, "decoupled_weight_decay",
                        json_boolean(!text_is(json_object_get(optim, "name"), "adam")));
    return group;
}

static int group_add(struct trainer *t, int index, json_t *group)
{
    const char *key;
    json_t *value;
    int rc = FSDP_OK;
    json_object_foreach(group, key, value)
    {
        char stored[200];
        snprintf(stored, sizeof stored, "optim.param_groups.%d.%s", index, key);
        if (rc == FSDP_OK)
            rc =
                value_add(t, stored, json_pack("[s, s, i, s]", "optim", "param_groups", index, key),
                          json_incref(value));
    }
    return rc;
}

static int ndim_of(const struct trainer *t, const char *name)
{
    for (int i = 0; i < t->meta->nentries; i++)
        if (t->meta->entries[i].name && !strcmp(t->meta->entries[i].name, name))
            return t->meta->entries[i].tensor.ndim;
    return 0;
}

/* One group; two where weight decay is for matrices alone. */
static int groups_make(struct trainer *t, const json_t *state, json_t *params)
{
    const json_t *optim = json_object_get(state, "optim");
    const json_t *schedule = json_object_get(state, "schedule");
    double lr = json_number_value(json_object_get(optim ? optim : schedule, "lr"));
    double decay = json_number_value(json_object_get(optim, "weight_decay"));
    bool split = decay != 0 && text_is(json_object_get(optim, "decay"), "matrices");
    json_t *members[2] = {json_array(), json_array()};
    const char *name;
    json_t *container;
    int rc = FSDP_OK, index = 0;

    json_object_foreach(params, name, container)
    {
        json_array_append_new(members[split && ndim_of(t, name) < 2], json_string(name));
    }
    for (int i = 0; i < 2; i++) {
        if (json_array_size(members[i]) && rc == FSDP_OK) {
            json_t *group = group_make(optim, lr, i ? 0 : decay);
            json_object_set(group, "params", members[i]);
            rc = group_add(t, index++, group);
            json_decref(group);
        }
        json_decref(members[i]);
    }
    return rc;
}

/* ---- values of a torch source ---------------------------------------------------------------- */

/* Did the source keep this value whole? Only plain ones go back. */
static bool is_plain(const json_t *value)
{
    static const char *const marks[] = {"unreadable", "bytes", "path"};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
        if (json_object_size(value) == 1 && json_object_get(value, marks[i]))
            return false;
    return true;
}

/* An item of a list that held tensors, too, is written under its name alone: torch takes a list
 * that lost them for one value. */
static json_t *path_of(const json_t *paths, const char *stored)
{
    json_t *path = json_object_get(paths, stored);
    size_t count = json_array_size(path);
    return count && !json_is_integer(json_array_get(path, count - 1)) ? json_incref(path)
                                                                      : json_pack("[s]", stored);
}

static int values_add(struct trainer *t, const json_t *state, bool *grouped)
{
    json_t *values = json_object_get(state, "values"), *value;
    const json_t *paths = json_object_get(state, "paths");
    const char *stored;
    int rc = FSDP_OK;
    json_object_foreach(values, stored, value)
    {
        if (rc == FSDP_OK && !is_plain(value))
            fsdp_log(FSDP_LOG_WARN, "the Python value '%s' cannot be written back and is left out",
                     stored);
        if (rc || !is_plain(value))
            continue;
        *grouped |= strstr(stored, "param_groups") != NULL;
        rc = value_add(t, stored, path_of(paths, stored), json_incref(value));
    }
    return rc;
}

static bool has_momentum_buffers(const struct trainer *t)
{
    for (int i = 0; i < t->meta->nentries; i++) {
        const struct ckpt_dcp_entry *entry = &t->meta->entries[i];
        const char *last = entry->name ? strrchr(entry->name, '.') : NULL;
        if (entry->role == CKPT_ROLE_OPTIM && last && !strcmp(last, ".momentum_buffer"))
            return true;
    }
    return false;
}

/* Adam counts per parameter. torch's SGD does not: there the step is a value of its own, which
 * torch passes over. */
static int steps_add(struct trainer *t, const json_t *params, bool sgd)
{
    json_t *container;
    const char *name;
    int rc = FSDP_OK;
    if (t->train->step < 0)
        return rc;
    if (sgd)
        return value_add(t, "step", json_pack("[s]", "step"), json_integer(t->train->step));
    json_object_foreach((json_t *)(uintptr_t)params, name, container)
    {
        if (rc == FSDP_OK)
            rc = counter_add(t, name, json_string_value(container));
    }
    return rc;
}

static int fill_state(struct trainer *t)
{
    json_t *state = t->train->state_json ? json_loads(t->train->state_json, 0, NULL) : NULL;
    const json_t *optim = json_object_get(state, "optim");
    bool stateless = t->train->whole && text_is(json_object_get(optim, "name"), "sgd") &&
                     json_number_value(json_object_get(optim, "momentum")) == 0;
    bool has_optim = t->train->optim || stateless, grouped = false;
    json_t *params = params_find(t, stateless);
    int rc = !t->train->state_json || state
                 ? FSDP_OK
                 : fsdp_err_set(t->err, FSDP_ECORRUPT, "the training state is not valid JSON");

    if (has_optim && json_object_get(state, "averaging"))
        fsdp_log(FSDP_LOG_WARN,
                 "torch's format has no place for the sum of the step weights of schedule-free "
                 "AdamW: a run can begin with the weights of what is written, not continue");
    for (int i = 0; i < t->meta->nentries; i++)
        json_object_set_new(t->stored, t->meta->entries[i].stored, json_true());
    t->since = json_object_get(state, "moments_since");
    if (rc == FSDP_OK && has_optim)
        rc = steps_add(t, params, stateless || has_momentum_buffers(t));
    if (rc == FSDP_OK)
        rc = values_add(t, state, &grouped);
    if (rc == FSDP_OK && has_optim && !grouped && json_object_size(params))
        rc = groups_make(t, state, params);
    json_decref(params);
    json_decref(state);
    return rc;
}

int ckpt_dcp_meta_train(char **out, size_t *out_nbytes, struct ckpt_dcp_meta *meta,
                        const char *file, const struct ckpt_dcp_train *train, struct fsdp_err *err)
{
    struct trainer t = {.meta = meta, .file = file, .train = train, .err = err};
    int rc = FSDP_ENOMEM;
    *out = NULL;
    *out_nbytes = 0;
    if (!(t.stored = json_object()))
        return fsdp_err_set(err, rc, "torch metadata: out of memory");
    rc = fill_state(&t);
    json_decref(t.stored);
    if (rc == FSDP_OK && t.text.failed)
        rc = fsdp_err_set(err, FSDP_ENOMEM, "torch metadata: out of memory");
    if (rc) {
        ckpt_text_free(&t.text);
        return rc;
    }
    *out = t.text.data;
    *out_nbytes = t.text.nbytes;
    return FSDP_OK;
}
