/* SPDX-License-Identifier: Apache-2.0 */
/* view.h: runs, live in a terminal. */
#ifndef TOP_VIEW_H
#define TOP_VIEW_H

#include "show.h"

struct top_view_opts {
    int nfolders;
    char *const *folders;
    double interval_s;
    enum top_sort sort;
    bool color, utf8;
};

/* Until a key or signal ends it; *ended_by: the signal, 0: none. Blocks. */
int top_view(const struct top_view_opts *opts, int *ended_by, struct fsdp_err *err);

/* Unix time. */
double top_now(void);

#endif
