/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "dcp_names.h"
#include "layout/tensor_name.h"

enum { MAX_DEPTH = 24 }; /* of a path: a longer one is not used */

/* The first bytes of a stored name, up to and including a dot. */
struct prefix {
    const char *text;
    size_t nbytes;
    bool is_optim;  /* of a candidate: it is an optimizer */
    bool has_inner; /* of a folder of optimizers: it has a container `model` in it */
};

struct prefixes {
    struct prefix *items; /* sorted, each once */
    size_t count, max;
};

struct settling {
    struct ckpt_dcp_name *names;
    size_t count;
    struct prefixes optims;  /* containers that hold a `state` */
    struct prefixes parents; /* the containers around those that are optimizers */
    const char **params;     /* sorted: what parameters may be called */
    size_t nparams;
    struct fsdp_err *err;
};

/* ---- paths ----------------------------------------------------------------------------------- */

static bool starts_with(const struct ckpt_pk *value, const char *text)
{
    size_t len = strlen(text);
    return value && value->type == CKPT_PK_T_TEXT && value->nitems >= len &&
           !memcmp(value->u.text, text, len);
}

/* Bytes of an element in the stored name; 0: it is neither a text nor an integer. */
static size_t element_text(const char **out, char digits[24], const struct ckpt_pk *item)
{
    *out = item->type == CKPT_PK_T_TEXT ? item->u.text : digits;
    if (item->type == CKPT_PK_T_TEXT)
        return item->nitems;
    return item->type == CKPT_PK_T_INT
               ? (size_t)snprintf(digits, 24, "%lld", (long long)item->u.integer)
               : 0;
}

/* Do the path's elements, joined with dots, make the name? */
static bool spells(const struct ckpt_pk *path, const char *stored)
{
    size_t left = strlen(stored);
    if (!path->nitems || path->nitems > MAX_DEPTH)
        return false;
    for (size_t i = 0; i < path->nitems; i++) {
        const char *text;
        char digits[24];
        const struct ckpt_pk *item = ckpt_pk_item(path, i);
        size_t nbytes = element_text(&text, digits, item);
        if ((item->type != CKPT_PK_T_TEXT && !nbytes) || nbytes > left ||
            memcmp(stored, text, nbytes))
            return false;
        stored += nbytes;
        left -= nbytes;
        if (i + 1 < path->nitems && (!left-- || *stored++ != '.'))
            return false;
    }
    return !left;
}

/* Bytes of the stored name that path elements before `at` take, dots included. */
static size_t before(const struct ckpt_pk *path, size_t at)
{
    size_t nbytes = 0;
    for (size_t i = 0; i < at; i++) {
        const char *text;
        char digits[24];
        nbytes += element_text(&text, digits, ckpt_pk_item(path, i)) + 1;
    }
    return nbytes;
}

/* Where the last element of the path begins; 0 without a path. */
static size_t last_begin(const struct ckpt_dcp_name *name)
{
    return name->path ? before(name->path, name->path->nitems - 1) : 0;
}

/* ---- sets of prefixes ------------------------------------------------------------------------ */

static int compare_prefixes(const void *a, const void *b)
{
    const struct prefix *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->nbytes < y->nbytes ? x->nbytes : y->nbytes);
    return order ? order : x->nbytes < y->nbytes ? -1 : x->nbytes > y->nbytes;
}

static int prefix_add(struct prefixes *set, const char *text, size_t nbytes, struct fsdp_err *err)
{
    const struct prefix item = {.text = text, .nbytes = nbytes};
    if (set->count && !compare_prefixes(&set->items[set->count - 1], &item))
        return FSDP_OK;
    struct prefix *items = fsdp_alloc_grow(set->items, set->count, &set->max, sizeof *items,
                                           "containers of tensors", err);
    if (!items)
        return FSDP_ENOMEM;
    set->items = items;
    set->items[set->count++] = item;
    return FSDP_OK;
}

static void prefixes_sort(struct prefixes *set)
{
    size_t kept = 0;
    if (set->count)
        qsort(set->items, set->count, sizeof *set->items, compare_prefixes);
    for (size_t i = 0; i < set->count; i++)
        if (!kept || compare_prefixes(&set->items[kept - 1], &set->items[i]))
            set->items[kept++] = set->items[i];
    set->count = kept;
}

static struct prefix *prefix_find(const struct prefixes *set, const char *text, size_t nbytes)
{
    const struct prefix key = {.text = text, .nbytes = nbytes};
    return set->count ? bsearch(&key, set->items, set->count, sizeof *set->items, compare_prefixes)
                      : NULL;
}

/* ---- optimizers ------------------------------------------------------------------------------ */

/* `state.<parameter>.<leaf>` in a stored name. */
struct state {
    size_t begin; /* of "state." */
    bool is_key;  /* `state`, or "state." with what follows, begins an element of the path */
    bool named;   /* the key of its container begins with `optim` */
};

static bool state_at(struct state *out, const struct ckpt_dcp_name *name, size_t begin)
{
    const char *text = name->stored + begin;
    out->begin = begin;
    return !strncmp(text, "state.", 6) && strchr(text + 6, '.');
}

/* The i-th possible place of an optimizer's state in a name: the elements of its path, then the
 * dots in the last element. False behind the last. */
static bool state_next(struct state *out, size_t *at, const struct ckpt_dcp_name *name)
{
    const struct ckpt_pk *path = name->path;
    size_t nitems = path ? path->nitems : 1;
    for (; *at < nitems; ++*at) {
        const struct ckpt_pk *item = path ? ckpt_pk_item(path, *at) : NULL;
        bool last = *at + 1 == nitems;
        if (item && !(last ? starts_with(item, "state.") : ckpt_pk_is_text(item, "state")))
            continue;
        *out = (struct state){.is_key = item != NULL};
        out->named = item && *at && starts_with(ckpt_pk_item(path, *at - 1), "optim");
        if (state_at(out, name, item ? before(path, *at) : 0)) {
            ++*at;
            return true;
        }
    }
    if (*at == nitems) {
        const char *inner = strstr(name->stored + last_begin(name), ".state.");
        ++*at;
        *out = (struct state){.begin = 0};
        return inner && state_at(out, name, (size_t)(inner + 1 - name->stored));
    }
    return false;
}

static const char *leaf_of(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Every tensor under its stored name, and without each of its outer containers. */
static int params_list(struct settling *s)
{
    size_t most = 0;
    for (size_t i = 0; i < s->count; i++)
        most += s->names[i].path ? s->names[i].path->nitems : 1;
    if (!(s->params = fsdp_alloc(most, sizeof *s->params, "parameter names", s->err)))
        return FSDP_ENOMEM;
    for (size_t i = 0; i < s->count; i++) {
        const struct ckpt_dcp_name *name = &s->names[i];
        for (size_t k = 0; name->is_tensor && k < (name->path ? name->path->nitems : 1); k++)
            s->params[s->nparams++] = name->stored + (k ? before(name->path, k) : 0);
    }
    if (s->nparams)
        qsort(s->params, s->nparams, sizeof *s->params, compare_texts);
    return FSDP_OK;
}

struct text {
    const char *data;
    size_t nbytes;
};

static int compare_param(const void *a, const void *b)
{
    const struct text *key = a;
    const char *param = *(const char *const *)b;
    int order = strncmp(key->data, param, key->nbytes);
    return order ? order : param[key->nbytes] ? -1 : 0;
}

/* Is the tensor what an optimizer keeps for a parameter of this checkpoint? Of a parameter that has
 * no name, only a number, where the path says `state`. */
static bool shows_optim(const struct settling *s, const struct ckpt_dcp_name *name,
                        const struct state *state)
{
    const char *param = name->stored + state->begin + 6, *leaf = leaf_of(param);
    const struct text key = {param, (size_t)(leaf - param) - 1};
    if (!ckpt_tensor_name_is_moment(leaf))
        return false;
    if (state->is_key && strspn(param, "0123456789") == key.nbytes)
        return true;
    return s->nparams && bsearch(&key, s->params, s->nparams, sizeof *s->params, compare_param);
}

/* Marks the containers that have `param_groups`. */
static void groups_mark(struct settling *s, const struct ckpt_dcp_name *name)
{
    static const char groups[] = "param_groups";
    for (const char *p = strstr(name->stored, groups); p; p = strstr(p + 1, groups)) {
        char end = p[sizeof groups - 1];
        struct prefix *found =
            (p == name->stored || p[-1] == '.') && (!end || end == '.')
                ? prefix_find(&s->optims, name->stored, (size_t)(p - name->stored))
                : NULL;
        if (found)
            found->is_optim = true;
    }
}

static int optims_find(struct settling *s)
{
    struct state state;
    for (size_t i = 0; i < s->count; i++)
        for (size_t at = 0; s->names[i].is_tensor && state_next(&state, &at, &s->names[i]);)
            FSDP_TRY(prefix_add(&s->optims, s->names[i].stored, state.begin, s->err));
    prefixes_sort(&s->optims);
    if (!s->optims.count)
        return FSDP_OK;
    FSDP_TRY(params_list(s));
    for (size_t i = 0; i < s->count; i++) {
        const struct ckpt_dcp_name *name = &s->names[i];
        groups_mark(s, name);
        for (size_t at = 0; name->is_tensor && state_next(&state, &at, name);) {
            struct prefix *found = prefix_find(&s->optims, name->stored, state.begin);
            found->is_optim |= state.named || shows_optim(s, name, &state);
        }
    }
    return FSDP_OK;
}

/* Bytes of the optimizer's container that a name lies in, in *nbytes; *is_state: in its `state`. */
static bool optim_of(size_t *nbytes, bool *is_state, const struct settling *s,
                     const struct ckpt_dcp_name *name)
{
    struct state state;
    for (size_t at = 0; state_next(&state, &at, name);) {
        const struct prefix *found = prefix_find(&s->optims, name->stored, state.begin);
        if (found && found->is_optim) {
            *nbytes = state.begin;
            return *is_state = true;
        }
    }
    *is_state = false;
    for (const char *dot = strchr(name->stored, '.'); dot; dot = strchr(dot + 1, '.')) {
        *nbytes = (size_t)(dot + 1 - name->stored);
        const struct prefix *found = prefix_find(&s->optims, name->stored, *nbytes);
        if (found && found->is_optim)
            return true;
    }
    *nbytes = 0;
    const struct prefix *root = prefix_find(&s->optims, name->stored, 0);
    return root && root->is_optim && !strncmp(name->stored, "param_groups", 12);
}

/* ---- the model ------------------------------------------------------------------------------- */

/* A script may call the container of model and optimizer `model`, too. */
static int parents_find(struct settling *s)
{
    for (size_t i = 0; i < s->optims.count; i++) {
        const struct prefix *optim = &s->optims.items[i];
        size_t nbytes = optim->nbytes ? optim->nbytes - 1 : 0;
        while (nbytes && optim->text[nbytes - 1] != '.')
            nbytes--;
        if (optim->is_optim && nbytes)
            FSDP_TRY(prefix_add(&s->parents, optim->text, nbytes, s->err));
    }
    prefixes_sort(&s->parents);
    return FSDP_OK;
}

static bool is_model(const struct ckpt_pk *path, size_t at)
{
    const struct ckpt_pk *item = ckpt_pk_item(path, at);

    if (at + 1 >= path->nitems)
        return false;
    return ckpt_pk_is_text(item, "model") || (!at && (ckpt_pk_is_text(item, "state_dict") ||
                                                      ckpt_pk_is_text(item, "model_state_dict")));
}

static void inner_mark(struct settling *s, const struct ckpt_dcp_name *name)
{
    struct prefix *outer = NULL;
    for (size_t k = 0; name->path && k + 1 < name->path->nitems; k++) {
        if (!is_model(name->path, k))
            continue;
        if (outer)
            outer->has_inner = true;
        outer = prefix_find(&s->parents, name->stored, before(name->path, k + 1));
    }
}

/* Elements up to the container `model`, itself included; 0: there is none. */
static size_t model_end(const struct settling *s, const struct ckpt_dcp_name *name)
{
    for (size_t k = 0; name->path && k + 1 < name->path->nitems; k++) {
        const struct prefix *outer =
            is_model(name->path, k)
                ? prefix_find(&s->parents, name->stored, before(name->path, k + 1))
                : NULL;
        if (is_model(name->path, k) && !(outer && outer->has_inner))
            return k + 1;
    }
    return 0;
}

/* How containers whose tensors are never weights begin. */
static const char *const others[] = {"optim",     "train_state",  "lr_scheduler",
                                     "scheduler", "dataloader",   "data_loader",
                                     "rng",       "random_state", "extra"};
enum { NOTHERS = sizeof others / sizeof others[0] };

bool ckpt_dcp_may_be_weights(const char *stored)
{
    for (int i = 0; i < NOTHERS; i++)
        if (!strncmp(stored, others[i], strlen(others[i])))
            return false;
    return !fsdp_text_ends(stored, "_extra_state");
}

static bool is_other(const struct ckpt_pk *path)
{
    for (int i = 0; path && i < NOTHERS; i++)
        for (size_t k = 0; k + 1 < path->nitems; k++)
            if (starts_with(ckpt_pk_item(path, k), others[i]))
                return true;
    return false;
}

/* ---- roles ----------------------------------------------------------------------------------- */

/* Sets *contained where a container `model` holds the tensor. */
static void role_settle(bool *contained, const struct settling *s, struct ckpt_dcp_name *name)
{
    size_t nbytes, end = model_end(s, name);
    bool is_state, in_optim = optim_of(&nbytes, &is_state, s, name);
    size_t model_nbytes = end ? before(name->path, end) : 0;

    name->role = CKPT_ROLE_OTHER;
    if (in_optim && is_state) {
        name->role = CKPT_ROLE_OPTIM;
        name->container_nbytes = (uint32_t)nbytes;
    } else if (in_optim && model_nbytes <= nbytes) {
        return; /* a setting of the optimizer */
    } else if (end && (end == 1 || !is_other(name->path))) {
        name->role = CKPT_ROLE_MODEL;
        name->container_nbytes = (uint32_t)model_nbytes;
        name->outer_nbytes = end > 1 ? (uint32_t)model_nbytes : 0;
        *contained = true;
    } else if (!is_other(name->path)) {
        name->role = CKPT_ROLE_MODEL;
    }
}

const char *ckpt_dcp_name_here(const struct ckpt_dcp_name *name)
{
    return name->stored + name->container_nbytes - name->outer_nbytes;
}

static int compare_here(const void *a, const void *b)
{
    const struct ckpt_dcp_name *x = *(struct ckpt_dcp_name *const *)a;
    const struct ckpt_dcp_name *y = *(struct ckpt_dcp_name *const *)b;
    return strcmp(ckpt_dcp_name_here(x), ckpt_dcp_name_here(y));
}

/* Where names collide, torch's own are kept: `all` keeps all of them. True if any did. */
static bool collisions_solve(struct ckpt_dcp_name **sorted, size_t count, bool all)
{
    bool any = false;
    qsort(sorted, count, sizeof *sorted, compare_here);
    for (size_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && !compare_here(&sorted[i], &sorted[end]); end++)
            any = true;
        for (size_t k = i; (all || end > i + 1) && k < end; k++)
            sorted[k]->outer_nbytes = sorted[k]->container_nbytes;
    }
    return any;
}

static int names_part(struct settling *s)
{
    struct ckpt_dcp_name **sorted =
        fsdp_alloc(s->count, sizeof(struct ckpt_dcp_name *), "tensor names", s->err);
    size_t count = 0;
    if (!sorted)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < s->count; i++)
        if (s->names[i].is_tensor)
            sorted[count++] = &s->names[i];
    /* A name that is kept whole may meet another one: then all are kept. */
    if (count && collisions_solve(sorted, count, false) && collisions_solve(sorted, count, false))
        collisions_solve(sorted, count, true);
    fsdp_free(sorted);
    return FSDP_OK;
}

int ckpt_dcp_names_settle(struct ckpt_dcp_name *names, size_t count, struct fsdp_err *err)
{
    struct settling s = {.names = names, .count = count, .err = err};
    bool contained = false;

    for (size_t i = 0; i < count; i++)
        if (names[i].path && !spells(names[i].path, names[i].stored))
            names[i].path = NULL;
    int rc = optims_find(&s);
    if (rc == FSDP_OK)
        rc = parents_find(&s);
    for (size_t i = 0; rc == FSDP_OK && s.parents.count && i < count; i++)
        inner_mark(&s, &names[i]);
    for (size_t i = 0; rc == FSDP_OK && i < count; i++)
        if (names[i].is_tensor)
            role_settle(&contained, &s, &names[i]);
    /* What lies next to a container `model` is no weight. */
    for (size_t i = 0; rc == FSDP_OK && contained && i < count; i++)
        if (names[i].role == CKPT_ROLE_MODEL && !names[i].container_nbytes)
            names[i].role = CKPT_ROLE_OTHER;
    if (rc == FSDP_OK)
        rc = names_part(&s);
    fsdp_free(s.optims.items);
    fsdp_free(s.parents.items);
    fsdp_free(s.params);
    return rc;
}

bool ckpt_dcp_is_flat_param(const char *stored)
{
    const char *last = leaf_of(stored);
    return !strcmp(last, "_flat_param") || !strcmp(last, "flat_param");
}
