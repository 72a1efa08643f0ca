/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "plan/answer/text.h"
#include "search.h"

typedef char text[ANSWER_TEXT_NBYTES];

/* Of a point's settings those that are not the run's own. */
static void print_settings(const struct search_point *p, FILE *to)
{
    int column = 0;

    for (int i = 0; i < p->change.nsettings; i++) {
        const int len = (int)strlen(p->change.setting[i]);
        if (column && column + len > 70) {
            fprintf(to, "\n");
            column = 0;
        }
        fprintf(to, "%s%s", column ? " " : "        ", p->change.setting[i]);
        column += len + 1;
    }
    putc('\n', to);
}

static void print_point(const struct search_point *p, int number, FILE *to)
{
    const struct answer *a = &p->answer;
    text step, rate, gpus, hours;
    char nbytes[FSDP_NBYTES_TEXT];

    fprintf(to, "%3d %c %6s GPUs  step %-9s  %9s tokens/s/GPU  MFU %4.1f %%  %10s", number,
            p->equal ? '=' : ' ', answer_whole(gpus, p->ngpus), answer_seconds(step, a->step_s),
            answer_whole(rate, a->tokens_s_gpu), 100 * a->mfu,
            fsdp_nbytes_text(nbytes, (uint64_t)(a->device_nbytes + a->reserved_nbytes)));
    if (a->tokens > 0)
        fprintf(to, "  %s GPU-h", answer_whole(hours, a->bill.gpu_hours));
    putc('\n', to);
    print_settings(p, to);
}

static void print_runs(const struct search_result *r, const struct question *q, const char *file,
                       FILE *to)
{
    const struct search_point *other = NULL;
    char a[CHANGE_MAX_SETTINGS * (CHANGE_TEXT + 1)], b[sizeof a], own[1024] = "";
    size_t at = 0;

    /* What stands on the command line belongs to the run; a best.yaml has it. */
    for (int i = 0; q->config && i < q->noverrides && at < sizeof own; i++)
        at += (size_t)snprintf(own + at, sizeof own - at, " '%s'", q->overrides[i]);

    for (int i = 1; i < r->nfront && !other; i++)
        if (r->front[i].equal && r->front[i].ngpus == r->front[0].ngpus)
            other = &r->front[i];
    if (!other)
        return;
    fprintf(to,
            "\nthese two would tell 1 and the first = apart:\n"
            "  fsdp-launch -n %d '%s'%s train.steps=20 log.metrics=1.jsonl \\\n    %s\n"
            "  fsdp-launch -n %d '%s'%s train.steps=20 log.metrics=2.jsonl \\\n    %s\n",
            r->front[0].ngpus, q->config ? q->config : file, own,
            change_text(a, sizeof a, &r->front[0].change), other->ngpus,
            q->config ? q->config : file, own, change_text(b, sizeof b, &other->change));
}

void search_print(const struct search_result *r, const struct question *q,
                  const struct search_opts *opts, const char *file, FILE *to)
{
    static const char *const goals[] = {"time for a token", "GPU-hours for a token",
                                        "number of GPUs"};
    char nbytes[FSDP_NBYTES_TEXT];

    fprintf(to, "%d plans, %d more ruled out by bounds, %d did not fit, %d cannot be%s\n",
            r->nplanned, r->npruned, r->nlarge, r->nrefused,
            r->complete ? "" : "; ended before all were planned");
    if (!r->nfront) {
        fprintf(to, "nothing fits. The least memory, %s of a GPU, has\n",
                fsdp_nbytes_text(nbytes, (uint64_t)(r->least.answer.device_nbytes +
                                                    r->least.answer.reserved_nbytes)));
        if (r->least.token_s > 0)
            print_settings(&r->least, to);
        return;
    }
    if (r->last_resort)
        fprintf(to,
                "nothing fits without changing numerics: gradient shards in bf16 or none, clipping "
                "by the\nnorm of the step before, or no masters (docs/memory.md)\n");
    fprintf(to,
            "best first, by %s; = within %d %% of it. The others are better in something else:\n"
            "memory, time, number of GPUs, or fewer changes of arithmetic\n\n",
            goals[opts->goal], ANSWER_EQUAL_PERCENT);
    for (int i = 0; i < r->nfront; i++)
        print_point(&r->front[i], i + 1, to);
    if (r->ncut)
        fprintf(to, "%d more points, worse by %s, are not listed\n", r->ncut, goals[opts->goal]);
    print_runs(r, q, file, to);
}
