/* SPDX-License-Identifier: Apache-2.0 */
/* An answer as a table of 80 columns. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "answer.h"
#include "plan/stock.h"
#include "text.h"

typedef char text[ANSWER_TEXT_NBYTES];

static void print_head(const struct answer *a, const struct question *q, FILE *to)
{
    text params, ranks, nodes, seq, tokens;

    fprintf(to, "%s of %s parameters on %s %s", a->family, answer_count(params, a->nparams),
            answer_whole(ranks, a->nranks), q->cluster->clock.device.name);
    if (a->nnodes > 1)
        fprintf(to, " (%s nodes of %d)", answer_whole(nodes, a->nnodes), a->node_nranks);
    fprintf(to, "\n%s, ", a->strategy);
    if (a->replicate_nranks > 1)
        fprintf(to, "%d x ", a->replicate_nranks);
    fprintf(to, "%d%s, %d units; gathered in %s, reduced in %s%s\n", a->shard_nranks,
            a->two_level ? " on two levels" : "", a->nunits, a->gathered, a->reduced,
            a->updates_on_host ? ", updated on the host" : "");
    fprintf(to, "%d row%s of %s tokens a micro-step, %d micro-step%s: %s tokens a step\n",
            a->micro_rows, a->micro_rows == 1 ? "" : "s", answer_whole(seq, (double)a->row_tokens),
            a->accumulation, a->accumulation == 1 ? "" : "s", answer_count(tokens, a->step_tokens));
}

/* As the run warns of it. */
static void print_padding(const struct answer *a, FILE *to)
{
    text rows, ranks;

    if (a->padding <= 0)
        return;
    fprintf(to, "%s row%s on %s ranks: %.1f %% of the computation is PADDING;\n",
            answer_whole(rows, (double)a->rows), a->rows == 1 ? "" : "s",
            answer_whole(ranks, a->nranks), 100 * a->padding);
    if (a->rows < a->nranks)
        fprintf(to, "%s of the ranks have no row; ",
                answer_whole(ranks, (double)(a->nranks - a->rows)));
    fprintf(to, "train.global_batch_size=%lld wastes nothing\n", (long long)a->better_rows);
}

static void print_rates(const struct answer *a, FILE *to)
{
    text step, low, high, all, one, tflops;
    const double band = a->band.share;

    fprintf(to, "%-12s %10s   %s to %s\n", "step", answer_seconds(step, a->step_s),
            answer_seconds(low, a->step_s * (1 - band)),
            answer_seconds(high, a->step_s * (1 + band)));
    fprintf(to, "%-12s %10s   %s a GPU\n", "tokens/s", answer_number(all, a->tokens_s),
            answer_number(one, a->tokens_s_gpu));
    if (a->mfu > 0)
        fprintf(to, "%-12s %8.1f %%   %s TFLOP/s a GPU\n", "MFU", 100 * a->mfu,
                answer_number(tflops, a->tflops_gpu));
    fprintf(to, "%-12s %8s %2.0f %%  %s\n\n", "error", "+-", 100 * band, a->band.basis);
}

static void print_part(const struct answer *a, const char *what, double seconds, FILE *to)
{
    text value;

    if (seconds > 0.0005 * a->step_s)
        fprintf(to, "  %-36s %10s %5.1f %%\n", what, answer_seconds(value, seconds),
                100 * seconds / a->step_s);
}

static void print_parts(const struct answer *a, FILE *to)
{
    const struct fsdp_schedule_times *t = &a->times;
    const double hidden = t->comm_s - t->exposed_s;
    double sum = t->memory_s + t->slowed_s + t->exposed_s;
    text value, n;

    fprintf(to, "where the step goes\n");
    print_part(a, "products", t->work_s[FSDP_WORK_PRODUCT], to);
    print_part(a, "attention", t->work_s[FSDP_WORK_ATTENTION], to);
    print_part(a, "pointwise", t->work_s[FSDP_WORK_BYTES], to);
    for (int kind = 0; kind < FSDP_WORK_NKINDS; kind++)
        sum += t->work_s[kind];
    print_part(a, "optimizer and copies on the device", t->memory_s, to);
    print_part(a, "slowed by hidden communication", t->slowed_s, to);
    print_part(a, "exposed communication", t->exposed_s, to);
    print_part(a,
               t->host_s > 0 ? "waiting for the host, slower ranks"
                             : "waiting for slower ranks, the rest",
               a->step_s - sum, to);
    if (t->again_s > 0)
        fprintf(to, "  of it activation checkpointing repeats %s\n",
                answer_seconds(value, t->again_s));
    if (t->host_s > 0)
        fprintf(to, "  next to this, updates on the host take %s\n",
                answer_seconds(value, t->host_s));
    if (hidden > 0)
        fprintf(to, "  behind it %s of communication are hidden\n", answer_seconds(value, hidden));
    if (t->ncollectives > 0)
        fprintf(to, "  %s collectives\n", answer_whole(n, t->ncollectives));
    putc('\n', to);
}

static void print_links(const struct answer *a, const struct question *q, FILE *to)
{
    static const char *const what[FSDP_NLINKS] = {
        "inside the node, of a GPU", "network cards of a node", "host to device, of a GPU",
        "device to host, of a GPU"};
    bool any = false;
    text rate, nbytes;

    for (int link = 0; link < FSDP_NLINKS; link++) {
        if (!(a->times.link_nbytes[link] > 0))
            continue;
        if (!any)
            fprintf(to, "links                                      GB a step    busy\n");
        any = true;
        fprintf(to, "  %-36s %12s %6.1f %% of %s GB/s\n", what[link],
                answer_number(nbytes, a->times.link_nbytes[link] * 1e-9),
                100 * a->times.link_s[link] / a->step_s,
                answer_whole(
                    rate, fsdp_link_capacity(&q->cluster->clock.net, (enum fsdp_link)link) * 1e-9));
    }
    if (any)
        putc('\n', to);
}

static const char *nbytes_text(char out[FSDP_NBYTES_TEXT], double nbytes)
{
    return fsdp_nbytes_text(out, nbytes > 0 ? (uint64_t)nbytes : 0);
}

static void print_row(const char *what, double nbytes, const char *after, FILE *to)
{
    char value[FSDP_NBYTES_TEXT];
    fprintf(to, "  %-46s %12s%s\n", what, nbytes_text(value, nbytes), after);
}

static void print_limit(const char *what, double nbytes, double limit, FILE *to)
{
    if (limit > 0)
        print_row(what, limit, nbytes > limit ? "  TOO LITTLE" : "  fits", to);
}

static void print_memory(const struct answer *a, FILE *to)
{
    const double all = a->device_nbytes + a->reserved_nbytes;

    fprintf(to, "memory of a GPU\n");
    for (int i = 0; i < a->nmemory; i++)
        if (!a->memory[i].host)
            print_row(a->memory[i].what, a->memory[i].nbytes, "", to);
    print_row("context and communicators", a->reserved_nbytes, "  assumed", to);
    print_row("in all", all, "", to);
    print_limit("there is", all, a->limit_nbytes, to);
    print_limit("fsdp.memory_limit, without the context", a->device_nbytes, a->plan_limit_nbytes,
                to);
    if (a->node_host_nbytes > 0) {
        fprintf(to, "memory of a node's host\n");
        for (int i = 0; i < a->nmemory; i++)
            if (a->memory[i].host && !a->memory[i].file)
                print_row(a->memory[i].what, a->memory[i].nbytes * a->node_nranks, "", to);
        print_limit("there is", a->node_host_nbytes, a->node_host_limit, to);
    }
    if (a->node_file_nbytes > 0) {
        fprintf(to, "disks of a node\n");
        print_row("files of offloaded state", a->node_file_nbytes, "", to);
        print_limit("there is", a->node_file_nbytes, a->node_file_limit, to);
    }
    putc('\n', to);
}

static void print_failures(const struct answer *a, FILE *to)
{
    const struct goodput *g = &a->goodput;
    text every, mtbf, held, best;

    fprintf(to, "  %-36s %10.1f %%", "goodput", 100 * g->share);
    if (isfinite(g->job_mtbf_s))
        fprintf(to, "   a failure every %s", answer_long(mtbf, g->job_mtbf_s));
    putc('\n', to);
    if (!isfinite(g->interval_s) || !(g->interval_s > 0))
        return;
    fprintf(to, "  %-36s %12s   each holds it for %s\n",
            a->saves ? "a checkpoint every" : "with a checkpoint every",
            answer_long(every, g->interval_s), answer_seconds(held, a->save_held_s));
    if (a->storage_is_assumed)
        fprintf(to, "  %-36s %9.0f GB/s   assumed\n", "storage of checkpoints",
                ANSWER_STORAGE * 1e-9);
    if (g->best_share > g->share + 0.001)
        fprintf(to, "  %-36s %12s   goodput %.1f %%\n", "best would be every",
                answer_long(best, g->best_interval_s), 100 * g->best_share);
}

static void print_end(const struct answer *a, const struct question *q, FILE *to)
{
    const struct goodput_bill *b = &a->bill;
    text tokens, time, hours, energy, money;

    if (!(a->tokens > 0))
        return;
    fprintf(to, "until %s tokens\n", answer_count(tokens, a->tokens));
    fprintf(to, "  %-36s %12s\n", "time",
            isfinite(b->seconds) ? answer_long(time, b->seconds) : "never");
    print_failures(a, to);
    if (!isfinite(b->seconds))
        return;
    fprintf(to, "  %-36s %12s\n", "GPU-hours", answer_whole(hours, b->gpu_hours));
    if (b->kwh > 0)
        fprintf(to, "  %-36s %12s\n", "energy, kWh", answer_whole(energy, b->kwh));
    if (b->money > 0)
        fprintf(to, "  %-36s %12s %s\n", "cost", answer_whole(money, b->money),
                q->cluster->currency);
    if (b->finish && q->now > 0) {
        struct tm tm;
        char date[40];
        strftime(date, sizeof date, "%Y-%m-%d %H:%M", localtime_r(&b->finish, &tm));
        fprintf(to, "  %-32s %16s   if it began now\n", "it ends", date);
    }
    putc('\n', to);
}

static void print_foreign(const struct answer *a, FILE *to)
{
    const struct answer_foreign *f = &a->foreign;
    const struct foreign_times *t = &f->times;
    const struct {
        const char *what;
        double seconds;
    } parts[] = {{"computing", t->compute_s},
                 {"exposed tensor parallelism", t->tensor_s},
                 {"exposed context parallelism", t->context_s},
                 {"exposed messages of the pipeline", t->pipe_s},
                 {"waiting for other stages", t->bubble_s},
                 {"exposed data parallelism", t->data_s},
                 {"slowed by hidden communication", t->slowed_s}};
    text step, low, high, tokens;

    if (!f->priced)
        return;
    fprintf(to, "foreign: as Megatron-LM could do it; libfsdp does not\ntensor %d, pipeline %d",
            f->ask.tp, f->ask.pp);
    if (f->ask.vpp > 1)
        fprintf(to, " in %d chunks a stage", f->ask.vpp);
    fprintf(to, ", context %d, data %d (optimizer sharded); %d micro-step%s\n", f->ask.cp,
            f->data_nranks, f->accumulation, f->accumulation == 1 ? "" : "s");
    fprintf(to, "  %-36s %10s   %s to %s\n", "step", answer_seconds(step, t->step_s),
            answer_seconds(low, t->step_s * (1 - f->band.share)),
            answer_seconds(high, t->step_s * (1 + f->band.share)));
    fprintf(to, "  %-36s %10s   %.2f times the plan's\n", "tokens/s of a GPU",
            answer_whole(tokens, f->tokens_s_gpu), f->tokens_s_gpu / a->tokens_s_gpu);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].seconds > 0.0005 * t->step_s)
            fprintf(to, "  %-36s %10s %5.1f %%\n", parts[i].what,
                    answer_seconds(step, parts[i].seconds), 100 * parts[i].seconds / t->step_s);
    fprintf(to, "  error +- %.0f %%  %s\n  its memory is not planned\n\n", 100 * f->band.share,
            f->band.basis);
}

static void print_facts(const struct question *q, FILE *to)
{
    enum { MAX_FACTS = 64 };
    struct stock_fact facts[MAX_FACTS];
    const int n = cluster_facts(facts, MAX_FACTS, q->cluster);

    fprintf(to, "numbers of the clock\n");
    for (int i = 0; i < n && i < MAX_FACTS; i++)
        fprintf(to, "  %-44s %10.4g %-8s %s: %s\n", facts[i].what, facts[i].value, facts[i].unit,
                stock_origin_name(facts[i].origin), facts[i].source);
    putc('\n', to);
}

void answer_print(const struct answer *a, const struct question *q, bool verbose, FILE *to)
{
    print_head(a, q, to);
    print_padding(a, to);
    putc('\n', to);
    print_rates(a, to);
    print_parts(a, to);
    print_links(a, q, to);
    print_memory(a, to);
    print_end(a, q, to);
    print_foreign(a, to);
    if (verbose)
        print_facts(q, to);
}
