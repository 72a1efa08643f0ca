/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "pickle_write.h"

void ckpt_pkw_op(struct ckpt_pkw *w, enum ckpt_pickle_op op)
{
    const char byte = (char)op;
    ckpt_text_add(&w->text, &byte, 1);
}

/* An opcode and its argument, little-endian. */
static void add_le(struct ckpt_pkw *w, enum ckpt_pickle_op op, uint64_t value, int nbytes)
{
    char raw[9] = {(char)op};
    for (int i = 0; i < nbytes; i++)
        raw[1 + i] = (char)(value >> (8 * i) & 0xff);
    ckpt_text_add(&w->text, raw, (size_t)nbytes + 1);
}

void ckpt_pkw_begin(struct ckpt_pkw *w)
{
    memset(w, 0, sizeof *w);
    add_le(w, PK_PROTO, 2, 1);
}

int ckpt_pkw_end(char **out, size_t *out_nbytes, struct ckpt_pkw *w, struct fsdp_err *err)
{
    ckpt_pkw_op(w, PK_STOP);
    fsdp_free(w->kept);
    w->kept = NULL;
    if (w->text.failed) {
        ckpt_text_free(&w->text);
        return fsdp_err_set(err, FSDP_ENOMEM, "pickle: out of memory");
    }
    *out = w->text.data;
    *out_nbytes = w->text.nbytes;
    return FSDP_OK;
}

/* Two's complement in 8 bytes, or in 9 of which the last is zero. */
static void add_long(struct ckpt_pkw *w, uint64_t value, int nbytes)
{
    char raw[9] = {0};
    for (int i = 0; i < 8; i++)
        raw[i] = (char)(value >> (8 * i) & 0xff);
    add_le(w, PK_LONG1, (uint64_t)nbytes, 1);
    ckpt_text_add(&w->text, raw, (size_t)nbytes);
}

void ckpt_pkw_int(struct ckpt_pkw *w, int64_t value)
{
    if (value >= 0 && value < 256)
        add_le(w, PK_BININT1, (uint64_t)value, 1);
    else if (value >= 0 && value < 65536)
        add_le(w, PK_BININT2, (uint64_t)value, 2);
    else if (value >= INT32_MIN && value <= INT32_MAX)
        add_le(w, PK_BININT, (uint64_t)value, 4);
    else
        add_long(w, (uint64_t)value, 8);
}

void ckpt_pkw_u64(struct ckpt_pkw *w, uint64_t value)
{
    if (value <= INT64_MAX) {
        ckpt_pkw_int(w, (int64_t)value);
        return;
    }
    add_long(w, value, 9); /* a zero byte on top keeps it positive */
}

static void add_float(struct ckpt_pkw *w, double value)
{
    uint64_t bits;
    char raw[9] = {PK_BINFLOAT};
    memcpy(&bits, &value, sizeof bits);
    for (int i = 0; i < 8; i++)
        raw[1 + i] = (char)(bits >> (56 - 8 * i) & 0xff);
    ckpt_text_add(&w->text, raw, sizeof raw);
}

void ckpt_pkw_text(struct ckpt_pkw *w, const char *text)
{
    size_t nbytes = strlen(text);
    add_le(w, PK_BINUNICODE, nbytes, 4);
    ckpt_text_add(&w->text, text, nbytes);
}

static size_t slot_of(const struct ckpt_pkw *w, const char *key)
{
    size_t at = (size_t)(fsdp_hash(FSDP_HASH_SEED, &key, sizeof key) % w->max_kept);
    while (w->kept[at].key && w->kept[at].key != key)
        at = (at + 1) % w->max_kept;
    return at;
}

static bool kept_grow(struct ckpt_pkw *w)
{
    struct ckpt_pkw old = *w;
    w->max_kept = old.max_kept ? 2 * old.max_kept : 256;
    w->kept = fsdp_alloc(w->max_kept, sizeof *w->kept, "pickle", NULL);
    if (!w->kept) {
        w->text.failed = true;
        *w = (struct ckpt_pkw){.text = w->text, .kept = old.kept, .max_kept = old.max_kept};
        return false;
    }
    for (size_t i = 0; i < old.max_kept; i++)
        if (old.kept[i].key)
            w->kept[slot_of(w, old.kept[i].key)] = old.kept[i];
    fsdp_free(old.kept);
    return true;
}

/* Recalls what was kept under the key; false if nothing was. */
static bool recall(struct ckpt_pkw *w, const char *key)
{
    if (!w->max_kept)
        return false;
    const struct ckpt_pkw_kept *kept = &w->kept[slot_of(w, key)];
    if (!kept->key)
        return false;
    if (kept->at < 256)
        add_le(w, PK_BINGET, kept->at, 1);
    else
        add_le(w, PK_LONG_BINGET, kept->at, 4);
    return true;
}

/* Keeps what is on top of the unpickler's stack. */
static void keep(struct ckpt_pkw *w, const char *key)
{
    if (2 * w->nkept >= w->max_kept && !kept_grow(w))
        return;
    uint32_t at = (uint32_t)w->nkept++;
    w->kept[slot_of(w, key)] = (struct ckpt_pkw_kept){key, at};
    if (at < 256)
        add_le(w, PK_BINPUT, at, 1);
    else
        add_le(w, PK_LONG_BINPUT, at, 4);
}

void ckpt_pkw_kept_text(struct ckpt_pkw *w, const char *text)
{
    if (recall(w, text))
        return;
    ckpt_pkw_text(w, text);
    keep(w, text);
}

void ckpt_pkw_global(struct ckpt_pkw *w, const char *global)
{
    if (recall(w, global))
        return;
    ckpt_pkw_op(w, PK_GLOBAL);
    ckpt_text_add(&w->text, global, strlen(global));
    keep(w, global);
}

void ckpt_pkw_dims(struct ckpt_pkw *w, const uint64_t *dims, int ndim)
{
    ckpt_pkw_op(w, PK_MARK);
    for (int d = 0; d < ndim; d++)
        ckpt_pkw_u64(w, dims[d]);
    ckpt_pkw_op(w, PK_TUPLE);
}

void ckpt_pkw_size(struct ckpt_pkw *w, const uint64_t *dims, int ndim)
{
    static const char size[] = "torch\nSize\n";
    ckpt_pkw_global(w, size);
    ckpt_pkw_dims(w, dims, ndim);
    ckpt_pkw_op(w, PK_TUPLE1);
    ckpt_pkw_op(w, PK_REDUCE);
}

void ckpt_pkw_instance(struct ckpt_pkw *w, const char *global)
{
    ckpt_pkw_global(w, global);
    ckpt_pkw_op(w, PK_EMPTY_TUPLE);
    ckpt_pkw_op(w, PK_NEWOBJ);
}

void ckpt_pkw_dict_begin(struct ckpt_pkw *w)
{
    ckpt_pkw_op(w, PK_EMPTY_DICT);
    ckpt_pkw_op(w, PK_MARK);
}

void ckpt_pkw_dict_next(struct ckpt_pkw *w, size_t index)
{
    enum { BATCH = 1000 };
    if (index && index % BATCH == 0) {
        ckpt_pkw_op(w, PK_SETITEMS);
        ckpt_pkw_op(w, PK_MARK);
    }
}

void ckpt_pkw_dict_end(struct ckpt_pkw *w)
{
    ckpt_pkw_op(w, PK_SETITEMS);
}

void ckpt_pkw_list_begin(struct ckpt_pkw *w)
{
    ckpt_pkw_op(w, PK_EMPTY_LIST);
    ckpt_pkw_op(w, PK_MARK);
}

void ckpt_pkw_list_end(struct ckpt_pkw *w)
{
    ckpt_pkw_op(w, PK_APPENDS);
}

void ckpt_pkw_object_begin(struct ckpt_pkw *w, const char *global)
{
    ckpt_pkw_instance(w, global);
    ckpt_pkw_dict_begin(w);
}

void ckpt_pkw_object_end(struct ckpt_pkw *w)
{
    ckpt_pkw_dict_end(w);
    ckpt_pkw_op(w, PK_BUILD);
}

void ckpt_pkw_json(struct ckpt_pkw *w, const json_t *value)
{
    const char *key;
    json_t *item;
    switch (json_typeof(value)) {
    case JSON_NULL:
        ckpt_pkw_op(w, PK_NONE);
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        ckpt_pkw_op(w, json_is_true(value) ? PK_NEWTRUE : PK_NEWFALSE);
        break;
    case JSON_INTEGER:
        ckpt_pkw_int(w, json_integer_value(value));
        break;
    case JSON_REAL:
        add_float(w, json_real_value(value));
        break;
    case JSON_STRING:
        ckpt_pkw_text(w, json_string_value(value));
        break;
    case JSON_ARRAY:
        ckpt_pkw_list_begin(w);
        for (size_t i = 0; i < json_array_size(value); i++)
            ckpt_pkw_json(w, json_array_get(value, i));
        ckpt_pkw_list_end(w);
        break;
    case JSON_OBJECT:
        ckpt_pkw_dict_begin(w);
        json_object_foreach((json_t *)(uintptr_t)value, key, item)
        {
            ckpt_pkw_text(w, key);
            ckpt_pkw_json(w, item);
        }
        ckpt_pkw_dict_end(w);
        break;
    }
}
