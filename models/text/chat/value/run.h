/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.h: memory, place and bounds of one compilation or one rendering. Nothing is freed before its
 * end: values are plain pointers into its blocks.
 */
#ifndef CHAT_RUN_H
#define CHAT_RUN_H

#include "value.h"

/* What is refused beyond. A rendering of 1 MB takes some 100 thousand steps. */
enum {
    CHAT_MAX_DEPTH = 500,
    CHAT_MAX_RANGE = 100000, /* elements of range(), as in jinja2's sandbox */
};
#ifdef FUZZING
#define CHAT_MAX_STEPS UINT64_C(1000000)
#define CHAT_MAX_OUT_NBYTES ((size_t)1 << 20)
#define CHAT_MAX_MEMORY_NBYTES ((size_t)64 << 20)
#else
#define CHAT_MAX_STEPS UINT64_C(100000000)
#define CHAT_MAX_OUT_NBYTES ((size_t)64 << 20)
#define CHAT_MAX_MEMORY_NBYTES ((size_t)1 << 30)
#endif

struct chat_block;

/* Room for objects, or for bytes of text; the latter lie apart so that the last text can grow. */
struct chat_pool {
    struct chat_block *blocks;
    char *at, *end;
};

struct chat_args;
struct chat_builtin;

/* What lower files need of higher ones, so that no files need each other in a circle. */
struct chat_hooks {
    int (*call)(struct chat_run *r, struct chat_val *out, const struct chat_val *callee,
                const struct chat_args *args);
    int (*attribute)(struct chat_run *r, struct chat_val *out, const struct chat_val *of,
                     const struct chat_str *name);
    int (*item)(struct chat_run *r, struct chat_val *out, const struct chat_val *of,
                const struct chat_val *key);
    const struct chat_builtin *(*filter)(const struct chat_str *name);
    const struct chat_builtin *(*test)(const struct chat_str *name);
};

struct chat_out;

struct chat_run {
    const char *name; /* of the template's file */
    int line;
    struct fsdp_err *err;
    struct chat_pool objects, bytes;
    size_t nbytes; /* held by both */
    uint64_t nsteps;
    int depth;
    const struct chat_hooks *hooks;
    /* Of a rendering: */
    struct chat_val *root; /* [nnames] variables of the template's outermost scope */
    struct chat_out *out;
    const char *date;
};

/* "name:line: text" as an error: FSDP_EINVAL, and FSDP_EUNSUPPORTED for what is not known here. */
int chat_fail(struct chat_run *r, const char *fmt, ...) FSDP_PRINTF(2, 3);
int chat_refuse(struct chat_run *r, const char *fmt, ...) FSDP_PRINTF(2, 3);

/* Counts work; a step is about a microsecond at most. */
int chat_step(struct chat_run *r, uint64_t nsteps);
/* Each enter that returned FSDP_OK has its leave. */
int chat_enter(struct chat_run *r);
void chat_leave(struct chat_run *r);

/* Zeroed memory. */
int chat_new(struct chat_run *r, void *out, size_t nelem, size_t elem_nbytes);
/* Uninitialized bytes. */
int chat_new_bytes(struct chat_run *r, char **out, size_t nbytes);
/* Makes the text that ends at `end` longer where it lies. False: there is no room. */
bool chat_extend_bytes(struct chat_run *r, const char *end, size_t more);
void chat_run_free(struct chat_run *r);

/* A growing text in the run's memory. Zeroed: empty. */
struct chat_buf {
    char *at;
    size_t nbytes, max;
};
int chat_buf_add(struct chat_run *r, struct chat_buf *b, const char *data, size_t nbytes);
int chat_buf_add_code(struct chat_run *r, struct chat_buf *b, uint32_t code);
int chat_buf_puts(struct chat_run *r, struct chat_buf *b, const char *text);
int chat_buf_pad(struct chat_run *r, struct chat_buf *b, size_t nchars);
int chat_buf_str(struct chat_run *r, struct chat_val *out, const struct chat_buf *b);

#endif
