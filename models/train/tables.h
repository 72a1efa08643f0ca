/* SPDX-License-Identifier: Apache-2.0 */
/* tables.h: what a run says of itself before its first step. */
#ifndef TRAIN_TABLES_H
#define TRAIN_TABLES_H

#include "train/save/life.h"
#include "train/report/report.h"
#include "train/setup/setup.h"

/* Where a run begins. */
struct train_begun {
    int64_t step;
    const char *resumed;   /* the checkpoint, "" for none */
    const char *converted; /* and what of it was converted, as text */
    struct train_life *life;
};

void train_show_environment(struct report *report, const struct train_parts *p,
                            const struct fsdp_node_map *nodes);
void train_show_mesh(struct report *report, const struct train_parts *p);
void train_show_training(struct report *report, const struct train_parts *p,
                         const struct train_begun *begun);
/* ", masters split" or such, of an enum fsdp_master; "" where they are whole. Static. */
const char *train_tables_masters(int master);
/* ", products in float8_e4m3" or such; "" where none are in 8 bits. Gives out. */
const char *train_products(char *out, size_t nbytes, const struct train_parts *p);
void train_show_memory(struct report *report, struct fsdp *fsdp);
/* Warns of settings that the user may not have meant. */
void train_warn_of_settings(struct report *report, const struct train_parts *p);

#endif
