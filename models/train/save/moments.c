/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "moments.h"

/* ---- names ----------------------------------------------------------------------------------- */

/* The tensor `state.<param>.<kind>` of the checkpoint; NULL if absent. */
static const struct ckpt_tensor *find_moment(const struct train_moments *m, int param,
                                             const char *kind)
{
    char name[1024];
    int len = snprintf(name, sizeof name, "state.%s.%s",
                       fsdp_param_tensor(m->parts->tree, param).name, kind);
    return len < (int)sizeof name ? ckpt_tensor_find(m->ckpt, name) : NULL;
}

static bool holds_kind(const struct ckpt *ckpt, const char *kind)
{
    for (int i = 0; i < ckpt_ntensors(ckpt); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(ckpt, i);
        if (t->kind == FSDP_SLICE_OPTIM && fsdp_text_ends(t->tensor.name, kind))
            return true;
    }
    return false;
}

static int param_of(const struct train_moments *m, const char *name)
{
    const json_t *at = json_object_get(m->params, name);
    return at ? (int)json_integer_value(at) : -1;
}

/* The parameter of state.<param>.<kind>; -1: none. */
static int param_of_state(const struct train_moments *m, const char *name)
{
    char param[1024];
    const char *dot = strrchr(name, '.');
    int len = dot ? (int)(dot - name) - (int)strlen("state.") : 0;

    if (strncmp(name, "state.", 6) || len < 1 || len >= (int)sizeof param)
        return -1;
    snprintf(param, sizeof param, "%.*s", len, name + 6);
    return param_of(m, param);
}

static bool name_params(struct train_moments *m)
{
    m->params = json_object();
    for (int p = 0; m->params && p < fsdp_param_count(m->parts->tree); p++)
        if (json_object_set_new(m->params, fsdp_param_tensor(m->parts->tree, p).name,
                                json_integer(p)))
            return false;
    return m->params != NULL;
}

/* ---- how often each parameter was updated ---------------------------------------------------- */

static void since_from_json(struct train_moments *m)
{
    const char *text = ckpt_state_json(m->ckpt);
    json_t *root = text ? json_loads(text, 0, NULL) : NULL, *value;
    const char *name;

    json_object_foreach(json_object_get(root, "moments_since"), name, value)
    {
        int param = param_of(m, name);
        if (param >= 0 && json_integer_value(value) > 0)
            m->since[param] = json_integer_value(value);
    }
    json_decref(root);
}

struct counter {
    enum fsdp_dtype dtype;
    double value;
};

static int counter_write(void *ctx, uint64_t pos, const void *src, size_t nbytes,
                         struct fsdp_err *err)
{
    struct counter *c = ctx;
    float narrow;
    int64_t wide;
    (void)err;
    if (pos == 0 && c->dtype == FSDP_F32 && nbytes == sizeof narrow) {
        memcpy(&narrow, src, sizeof narrow);
        c->value = (double)narrow;
    } else if (pos == 0 && c->dtype == FSDP_I64 && nbytes == sizeof wide) {
        memcpy(&wide, src, sizeof wide);
        c->value = (double)wide;
    }
    return FSDP_OK;
}

/* counts[param]: torch's own counter of the parameter, -1 where it has none. */
static int read_counters(struct train_moments *m, struct ckpt *ckpt, int64_t *counts,
                         struct fsdp_err *err)
{
    for (int p = 0; p < fsdp_param_count(m->parts->tree); p++) {
        const struct ckpt_tensor *t = find_moment(m, p, "step");
        counts[p] = -1;
        if (!t || fsdp_tensor_nelem(&t->tensor) != 1)
            continue;
        struct counter c = {.dtype = t->tensor.dtype, .value = -1};
        struct fsdp_slice slice = {.tensor = t->tensor, .nreplica = 1};
        struct fsdp_slice_io io = {.ctx = &c, .write = counter_write};
        for (int d = 0; d < t->tensor.ndim; d++)
            slice.box.length[d] = 1;
        FSDP_TRY(ckpt_read_slice(ckpt, &slice, &io, err));
        if (c.value >= 0 && c.value < 9e15)
            counts[p] = (int64_t)(c.value + 0.5);
    }
    return FSDP_OK;
}

/* Rank 0 reads the counters, which are many small tensors, for all. */
static int since_from_counters(struct train_moments *m, struct ckpt *ckpt, int64_t *step,
                               struct fsdp_oob *oob, struct fsdp_err *err)
{
    const int nparams = fsdp_param_count(m->parts->tree);
    const size_t nbytes = (size_t)nparams * sizeof *m->since;
    int rc = oob->rank == 0 ? read_counters(m, ckpt, m->since, err) : FSDP_OK;

    FSDP_TRY(fsdp_oob_agree(oob, rc, err));
    FSDP_TRY(fsdp_oob_broadcast(oob, m->since, nbytes, 0, err));
    for (int p = 0; p < nparams; p++)
        *step = m->since[p] > *step ? m->since[p] : *step;
    for (int p = 0; p < nparams; p++)
        m->since[p] = m->since[p] < 0 ? 0 : *step - m->since[p];
    return FSDP_OK;
}

int train_moments_open(struct train_moments *m, const struct train_parts *parts, struct ckpt *ckpt,
                       int64_t *step, struct fsdp_oob *oob, struct fsdp_err *err)
{
    const size_t nparams = (size_t)fsdp_param_count(parts->tree);

    *m = (struct train_moments){.parts = parts, .ckpt = ckpt};
    m->since = fsdp_alloc(nparams, sizeof *m->since, "counts of updates", err);
    m->fresh = fsdp_alloc(nparams, sizeof *m->fresh, "parameters without moments", err);
    bool have = m->since && m->fresh && name_params(m);
    FSDP_TRY(fsdp_oob_agree(oob, have ? FSDP_OK : FSDP_ENOMEM, err));
    if (ckpt_format(ckpt) != CKPT_NATIVE)
        return since_from_counters(m, ckpt, step, oob, err);
    since_from_json(m);
    return FSDP_OK;
}

void train_moments_close(struct train_moments *m)
{
    json_decref(m->params);
    fsdp_free(m->since);
    fsdp_free(m->fresh);
    *m = (struct train_moments){0};
}

/* ---- what starts fresh ----------------------------------------------------------------------- */

/* Is it a moment? torch keeps more of a parameter, which no run here does. */
static bool is_moment(const char *name)
{
    static const char *const others[] = {".ema", ".step", ".max_exp_avg_sq"};

    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (fsdp_text_ends(name, others[i]))
            return false;
    return true;
}

/* Are the names of the moments in the checkpoint those that the run keeps? */
static bool has_same_names(const struct ckpt *ckpt, const struct fsdp_state_layout *layout)
{
    int nmoments = 0;

    for (int k = 0; k < layout->nslots; k++) {
        char end[64];
        snprintf(end, sizeof end, ".%s", layout->slots[k].name);
        nmoments += is_moment(end);
        if (is_moment(end) && !holds_kind(ckpt, end))
            return false;
    }
    for (int t = 0; t < ckpt_ntensors(ckpt); t++) {
        const struct ckpt_tensor *stored = ckpt_tensor_at(ckpt, t);
        const char *dot = strrchr(stored->tensor.name, '.');
        bool known = stored->kind != FSDP_SLICE_OPTIM || !is_moment(stored->tensor.name);
        for (int k = 0; dot && !known && k < layout->nslots; k++)
            known = !strcmp(dot + 1, layout->slots[k].name);
        if (!known)
            return false;
    }
    return nmoments > 0;
}

/* Several optimizers keep tensors of the same names: then it is what the run has. */
static const char *name_of_tensors(const struct ckpt *ckpt, const struct train_parts *parts)
{
    const char *now = parts->optimizer;

    if (has_same_names(ckpt, fsdp_state_layout(parts->fsdp)))
        return now;
    if (holds_kind(ckpt, ".momentum_buffer"))
        return "sgd";
    if (holds_kind(ckpt, ".state1"))
        return "adamw8bit";
    if (holds_kind(ckpt, ".row_var") || holds_kind(ckpt, ".variance"))
        return "adafactor";
    if (holds_kind(ckpt, ".exp_avg"))
        return !holds_kind(ckpt, ".exp_avg_sq") ? "lion" : strcmp(now, "adam") ? "adamw" : "adam";
    return holds_kind(ckpt, ".exp_avg_sq") ? "schedulefree" : "";
}

/* The optimizer whose state the checkpoint holds: as the state says, or as its tensors' names do;
 * "" where neither tells. */
static void saved_optimizer(char *out, size_t out_nbytes, const struct ckpt *ckpt,
                            const struct train_parts *parts)
{
    const char *text = ckpt_state_json(ckpt);
    json_t *root = text ? json_loads(text, 0, NULL) : NULL;
    const char *name = json_string_value(json_object_get(json_object_get(root, "optim"), "name"));

    if (!name)
        name = name_of_tensors(ckpt, parts);
    snprintf(out, out_nbytes, "%s", name);
    json_decref(root);
}

static int check_optimizer(const struct train_moments *m, struct fsdp_err *err)
{
    const struct config *c = m->parts->config;
    const char *now = m->parts->optimizer;
    char saved[32], where[CONFIG_TEXT + 128];

    saved_optimizer(saved, sizeof saved, m->ckpt, m->parts);
    if (!strcmp(saved, now) || (!saved[0] && !strcmp(now, "sgd")))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EMISMATCH,
                        "%.300s: is %s, but %.300s holds %s%s; set optim.name as it "
                        "was, or begin a new run with model.path at its merged weights",
                        config_where(where, sizeof where, c, "optim.name"), now, ckpt_path(m->ckpt),
                        saved[0] ? saved : "no optimizer's state", saved[0] ? "'s state" : "");
}

/* Moments that the run keeps of tensor i of a flat, of which *count are in the checkpoint. */
static int count_moments(const struct train_moments *m, const struct fsdp_flat_desc *flat, int i,
                         int *count)
{
    const struct fsdp_state_layout *layout = fsdp_state_layout(m->parts->fsdp);
    const int param = param_of(m, flat->tensors[i].name);
    int nmoments = 0;

    *count = 0;
    for (int k = 0; k < layout->nslots; k++) {
        if (!fsdp_flat_has_slot(flat, i, k) || !strcmp(layout->slots[k].name, "ema"))
            continue;
        nmoments++;
        *count += find_moment(m, param, layout->slots[k].name) != NULL;
    }
    return nmoments;
}

static int decide_param(struct train_moments *m, const struct fsdp_flat_desc *flat, int i,
                        const int *nstored, int64_t nupdates, struct fsdp_err *err)
{
    const int param = param_of(m, flat->tensors[i].name);
    int count, nmoments = count_moments(m, flat, i, &count);

    if (nmoments && nstored[param] && (count != nmoments || count != nstored[param]))
        return fsdp_err_set(err, FSDP_EMISMATCH,
                            "%.300s holds another optimizer's state of '%.200s' than this run "
                            "keeps: set optim.name and optim.groups as they were, or begin a new "
                            "run with model.path at its merged weights",
                            ckpt_path(m->ckpt), flat->tensors[i].name);
    if (!nmoments || count)
        return FSDP_OK;
    m->fresh[param] = true;
    m->first = m->nfresh++ ? m->first : param;
    m->since[param] = nupdates;
    return FSDP_OK;
}

static int decide_params(struct train_moments *m, int64_t nupdates, struct fsdp_err *err)
{
    const struct fsdp_state_layout *layout = fsdp_state_layout(m->parts->fsdp);
    const size_t nparams = (size_t)fsdp_param_count(m->parts->tree);
    int *nstored = fsdp_alloc(nparams, sizeof *nstored, "moments", err);
    int rc = nstored ? FSDP_OK : FSDP_ENOMEM;

    for (int t = 0; !rc && t < ckpt_ntensors(m->ckpt); t++) {
        const struct ckpt_tensor *stored = ckpt_tensor_at(m->ckpt, t);
        const bool moment = stored->kind == FSDP_SLICE_OPTIM && is_moment(stored->tensor.name);
        const int param = moment ? param_of_state(m, stored->tensor.name) : -1;
        nstored[param < 0 ? 0 : param] += param >= 0;
    }
    for (int k = 0; k < layout->nflats; k++)
        for (int i = 0; layout->flats[k].trainable && i < layout->flats[k].ntensors && !rc; i++)
            rc = decide_param(m, &layout->flats[k], i, nstored, nupdates, err);
    fsdp_free(nstored);
    return rc;
}

/* torch's optimizers number their parameters, and a file of torch.save does not say which number is
 * which: without its moments it would be another run. */
static int refuse_numbers(const struct train_moments *m, struct fsdp_err *err)
{
    for (int t = 0; ckpt_format(m->ckpt) == CKPT_TORCH && t < ckpt_ntensors(m->ckpt); t++) {
        const char *stored = ckpt_tensor_at(m->ckpt, t)->stored, *at = strstr(stored, "state.");
        if (at && at[6] >= '0' && at[6] <= '9' && fsdp_text_ends(stored, ".exp_avg"))
            return fsdp_err_set(
                err, FSDP_EUNSUPPORTED,
                "%s: its optimizer's state is by numbers ('%s'), which do not say of which "
                "parameter: save that of torch.distributed.checkpoint.state_dict.get_state_dict, "
                "or "
                "take the weights alone: set model.path to it and checkpoint.resume to never",
                ckpt_path(m->ckpt), stored);
    }
    return FSDP_OK;
}

int train_moments_decide(struct train_moments *m, int64_t nupdates, struct fsdp_err *err)
{
    const struct fsdp_state_layout *layout = fsdp_state_layout(m->parts->fsdp);

    FSDP_TRY(refuse_numbers(m, err));
    FSDP_TRY(check_optimizer(m, err));
    FSDP_TRY(decide_params(m, nupdates, err));
    bool wanted = false;
    for (int k = 0; k < layout->nslots; k++)
        wanted |= !strcmp(layout->slots[k].name, "ema");
    m->average_fresh = wanted && !holds_kind(m->ckpt, ".ema");
    m->average_left = !wanted && holds_kind(m->ckpt, ".ema");
    return fsdp_param_set_since(m->parts->fsdp, m->since, err);
}

/* ---- loading --------------------------------------------------------------------------------- */

struct visiting {
    struct train_moments *m;
    fsdp_slice_f *fn;
    void *fn_ctx;
};

static int write_zeros(const struct fsdp_slice *slice, const struct fsdp_slice_io *io,
                       struct fsdp_err *err)
{
    static const char zeros[65536];
    uint64_t nbytes =
        fsdp_box_nelem(&slice->box, slice->tensor.ndim) * fsdp_dtype_nbytes(slice->tensor.dtype);

    for (uint64_t pos = 0; pos < nbytes; pos += sizeof zeros) {
        uint64_t left = nbytes - pos;
        FSDP_TRY(io->write(io->ctx, pos, zeros, left < sizeof zeros ? left : sizeof zeros, err));
    }
    return FSDP_OK;
}

static int visit(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                 const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    const struct visiting *v = ctx;
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = v->fn(v->fn_ctx, kind, slice, io, &why);

    if (rc == FSDP_ENOTFOUND && kind == FSDP_SLICE_OPTIM) {
        int param = param_of_state(v->m, slice->tensor.name);
        bool fresh = param >= 0 && v->m->fresh[param];
        /* An average that is not written begins as the weights (fsdp_state_loaded). */
        if (fsdp_text_ends(slice->tensor.name, ".ema") && (fresh || v->m->average_fresh))
            return FSDP_OK;
        if (fresh)
            return write_zeros(slice, io, err);
    }
    return rc ? fsdp_err_pass(err, rc, &why) : FSDP_OK;
}

int train_moments_slices(void *ctx, fsdp_slice_f *fn, void *fn_ctx, struct fsdp_err *err)
{
    struct visiting v = {ctx, fn, fn_ctx};
    return fsdp_state_each(v.m->parts->fsdp, visit, &v, err);
}

void train_moments_report(const struct train_moments *m)
{
    if (m->nfresh)
        fsdp_log(FSDP_LOG_INFO,
                 "%d parameter%s without moments in %s start%s with fresh ones (such as %s)",
                 m->nfresh, m->nfresh == 1 ? "" : "s", ckpt_path(m->ckpt),
                 m->nfresh == 1 ? "s" : "", fsdp_param_tensor(m->parts->tree, m->first).name);
    if (m->average_fresh)
        fsdp_log(FSDP_LOG_INFO,
                 "%s holds no average of the weights: the average starts from its weights",
                 ckpt_path(m->ckpt));
    if (m->average_left)
        fsdp_log(FSDP_LOG_WARN,
                 "%s holds an average of the weights, and this run keeps none: set optim.ema_decay "
                 "to continue it",
                 ckpt_path(m->ckpt));
}

/* ---- saving ---------------------------------------------------------------------------------- */

json_t *train_moments_json(const struct fsdp *f, const struct fsdp_module_tree *tree)
{
    json_t *out = json_object();

    for (int p = 0; out && p < fsdp_param_count(tree); p++) {
        int64_t since = fsdp_param_since(f, p);
        if (since > 0 &&
            json_object_set_new(out, fsdp_param_tensor(tree, p).name, json_integer(since))) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}
