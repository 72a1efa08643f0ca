/* SPDX-License-Identifier: Apache-2.0 */
/* Globals, and what is made by calling them. */
#include "globals.h"
#include "machine.h"

/* ---- globals and calls ----------------------------------------------------------------------- */

static const struct ckpt_pk_global opaque_global = {"", "", CKPT_PK_OPAQUE, CKPT_PK_NO_DTYPE};
static struct ckpt_pk opaque_class = {.type = CKPT_PK_T_GLOBAL, .u.global = &opaque_global};

/* What is made of something that is not known is not known either. */
static bool is_opaque(const struct ckpt_pk *value)
{
    const struct ckpt_pk_global *global = ckpt_pk_global_of(value);
    return global && global->role == CKPT_PK_OPAQUE;
}

int machine_push_global(struct machine *m, const char *module, size_t module_nbytes,
                        const char *name, size_t name_nbytes)
{
    const struct ckpt_pk_global *global =
        ckpt_pk_global_find(module, module_nbytes, name, name_nbytes);
    if (!global && m->opaque)
        global = &opaque_global;
    if (!global)
        return fsdp_err_set(m->err, FSDP_EUNSUPPORTED,
                            "%s names the global '%.*s.%.*s': it is not one that torch's "
                            "checkpoints need, and is refused",
                            m->what, (int)(module_nbytes < 200 ? module_nbytes : 200), module,
                            (int)(name_nbytes < 200 ? name_nbytes : 200), name);
    for (int i = 0; i < m->nglobals; i++)
        if (m->globals[i]->u.global == global)
            return machine_push(m, m->globals[i]);
    FSDP_TRY(machine_push_new(m, (struct ckpt_pk){.type = CKPT_PK_T_GLOBAL, .u.global = global}));
    if (m->nglobals < MACHINE_NGLOBALS)
        m->globals[m->nglobals++] = m->stack[m->nstack - 1];
    return FSDP_OK;
}

/* dict(other), dict([(key, value), ...]) */
static int fill_dict(struct machine *m, struct ckpt_pk *to, const struct ckpt_pk *from)
{
    if (from->type == CKPT_PK_T_DICT)
        return machine_add_items(m, to, from->u.items, from->nitems);
    for (size_t i = 0; ckpt_pk_is_list(from) && i < from->nitems; i++) {
        const struct ckpt_pk *pair = from->u.items[i];
        if (!ckpt_pk_is_list(pair) || pair->nitems != 2)
            return machine_bad(m, "it fills a dict with what is not pairs");
        FSDP_TRY(machine_add_items(m, to, pair->u.items, 2));
    }
    return FSDP_OK;
}

/* Calls of containers become containers: torch fills them with SETITEMS and APPENDS. That of
 * torch.Size, of which there are three a chunk, becomes its tuple. */
static int push_call(struct machine *m, struct ckpt_pk *callee, struct ckpt_pk *args)
{
    struct ckpt_pk call = {.type = CKPT_PK_T_CALL};
    struct ckpt_pk *parts[3] = {callee, args, NULL};

    if (is_opaque(callee))
        parts[0] = callee = &opaque_class;
    if (callee->type != CKPT_PK_T_GLOBAL || args->type != CKPT_PK_T_TUPLE)
        return machine_bad(m, "it calls what is not a known class or function");
    enum ckpt_pk_role role = callee->u.global->role;
    const struct ckpt_pk *first = args->nitems ? args->u.items[0] : NULL;
    if (role == CKPT_PK_DICT) {
        call.type = CKPT_PK_T_DICT;
        if (first && first->type != CKPT_PK_T_GLOBAL)
            FSDP_TRY(fill_dict(m, &call, first));
        return machine_push_new(m, call);
    }
    if (role == CKPT_PK_LIST) {
        call.type = CKPT_PK_T_LIST;
        if (first && ckpt_pk_is_list(first))
            FSDP_TRY(machine_add_items(m, &call, first->u.items, first->nitems));
        return machine_push_new(m, call);
    }
    if (role == CKPT_PK_SIZE && ckpt_pk_is_list(first))
        return machine_push(m, args->u.items[0]);
    struct ckpt_pk **at = NULL;
    if (m->share.recent && role == CKPT_PK_OTHER) {
        call.nitems = 3;
        call.u.items = parts;
        at = ckpt_pk_share_at(&m->share, &call);
        if (*at)
            return machine_push(m, *at);
        call = (struct ckpt_pk){.type = CKPT_PK_T_CALL, .shared = true};
    }
    FSDP_TRY(machine_add_items(m, &call, parts, 3));
    FSDP_TRY(machine_push_new(m, call));
    if (at)
        *at = m->stack[m->nstack - 1];
    return FSDP_OK;
}

int machine_reduce(struct machine *m)
{
    struct ckpt_pk *args = NULL, *callee = NULL;
    FSDP_TRY(machine_pop(&args, m));
    FSDP_TRY(machine_pop(&callee, m));
    return push_call(m, callee, args);
}

/* ---- objects --------------------------------------------------------------------------------- */

/* Classes of .metadata, of which there are several for each tensor. */
static bool is_compact(enum ckpt_pk_role role)
{
    return role == CKPT_PK_CHUNK || role == CKPT_PK_INDEX || role == CKPT_PK_STORAGE_INFO ||
           role == CKPT_PK_PROPERTIES || role == CKPT_PK_TENSOR_STORAGE;
}

/* A call and the dict that is its state become *object. What nothing else holds is given back: a
 * value that the memo does not recall has one holder, since nothing takes a dict or a call out of a
 * container. */
static int make_object(struct ckpt_pk **out, struct machine *m, struct ckpt_pk *call,
                       struct ckpt_pk *state)
{
    const struct ckpt_pk_shape *shape =
        ckpt_pk_share_shape(&m->share, &m->memory, ckpt_pk_global_of(call), state);
    if (!shape) {
        call->u.items[2] = state;
        return m->memory.exhausted ? machine_bad(m, "it asks for too much memory") : FSDP_OK;
    }
    struct ckpt_pk *object = machine_take(m, ckpt_pk_object_nbytes(shape->nkeys));
    if (!object)
        return FSDP_ENOMEM;
    *object = (struct ckpt_pk){.type = CKPT_PK_T_OBJECT, .nitems = shape->nkeys, .u.shape = shape};
    for (size_t i = 0; i < shape->nkeys; i++)
        ckpt_pk_values(object)[i] = state->u.items[2 * i + 1];
    ckpt_pk_give(&m->memory, call->u.items, call->nitems * sizeof *call->u.items);
    ckpt_pk_give(&m->memory, call, sizeof *call);
    *out = object;
    if (state->recalled)
        return FSDP_OK;
    if (state->nitems)
        ckpt_pk_give(&m->memory, state->u.items, machine_items_max(state) * sizeof *state->u.items);
    ckpt_pk_give(&m->memory, state, sizeof *state);
    return FSDP_OK;
}

/* Chunks and properties repeat; the other objects are a tensor's own. */
static struct ckpt_pk *share_object(struct machine *m, struct ckpt_pk *object)
{
    const enum ckpt_pk_role role = ckpt_pk_global_of(object)->role;
    if (!m->share.recent || object->recalled ||
        (role != CKPT_PK_CHUNK && role != CKPT_PK_PROPERTIES))
        return object;
    struct ckpt_pk **at = ckpt_pk_share_at(&m->share, object);
    if (!*at)
        return *at = object;
    if (object->type == CKPT_PK_T_OBJECT) {
        ckpt_pk_give(&m->memory, object, ckpt_pk_object_nbytes(object->nitems));
        return *at;
    }
    ckpt_pk_give(&m->memory, object->u.items, object->nitems * sizeof *object->u.items);
    ckpt_pk_give(&m->memory, object, sizeof *object);
    return *at;
}

static int push_state(struct machine *m, struct ckpt_pk *call, struct ckpt_pk *state)
{
    if (call->shared) { /* the equal ones have no state, or another */
        struct ckpt_pk own = {.type = CKPT_PK_T_CALL};
        FSDP_TRY(machine_add_items(m, &own, call->u.items, 3));
        own.u.items[2] = state;
        return machine_push_new(m, own);
    }
    call->u.items[2] = state;
    return machine_push(m, call);
}

int machine_build(struct machine *m)
{
    struct ckpt_pk *state = NULL, *object = NULL;
    FSDP_TRY(machine_pop(&state, m));
    FSDP_TRY(machine_pop(&object, m));
    if (object->type == CKPT_PK_T_DICT || object->type == CKPT_PK_T_LIST || is_opaque(object))
        return machine_push(m, object);
    if (object->type != CKPT_PK_T_CALL || object->u.items[2])
        return machine_bad(m, "it gives a state to what has none, or has one");
    if (!is_compact(ckpt_pk_global_of(object)->role))
        return push_state(m, object, state);
    if (object->recalled || object->u.items[1]->nitems || state->type != CKPT_PK_T_DICT)
        object->u.items[2] = state;
    else
        FSDP_TRY(make_object(&object, m, object, state));
    return machine_push(m, share_object(m, object));
}

int machine_stack_global(struct machine *m)
{
    struct ckpt_pk *name = NULL, *module = NULL;
    FSDP_TRY(machine_pop(&name, m));
    FSDP_TRY(machine_pop(&module, m));
    if (name->type != CKPT_PK_T_TEXT || module->type != CKPT_PK_T_TEXT)
        return machine_bad(m, "a global's name is not a text");
    return machine_push_global(m, module->u.text, module->nitems, name->u.text, name->nitems);
}
