/* SPDX-License-Identifier: Apache-2.0 */
/* Python values of a torch checkpoint as JSON: epochs, learning rates, parameter groups. */
#include <math.h>
#include <string.h>

#include "blob.h"
#include "dcp.h"
#include "dcp_names.h"

struct writer {
    size_t room; /* values that may still be made: shared ones are written out each time */
    int depth;
    const char *why; /* what cannot be written */
};

static json_t *value_json(struct writer *w, const struct ckpt_pk *value);

static json_t *refuse_value(struct writer *w, const char *why)
{
    if (!w->why)
        w->why = why;
    return NULL;
}

static json_t *list_json(struct writer *w, const struct ckpt_pk *value)
{
    json_t *out = json_array();
    for (size_t i = 0; i < value->nitems; i++) {
        json_t *item = value_json(w, value->u.items[i]);
        if (!item || json_array_append_new(out, item)) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

/* Keys that are no text become one, as Python's json does it. */
static bool key_text(char *out, size_t out_nbytes, const struct ckpt_pk *key)
{
    if (key->type == CKPT_PK_T_TEXT && key->nitems < out_nbytes &&
        !memchr(key->u.text, 0, key->nitems))
        snprintf(out, out_nbytes, "%.*s", (int)key->nitems, key->u.text);
    else if (key->type == CKPT_PK_T_INT)
        snprintf(out, out_nbytes, "%lld", (long long)key->u.integer);
    else if (key->type == CKPT_PK_T_BOOL)
        snprintf(out, out_nbytes, key->u.integer ? "true" : "false");
    else
        return false;
    return true;
}

static json_t *dict_json(struct writer *w, const struct ckpt_pk *value)
{
    json_t *out = json_object();
    for (size_t i = 0; i + 1 < value->nitems; i += 2) {
        char key[1024];
        json_t *item = value_json(w, value->u.items[i + 1]);
        if (item && !key_text(key, sizeof key, value->u.items[i])) {
            json_decref(item);
            item = refuse_value(w, "a dict's key is neither a short text nor an integer");
        }
        if (!item || json_object_set_new(out, key, item)) {
            json_decref(out);
            return refuse_value(w, "a dict's key is not in UTF-8");
        }
    }
    return out;
}

/* Bytes in hexadecimal. is_latin1: they are the code points of a text, as protocol 2 has them. */
static json_t *bytes_json(struct writer *w, const struct ckpt_pk *value, bool is_latin1)
{
    const unsigned char *p = (const unsigned char *)value->u.text, *end = p + value->nitems;
    if (value->nitems > w->room / 2)
        return refuse_value(w, "it holds too many bytes");
    w->room -= value->nitems;
    char *text = fsdp_alloc(2 * (size_t)value->nitems + 1, 1, "hex", NULL), *to = text;
    while (to && p < end) {
        unsigned byte = *p++;
        if (is_latin1 && byte >= 0x80) {
            if ((byte & 0xfc) != 0xc0 || p == end) {
                fsdp_free(text);
                return refuse_value(w, "its bytes are not a text in Latin-1");
            }
            byte = (byte & 3) << 6 | (*p++ & 0x3f);
        }
        to += snprintf(to, 3, "%02x", byte);
    }
    json_t *out = text ? json_pack("{s:s}", "bytes", text) : NULL;
    fsdp_free(text);
    return out;
}

static json_t *global_json(const struct ckpt_pk_global *global)
{
    char text[256];
    snprintf(text, sizeof text, "%s.%s", global->module, global->name);
    return json_string(text);
}

static json_t *call_json(struct writer *w, const struct ckpt_pk *value)
{
    const struct ckpt_pk *first = ckpt_pk_item(value, 0);
    switch (ckpt_pk_global_of(value)->role) {
    case CKPT_PK_SIZE:
        return first ? value_json(w, first) : json_array();
    case CKPT_PK_ENCODE:
        return first && first->type == CKPT_PK_T_TEXT
                   ? bytes_json(w, first, true)
                   : refuse_value(w, "bytes that are not a text");
    case CKPT_PK_PATH: {
        json_t *parts = list_json(w, value->u.items[1]);
        return parts ? json_pack("{s:o}", "path", parts) : NULL;
    }
    case CKPT_PK_BYTESIO:
        first = first ? first : ckpt_pk_item(value->u.items[2], 0);
        return first ? value_json(w, first) : refuse_value(w, "an empty BytesIO");
    case CKPT_PK_OTHER:
        return first ? value_json(w, first) : json_null();
    default:
        return refuse_value(
            w, "it holds a tensor or an object that JSON cannot hold (was it saved with "
               "flatten_state_dict=False?)");
    }
}

static json_t *scalar_json(struct writer *w, const struct ckpt_pk *value)
{
    switch (value->type) {
    case CKPT_PK_T_NONE:
        return json_null();
    case CKPT_PK_T_BOOL:
        return json_boolean((int)value->u.integer);
    case CKPT_PK_T_INT:
        return json_integer(value->u.integer);
    case CKPT_PK_T_FLOAT:
        if (isnan(value->u.real))
            return json_string("nan");
        if (isinf(value->u.real))
            return json_string(value->u.real > 0 ? "inf" : "-inf");
        return json_real(value->u.real);
    case CKPT_PK_T_TEXT: {
        if (memchr(value->u.text, 0, value->nitems))
            return refuse_value(w, "a text has a 0 byte");
        json_t *out = json_stringn(value->u.text, value->nitems);
        w->room -= value->nitems < w->room ? value->nitems : w->room;
        return out ? out : refuse_value(w, "a text is not in UTF-8");
    }
    case CKPT_PK_T_GLOBAL:
        return global_json(value->u.global);
    default:
        return refuse_value(w, "an integer has more than 64 bits");
    }
}

static json_t *value_json(struct writer *w, const struct ckpt_pk *value)
{
    json_t *out;
    if (!w->room || w->depth >= CKPT_MAX_VALUE_DEPTH)
        return refuse_value(w, "it is too large or too deep");
    w->room--;
    w->depth++;
    switch (value->type) {
    case CKPT_PK_T_LIST:
    case CKPT_PK_T_TUPLE:
        out = list_json(w, value);
        break;
    case CKPT_PK_T_DICT:
        out = dict_json(w, value);
        break;
    case CKPT_PK_T_BYTES:
        out = bytes_json(w, value, false);
        break;
    case CKPT_PK_T_CALL:
    case CKPT_PK_T_OBJECT:
        out = call_json(w, value);
        break;
    case CKPT_PK_T_PERSID:
        out = refuse_value(w, "it holds a tensor (was it saved with flatten_state_dict=False?)");
        break;
    default:
        out = scalar_json(w, value);
    }
    w->depth--;
    return out;
}

json_t *ckpt_dcp_json(const struct ckpt_pk *value, const char **why)
{
    struct writer w = {.room = CKPT_MAX_VALUE_NBYTES / 16};
    json_t *out = value_json(&w, value);
    *why = out ? NULL : w.why ? w.why : "out of memory";
    return out;
}

/* A merge that would need it fails and names it; --exclude leaves it out. */
static int keep_unread(struct ckpt *ckpt, const char *name, struct fsdp_err *err)
{
    char *why = fsdp_sprintf(err,
                             "'%s': '%s' is a Python value that holds tensors, which are not read; "
                             "save it with flatten_state_dict=True, and in lists instead of tuples",
                             ckpt->path, name);
    const int rc = why ? ckpt_unread_add(ckpt, name, name, CKPT_ROLE_MODEL, why, err) : FSDP_ENOMEM;

    fsdp_free(why);
    return rc;
}

int ckpt_dcp_value(json_t **out, struct ckpt *ckpt, const struct ckpt_blob_place *at,
                   const char *name, struct fsdp_err *err)
{
    const char *reason = NULL;
    struct fsdp_err why = FSDP_ERR_INIT;
    struct ckpt_pickle pickle = {0};
    bool has_tensors;
    char *data;
    int rc = ckpt_blob_value(&pickle, &data, &has_tensors, ckpt, at, name, &why);
    if (rc != FSDP_OK && rc != FSDP_EUNSUPPORTED)
        return fsdp_err_pass(err, rc, &why);
    *out = rc == FSDP_OK ? ckpt_dcp_json(pickle.root, &reason) : NULL;
    reason = rc ? why.text : reason;
    rc = FSDP_OK;
    if (!*out && has_tensors && ckpt_dcp_may_be_weights(name))
        rc = keep_unread(ckpt, name, err);
    else if (!*out)
        fsdp_log(FSDP_LOG_WARN, "'%s': the Python value '%s' is left out: %s", ckpt->path, name,
                 reason);
    if (!*out && rc == FSDP_OK && !(*out = json_pack("{s:s}", "unreadable", reason)))
        rc = fsdp_err_set(err, FSDP_ENOMEM, "'%s': out of memory", name);
    ckpt_pickle_free(&pickle);
    fsdp_free(data);
    return rc;
}
