/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "pickle.h"

bool ckpt_pk_is_text(const struct ckpt_pk *value, const char *text)
{
    return value && value->type == CKPT_PK_T_TEXT && value->nitems == strlen(text) &&
           !memcmp(value->u.text, text, value->nitems);
}

bool ckpt_pk_u64(uint64_t *out, const struct ckpt_pk *value)
{
    if (!value || value->type != CKPT_PK_T_INT || value->u.integer < 0)
        return false;
    *out = (uint64_t)value->u.integer;
    return true;
}

const struct ckpt_pk_global *ckpt_pk_global_of(const struct ckpt_pk *value)
{
    if (value && value->type == CKPT_PK_T_OBJECT)
        return value->u.shape->global;
    if (value && value->type == CKPT_PK_T_CALL)
        value = value->u.items[0];
    return value && value->type == CKPT_PK_T_GLOBAL ? value->u.global : NULL;
}

bool ckpt_pk_is_call(const struct ckpt_pk *value, enum ckpt_pk_role role)
{
    return value && (value->type == CKPT_PK_T_CALL || value->type == CKPT_PK_T_OBJECT) &&
           ckpt_pk_global_of(value)->role == role;
}

bool ckpt_pk_is_list(const struct ckpt_pk *value)
{
    return value && (value->type == CKPT_PK_T_LIST || value->type == CKPT_PK_T_TUPLE);
}

const struct ckpt_pk *ckpt_pk_state(const struct ckpt_pk *value)
{
    return value && value->type == CKPT_PK_T_CALL ? value->u.items[2] : NULL;
}

static const struct ckpt_pk *object_get(const struct ckpt_pk *object, const char *key)
{
    for (uint32_t i = object->u.shape->nkeys; i > 0; i--)
        if (ckpt_pk_is_text(object->u.shape->keys[i - 1], key))
            return ckpt_pk_values(object)[i - 1];
    return NULL;
}

const struct ckpt_pk *ckpt_pk_get(const struct ckpt_pk *value, const char *key)
{
    if (value && value->type == CKPT_PK_T_OBJECT)
        return object_get(value, key);
    if (value && value->type == CKPT_PK_T_CALL)
        value = value->u.items[2];
    if (!value || value->type != CKPT_PK_T_DICT)
        return NULL;
    for (size_t i = value->nitems; i >= 2; i -= 2)
        if (ckpt_pk_is_text(value->u.items[i - 2], key))
            return value->u.items[i - 1];
    return NULL;
}

const struct ckpt_pk *ckpt_pk_item(const struct ckpt_pk *value, size_t i)
{
    if (value && value->type == CKPT_PK_T_CALL)
        value = value->u.items[1];
    return ckpt_pk_is_list(value) && i < value->nitems ? value->u.items[i] : NULL;
}

bool ckpt_pk_dims(uint64_t *dims, int *ndim, const struct ckpt_pk *value)
{
    if (!ckpt_pk_is_list(value) || value->nitems > FSDP_MAX_DIMS)
        return false;
    *ndim = (int)value->nitems;
    for (int d = 0; d < *ndim; d++)
        if (!ckpt_pk_u64(&dims[d], value->u.items[d]))
            return false;
    return true;
}
