/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading JSON as it comes: no tree, and no copy of a text that has no escapes. For headers and
 * manifests, which hold a hundred thousand small objects.
 *
 *     ckpt_json_read_begin(&r, data, nbytes, path, ": its header", err);
 *     if (ckpt_json_read_object(&r))
 *         while (ckpt_json_read_key(&r, &key))
 *             ... read exactly one value ...
 *     rc = ckpt_json_read_end(&r, rc);
 *
 * Every value is proved, also one that is skipped: RFC 8259's grammar, UTF-8, no duplicate keys, no
 * \u0000, integers of 63 bits and a sign, at most CKPT_JSON_DEPTH levels. Each ckpt_json_read_*
 * that returns bool consumes one value: true if it is what was asked for, false if it is another
 * (passed over) or the text is broken. Broken stays broken: r->rc and err are set, all later reads
 * are false, loops end.
 */
#ifndef CKPT_JSON_READ_H
#define CKPT_JSON_READ_H

#include <string.h>

#include "fsdp/base.h"

enum { CKPT_JSON_DEPTH = 2048 };

/* Not followed by a 0 byte, and holds none. Lives as long as the reader and its input. */
struct ckpt_json_text {
    const char *data;
    size_t nbytes;
};

struct ckpt_json_key;
struct ckpt_json_reader {
    int rc;
    const char *begin, *at, *end;
    const char *path, *part; /* name the text in errors */
    struct fsdp_err *err;
    char *decoded, *decoded_end; /* texts that have escapes; allocated at the first */
    struct ckpt_json_key *keys;  /* of all open objects */
    size_t nkeys, max_keys;
    bool fresh; /* the innermost container has no element yet */
    /* The caller may set it after read_begin: a text may hold 0 bytes, which are else refused. */
    bool takes_nul;
    int depth;
    struct {
        size_t first_key;
        bool is_object;
    } levels[CKPT_JSON_DEPTH];
};

/* Less than 4 GiB. Errors begin with "'<path>'<part> is not valid JSON". */
void ckpt_json_read_begin(struct ckpt_json_reader *r, const char *data, size_t nbytes,
                          const char *path, const char *part, struct fsdp_err *err);
/* Frees. Returns rc, what the caller found; where that is FSDP_OK, proves that nothing but white
 * space is left and returns r->rc. */
int ckpt_json_read_end(struct ckpt_json_reader *r, int rc);

/* True: inside of it; read_key then gives each element, and leaves it when it returns false. */
bool ckpt_json_read_object(struct ckpt_json_reader *r);
bool ckpt_json_read_key(struct ckpt_json_reader *r, struct ckpt_json_text *key);

/* The same of an array: read_item says whether there is one more element, which is read next. */
bool ckpt_json_read_array(struct ckpt_json_reader *r);
bool ckpt_json_read_item(struct ckpt_json_reader *r);

bool ckpt_json_read_text(struct ckpt_json_reader *r, struct ckpt_json_text *out);
/* An integer that is not negative. */
bool ckpt_json_read_u64(struct ckpt_json_reader *r, uint64_t *out);
/* An array of at most FSDP_MAX_DIMS of those. False with *ndim above that: it has more; with any
 * other *ndim: it is no such array. */
bool ckpt_json_read_dims(struct ckpt_json_reader *r, uint64_t *dims, int *ndim);
/* A text of exactly ndigits lower-case hexadecimal digits. */
bool ckpt_json_read_hex(struct ckpt_json_reader *r, uint64_t *out, int ndigits);
/* Any value; `raw` (or NULL) gets its bytes. */
void ckpt_json_read_skip(struct ckpt_json_reader *r, struct ckpt_json_text *raw);

/* Inline: with a literal it is a few comparisons. */
static inline bool ckpt_json_text_is(const struct ckpt_json_text *text, const char *other)
{
    size_t nbytes = strlen(other);
    return nbytes == text->nbytes && !memcmp(text->data, other, nbytes);
}

#endif
