/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other names for tensors, by rules. A rule is "FROM -> TO": FROM is a glob of the whole name in
 * which * stands for one or more characters but dots and ** for any, or /an extended regular
 * expression/; in TO, $1, $2, ... are what the first, second, ... star or group stood for.
 */
#ifndef CKPT_MAP_H
#define CKPT_MAP_H

#include <regex.h>

#include "fsdp/base.h"

/* What a ready rule does besides the name: rows of attention heads in another order. */
enum ckpt_map_rows { CKPT_MAP_ROWS_SAME, CKPT_MAP_ROWS_QUERY, CKPT_MAP_ROWS_KEY };

struct ckpt_map_rule {
    regex_t regex;
    char *to;
    enum ckpt_map_rows rows;
};

enum ckpt_map_action {
    CKPT_MAP_RENAME,
    CKPT_MAP_FUSE_QKV,
    CKPT_MAP_SPLIT_QKV,
    CKPT_MAP_FUSE_GATE_UP,
    CKPT_MAP_SPLIT_GATE_UP,
    CKPT_MAP_MEGATRON,
    CKPT_MAP_TITAN, /* rules, and what no rule of a name can say (map_titan.c) */
};

#define CKPT_MAP_TO_HF "torchtitan-to-hf"
#define CKPT_MAP_TO_TITAN "hf-to-torchtitan"

struct ckpt_map {
    enum ckpt_map_action action;
    bool to_pairs; /* rows go from halves to pairs, else the other way */
    int nrules;
    struct ckpt_map_rule *rules;
};

/* `text`: the name of a ready map, or the path of a file with a rule a line (# begins a comment).
 */
int ckpt_map_create(struct ckpt_map *out, const char *text, struct fsdp_err *err);
void ckpt_map_destroy(struct ckpt_map *map);
/* The name under the first rule that fits, a copy of it if none does; freed with fsdp_free. *rows
 * may be NULL. */
char *ckpt_map_name(const struct ckpt_map *map, const char *name, enum ckpt_map_rows *rows,
                    struct fsdp_err *err);
/* Bytes of an optimizer's name before its parameter: "state.", which may lie in containers
 * ("optimizer.state."); 0: it is no such name. */
size_t ckpt_map_state_nbytes(const char *name);
/* The name of a tensor: of an optimizer's, the parameter's part is mapped, and what is around it
 * stays. Freed with fsdp_free. */
char *ckpt_map_tensor_name(const struct ckpt_map *map, const char *name, bool optim,
                           enum ckpt_map_rows *rows, struct fsdp_err *err);

#endif
