/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "publish.h"
#include "train_trace.h"

struct train_trace {
    struct fsdp *fsdp;
    struct report *report;
    const char *path;
    FILE *file;         /* rank 0's */
    int64_t first, end; /* steps done before the first and after the last recorded one */
    int nranks;
    bool written;
    struct fsdp_trace_share *shares; /* [nranks] */
};

/* An earlier trace is replaced, another's file is not; a terminal or a pipe may be written to. */
static int check_place(const struct config *config, struct fsdp_err *err)
{
    struct stat st;
    char *place = NULL;

    if (stat(config->log.trace, &st) || !S_ISREG(st.st_mode))
        return FSDP_OK;
    const int rc = publish_place(&place, config->log.trace, FSDP_TRACE_MARK, config->log.metrics,
                                 "log.trace", err);
    fsdp_free(place);
    return rc;
}

/* A file that cannot be written should be known now. */
static int open_here(struct train_trace *t, const struct config *config, int rank,
                     struct fsdp_err *err)
{
    char where[CONFIG_TEXT + 128];

    t->shares = fsdp_alloc((size_t)t->nranks, sizeof *t->shares, "trace", err);
    if (!t->shares)
        return FSDP_ENOMEM;
    if (rank == 0)
        FSDP_TRY(check_place(config, err));
    if (rank == 0 && !(t->file = fopen(t->path, "we")))
        return fsdp_err_sys(err, errno, "%s: cannot write %s",
                            config_where(where, sizeof where, config, "log.trace"), t->path);
    return fsdp_trace_open(t->fsdp, (int)config->log.trace_steps, err);
}

int train_trace_open(struct train_trace **out, const struct config *config, int64_t step,
                     struct fsdp *fsdp, struct fsdp_oob *oob, struct report *report,
                     struct fsdp_err *err)
{
    struct train_trace *t = fsdp_alloc(1, sizeof *t, "trace", err);
    int rc = FSDP_ENOMEM;

    if (t) {
        *t = (struct train_trace){
            .fsdp = fsdp,
            .report = report,
            .path = config->log.trace,
            .nranks = oob->size,
            .first = step + config->log.trace_begin - 1,
            .end = step + config->log.trace_begin - 1 + config->log.trace_steps,
        };
        rc = open_here(t, config, oob->rank, err);
    }
    rc = fsdp_oob_agree(oob, rc, err);
    if (rc) {
        train_trace_close(t);
        return rc;
    }
    *out = t;
    return FSDP_OK;
}

void train_trace_close(struct train_trace *t)
{
    if (!t)
        return;
    if (t->file)
        fclose(t->file);
    fsdp_free(t->shares);
    fsdp_free(t);
}

void train_trace_next(struct train_trace *t, int64_t step)
{
    if (t && step >= t->first && step < t->end)
        fsdp_trace_next(t->fsdp, step + 1);
}

bool train_trace_due(const struct train_trace *t, int64_t step, bool at_end)
{
    return t && !t->written && (at_end || step >= t->end);
}

int train_trace_write(struct train_trace *t, struct fsdp_err *err)
{
    t->written = true;
    FSDP_TRY(fsdp_trace_finish(t->fsdp, t->file, t->shares, err));
    if (!t->file)
        return FSDP_OK;
    bool bad = ferror(t->file);
    errno = 0;
    bad |= fclose(t->file) != 0;
    t->file = NULL;
    /* A full disk for the trace is no reason to lose the training. */
    if (bad)
        fsdp_log(FSDP_LOG_WARN, "%s: the trace could not be written: %s", t->path,
                 errno ? strerror(errno) : "write error");
    else if (!t->shares[0].nsteps)
        fsdp_log(FSDP_LOG_WARN,
                 "%s: the run ended before step %" PRId64
                 ", the first to be traced (log.trace_begin)",
                 t->path, t->first + 1);
    else
        report_line(t->report, "trace of steps %" PRId64 " to %" PRId64 " written to %s",
                    t->first + 1, t->first + t->shares[0].nsteps, t->path);
    return FSDP_OK;
}

static double share_of(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

/* "compute 12.30, gather 0.40" milliseconds a step, of lanes that were used. */
static void lanes_text(char *out, size_t out_nbytes, const struct fsdp_trace_share *s)
{
    const char *name;
    size_t len = 0;

    out[0] = 0;
    for (int lane = 0; (name = fsdp_trace_lane(lane)) && len < out_nbytes; lane++)
        if (s->lane_s[lane] > 0)
            len += (size_t)snprintf(out + len, out_nbytes - len, "%s%s %.2f", len ? ", " : "", name,
                                    s->lane_s[lane] / s->nsteps * 1e3);
}

void train_trace_report(const struct train_trace *t)
{
    enum { MAX_ROWS = 16 };
    double least = 1, most = 0;

    if (!t || !t->written || !t->shares[0].nsteps)
        return;
    report_title(t->report, "trace, a step in milliseconds");
    for (int r = 0; r < t->nranks; r++) {
        const struct fsdp_trace_share *s = &t->shares[r];
        double exposed = share_of(s->exposed_s, s->comm_s);
        char what[32], lanes[200];
        least = exposed < least ? exposed : least;
        most = exposed > most ? exposed : most;
        if (r >= MAX_ROWS)
            continue;
        snprintf(what, sizeof what, "rank %d", r);
        lanes_text(lanes, sizeof lanes, s);
        report_row(t->report, what, "%.2f in all; %s; communication %.2f, %.0f%% of it exposed",
                   s->wall_s / s->nsteps * 1e3, lanes, s->comm_s / s->nsteps * 1e3, 100 * exposed);
    }
    if (t->nranks > MAX_ROWS)
        report_row(t->report, "all ranks", "%.0f%% to %.0f%% exposed", 100 * least, 100 * most);
}
