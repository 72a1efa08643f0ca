/* SPDX-License-Identifier: Apache-2.0 */
/* html.h: what the report of a run (log.html) shows. */
#ifndef HTML_H
#define HTML_H

#include "curves/run.h"
#include "sink.h"

enum {
    HTML_MAX_ROWS = 8192, /* steps in memory; of more, of every four two stay */
    HTML_MAX_SAVED = 200, /* checkpoints in the table: the last ones */
    HTML_TEXT = 160,
};

/* What runs where. */
struct html_host {
    char cpu[HTML_TEXT], system[HTML_TEXT], kernel[HTML_TEXT];
    int ncpus;
    uint64_t memory_nbytes;
};

enum html_column { /* of the steps, after the fixed ones */
                   HTML_LOSS = RUN_NFIXED,
                   HTML_RATE,
                   HTML_NORM,
                   HTML_LR,
                   HTML_EVAL,
                   HTML_SKIPPED,
                   HTML_NCOLUMNS
};
/* Says in the page's head that it is such a report, which the next one may replace. */
#define HTML_MARK "<meta name=\"generator\" content=\"libfsdp\">"

extern const char *const html_keys[]; /* of these columns, in order */

struct html_saved {
    int64_t step;
    char path[HTML_TEXT];
    uint64_t nbytes;
    double seconds, wall;
    bool staged;
};

struct html {
    char *path;
    const struct sink_run *run;
    struct html_host host;
    struct run steps;
    struct metrics_row last; /* last.step 0: none yet */
    double eval_loss;        /* NAN: none yet */
    uint64_t nskipped;
    struct html_saved saved[HTML_MAX_SAVED]; /* a ring */
    uint64_t nsaved;
    bool has_ended;
    enum sink_end end;
    const char *why; /* of SINK_FAILED */
};

void html_host_read(struct html_host *host);
/* Writes the whole page. */
int html_page(FILE *to, const struct html *html, struct fsdp_err *err);

#endif
