/* SPDX-License-Identifier: Apache-2.0 */
/* The planned lists as text, and as a trace of modelled times. */
#include <string.h>

#include "core/units/overrides.h"
#include "trace.h"

static const char *const program_names[] = {"training step", "evaluation pass"};

/* Times of a program under a clock, and their sums. */
struct modelled {
    struct trace_time *times;
    struct fsdp_trace_share share;
    struct fsdp_schedule_times sums;
};

static int modelled_make(struct modelled *m, const struct fsdp *f, enum fsdp_program program,
                         const struct fsdp_clock *clock, struct fsdp_err *err)
{
    return trace_times(&m->times, &m->share, &m->sums, f, program, clock, err);
}

/* ---- the table ------------------------------------------------------------------------------- */

/* 1234567 as "1,234,567". */
static const char *grouped(char *out, size_t out_nbytes, uint64_t value)
{
    char digits[24];
    int len = snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
    size_t at = 0;

    for (int i = 0; i < len && at + 2 < out_nbytes; i++) {
        if (i && (len - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
    return out;
}

static int name_width(const struct fsdp *f, const struct sched *s)
{
    char name[200];
    size_t width = strlen("module");

    for (int i = 0; i < s->nops; i++) {
        size_t len = strlen(trace_op_name(name, sizeof name, f, &s->ops[i]));
        width = len > width ? len : width;
    }
    return (int)width;
}

static void print_waits(const struct sched *s, int i, FILE *to)
{
    for (int k = 0; k < s->ops[i].nwaits; k++) {
        int target = s->waits[s->ops[i].waits + k];
        fprintf(to, "%s%s%d", k ? ", " : "  ", target >= i ? "prev:" : "", target);
    }
    putc('\n', to);
}

static void print_op(const struct fsdp *f, const struct sched *s, int i, int width, FILE *to)
{
    const struct sched_op *op = &s->ops[i];
    bool visit = sched_is_visit(op->kind);
    bool runs = op->kind != SCHED_FREE && (visit || !sched_is_driven(op->kind));
    uint64_t nbytes = trace_op_nbytes(f, op);
    char name[200], micro[16] = "", slot[16] = "", bytes[32] = "", line[512];

    if (op->micro < f->plan.programs[FSDP_TRAIN].input.accumulation)
        snprintf(micro, sizeof micro, "%d", op->micro);
    if (op->slot >= 0)
        snprintf(slot, sizeof slot, "%d", op->slot);
    if (nbytes)
        grouped(bytes, sizeof bytes, nbytes);
    snprintf(line, sizeof line, "%5d  %-12s  %-12s  %-*s  %-9s  %5s  %4s  %14s", i,
             runs ? sched_lane_name(op->lane) : "-", sched_kind_name(op->kind), width,
             trace_op_name(name, sizeof name, f, op), visit ? fsdp_phase_name(op->phase) : "",
             micro, slot, bytes);
    size_t len = strlen(line);
    while (!op->nwaits && len && line[len - 1] == ' ')
        line[--len] = 0;
    fputs(line, to);
    print_waits(s, i, to);
}

static void print_program(const struct fsdp *f, enum fsdp_program program, FILE *to)
{
    const struct sched *s = &f->plan.programs[program].sched;
    int width = name_width(f, s);

    char params[32], grads[32];
    fprintf(to,
            "%s: %s, %d x %d (replicate x shard%s), %d units, %d operations, %d waits\n"
            "gathered in %s, reduced in %s\n\n",
            program_names[program], fsdp_strategy_name(f->opts.sharding_strategy),
            f->mesh->replicate_size, f->mesh->shard_size, f->mesh->inner_size ? ", two levels" : "",
            f->units.nunits, s->nops, s->nwaits,
            overrides_dtypes(params, sizeof params, &f->units, OVERRIDES_GATHERED),
            overrides_dtypes(grads, sizeof grads, &f->units, OVERRIDES_REDUCED));
    fprintf(to, "%5s  %-12s  %-12s  %-*s  %-9s  %5s  %4s  %14s  %s\n", "index", "lane", "operation",
            width, "module", "phase", "micro", "slot", "bytes", "waits for");
    for (int i = 0; i < s->nops; i++)
        print_op(f, s, i, width, to);
    putc('\n', to);
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

static void print_share(const struct modelled *m, FILE *to)
{
    fprintf(
        to,
        "modelled: %.3f ms; computes %.3f ms, communicates %.3f ms, of which %.0f%% exposed\n\n",
        m->sums.list_s * 1e3, m->share.compute_s * 1e3, m->share.comm_s * 1e3,
        percent(m->share.exposed_s, m->share.comm_s));
}

static void clock_text(char *out, size_t out_nbytes, const struct fsdp_clock *clock)
{
    const struct fsdp_device_clock *d = &clock->device;
    const struct fsdp_net_clock *n = &clock->net;

    snprintf(out, out_nbytes,
             "%s; products at %.0f%% of %g TFLOP/s, memory at %g GB/s; nodes of %d, %g GB/s inside "
             "a node, %g GB/s a network card",
             *d->name ? d->name : "a device", d->product_share * 100,
             (d->flops_16 > 0 ? d->flops_16 : d->flops_32) * 1e-12,
             d->memory_nbytes_per_s * d->memory_share * 1e-9, n->node_nranks,
             n->node_nbytes_per_s * 1e-9, n->nic_nbytes_per_s * 1e-9);
}

int fsdp_schedule_print(const struct fsdp *f, const struct fsdp_clock *clock, FILE *to,
                        struct fsdp_err *err)
{
    char text[400];

    FSDP_TRY(fsdp_clock_check(clock, err));
    for (int p = 0; p < 2; p++) {
        struct modelled m = {0};
        int rc = modelled_make(&m, f, (enum fsdp_program)p, clock, err);
        if (rc == FSDP_OK) {
            print_program(f, (enum fsdp_program)p, to);
            print_share(&m, to);
        }
        fsdp_free(m.times);
        FSDP_TRY(rc);
    }
    clock_text(text, sizeof text, clock);
    fprintf(
        to,
        "operations of one lane run in this order; lanes wait for each other only where it is "
        "said\n(prev:N is operation N of the pass before). bytes: what a rank receives, with ring "
        "algorithms.\nmodelled times: %s.\n",
        text);
    return FSDP_OK;
}

/* ---- the trace ------------------------------------------------------------------------------- */

int fsdp_schedule_trace(const struct fsdp *f, const struct fsdp_clock *clock, FILE *to,
                        struct fsdp_err *err)
{
    struct modelled m[2] = {{0}, {0}};
    struct fsdp_trace_share shares[2];
    struct trace_json json;
    char text[400];
    int rc = fsdp_clock_check(clock, err);

    for (int p = 0; p < 2 && rc == FSDP_OK; p++)
        rc = modelled_make(&m[p], f, (enum fsdp_program)p, clock, err);
    if (rc)
        goto out;
    clock_text(text, sizeof text, clock);
    trace_json_begin(&json, to, 0);
    json.clock = clock;
    for (int p = 0; p < 2; p++) {
        trace_json_process(&json, p, program_names[p]);
        trace_json_pass(&json, f, (enum fsdp_program)p, p, program_names[p], m[p].times);
        shares[p] = m[p].share;
    }
    trace_json_end(&json, shares, 2, text);
out:
    fsdp_free(m[0].times);
    fsdp_free(m[1].times);
    return rc;
}
