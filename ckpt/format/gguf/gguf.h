/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf.h: a GGUF file for the tensors of a model under Hugging Face's names.
 *
 *     | header: magic, counts, key-values, list of tensors | constants | tensor | tensor | ...
 *
 * Tensors begin at multiples of CKPT_GGUF_ALIGN. Constants are tensors that follow from the
 * configuration (factors of rotary positions); their bytes are part of the header's text here.
 */
#ifndef CKPT_GGUF_H
#define CKPT_GGUF_H

#include "source/source.h"
#include "type.h"

enum { CKPT_GGUF_ALIGN = 32 };

enum ckpt_gguf_order {
    CKPT_GGUF_SAME,
    CKPT_GGUF_PAIRS,  /* of each `group` rows: row j and row group/2 + j become neighbours */
    CKPT_GGUF_COLUMNS /* the input's columns are the rows */
};

/* Rows of an input. */
struct ckpt_gguf_part {
    int input;
    uint64_t src_row, nrows;
    enum ckpt_gguf_order order;
    uint32_t group, skip; /* skip: rows left out between two */
    bool in_slab;         /* the input has one dimension more: its element `slab` */
    uint64_t slab;
};

struct ckpt_gguf_tensor {
    char *name;
    const struct ckpt_gguf_type *type;
    int ndim;
    uint64_t dims[FSDP_MAX_DIMS]; /* rows first, as everywhere but in the file */
    float offset;                 /* added to every element */
    int first_part, nparts;
    uint64_t pos, nbytes; /* in the file */
};

struct ckpt_gguf {
    int ntensors, nparts;
    struct ckpt_gguf_tensor *tensors;
    struct ckpt_gguf_part *parts;
    /* The embedding and a head that config.json ties to it, though both are stored: inputs, whose
     * values the caller compares. -1: there are none. */
    int embedding, tied_head;
    char *header; /* all before the first tensor's bytes */
    size_t header_nbytes;
    uint64_t nbytes; /* of the file */
};

/* What the file is made of. */
struct ckpt_gguf_args {
    const struct ckpt *ckpt; /* config.json and the tokenizer lie next to it */
    const char *type;        /* a struct ckpt_gguf_file_type by name; NULL: as the weights are */
    const struct fsdp_tensor *inputs;
    int ninputs;
    const char *const *aliases; /* other names of inputs, for tied weights */
    int naliases;
};
/* FSDP_ENOTFOUND: no config.json, tokenizer or tensor. FSDP_EUNSUPPORTED: what GGUF cannot carry,
 * by its name in config.json or tokenizer.json. */
int ckpt_gguf_plan(struct ckpt_gguf *out, const struct ckpt_gguf_args *args, struct fsdp_err *err);
void ckpt_gguf_free(struct ckpt_gguf *gguf);

#endif
