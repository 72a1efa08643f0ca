/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stock.h: clocks of GPUs and networks that nobody has measured here: peaks by data sheets, shares
 * of them fitted to published runs, the rest assumed. Every number says which it is. Pure.
 */
#ifndef PLAN_STOCK_H
#define PLAN_STOCK_H

#include "fsdp/clock.h"

enum stock_origin {
    STOCK_SHEET,    /* a maker's data sheet */
    STOCK_MEASURED, /* published measurements of this very thing */
    STOCK_FITTED,   /* to published training runs */
    STOCK_ASSUMED,
    STOCK_GIVEN /* by the user */
};
const char *stock_origin_name(enum stock_origin origin);

/* A number of a clock, and where it is from. */
struct stock_fact {
    const char *what;
    double value; /* in the unit that `unit` names */
    const char *unit, *source;
    enum stock_origin origin;
    const char *key; /* of a cluster.yaml, which gives another */
};

/* Clock of a GPU (or "cpu") and a network by words: "h100", "400Gbx8" (8 cards of 400 Gbit/s a
 * node; "ib" or "roce" may stand before), "none" for one node. FSDP_ENOTFOUND lists the known
 * words.
 */
int stock_device(struct fsdp_device_clock *out, const char *word, struct fsdp_err *err);
/* node_nranks ranks on each node. The rest is that of the device's generation. */
int stock_network(struct fsdp_net_clock *out, const char *device_word, const char *net_word,
                  int node_nranks, struct fsdp_err *err);
/* The word of the device that a driver calls so; NULL: not known. */
const char *stock_word_of(const char *model);
/* What fsdp_device_describe calls it: "cpu", or an architecture such as "sm_90". Static. */
const char *stock_target(const char *device_word);
/* Is no published run on such a device known? */
bool stock_is_assumed(const char *device_word);
/* The numbers behind them, for --help, docs and JSON. Returns their count, writes at most max. */
int stock_facts(struct stock_fact *out, int max, const char *device_word);

#endif
