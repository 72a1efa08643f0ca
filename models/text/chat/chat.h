/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chat.h: renders chat messages with a model's own template, which is written in Jinja. The
 * language is what transformers gives to templates: jinja2's immutable sandbox, trim_blocks and
 * lstrip_blocks, loop controls, its own tojson, raise_exception, strftime_now and {% generation %}.
 *
 * Steps, nesting depth, output and memory are bounded. Errors name the template's file and line.
 */
#ifndef CHAT_H
#define CHAT_H

#include <jansson.h>

#include "fsdp/base.h"

struct chat_template;

/* Compiles nbytes of source, which is not kept. `name` is the file that errors name. The caller
 * destroys *out. FSDP_EINVAL: not valid Jinja or UTF-8; FSDP_EUNSUPPORTED: a construct of Jinja
 * that is not known here. */
int chat_template_create(struct chat_template **out, const char *source, size_t nbytes,
                         const char *name, struct fsdp_err *err);
void chat_template_destroy(struct chat_template *t);

/* Opens the template of a model folder: chat_template.jinja, else chat_template in
 * tokenizer_config.json. The latter is one text, or a list of named ones; `tool_use` is rendered if
 * there are tools, else `default`. bos_token, eos_token and the other named special tokens of
 * tokenizer_config.json are variables of the template. *out is NULL where the folder has no
 * template. Errors as above, and those of reading files. */
int chat_template_open(struct chat_template **out, const char *folder, struct fsdp_err *err);
/* A hash of the files that chat_template_open reads. */
int chat_template_hash(uint64_t *out, const char *folder, struct fsdp_err *err);

/* The file that errors name. Pure. */
const char *chat_template_name(const struct chat_template *t);
/* Does the template, or its variant for tools, use a variable of this name? Pure. */
bool chat_template_names(const struct chat_template *t, const char *name);

/* Bytes of the text inside one {% generation %}. */
struct chat_span {
    size_t first, end;
};

/* at[nbytes] is followed by a 0 byte. */
struct chat_text {
    char *at;
    size_t nbytes;
    struct chat_span *spans;
    size_t nspans;
    bool marks_generation; /* the template has {% generation %} */
};

/* What the template sees; borrowed. messages: a list of objects, not empty. tools: a list, or NULL.
 * extra: an object of more variables, or NULL; they override the special tokens. */
struct chat_input {
    const json_t *messages, *tools, *extra;
    bool add_generation_prompt;
    /* For strftime_now: YYYY-MM-DD, or YYYY-MM-DDThh:mm:ss; NULL: now, in local time. */
    const char *date;
};

/* Is it a date of this form? Pure. */
bool chat_date_is_valid(const char *date);

/* Renders. The caller frees *out with chat_text_free. Thread safe: the template does not change.
 * FSDP_EINVAL: the template refuses the messages (raise_exception) or fails on them, or a bound is
 * exceeded. */
int chat_render(struct chat_text *out, const struct chat_template *t, const struct chat_input *in,
                struct fsdp_err *err);
void chat_text_free(struct chat_text *text);

#endif
