/* SPDX-License-Identifier: Apache-2.0 */
#include "loop.h"

int generate_room(int *out, const struct generate_session *s, const struct generate_sequence *seq,
                  struct fsdp_err *err)
{
    const int most = s->max_seq_len;

    if (seq->nprompt < 1)
        return fsdp_err_set(err, FSDP_EINVAL, "the prompt has no tokens");
    if (seq->nprompt > most)
        return fsdp_err_set(err, FSDP_EINVAL, "prompt of %d tokens: the model has %d positions",
                            seq->nprompt, most);
    *out = seq->max_tokens < most - seq->nprompt ? seq->nprompt + seq->max_tokens : most;
    return FSDP_OK;
}

static int run(enum generate_finish *finish, struct generate_loop *loop,
               const struct generate_sequence *seq, struct generate_sampler *sampler, float *logits,
               struct fsdp_err *err)
{
    struct generate_session *s = loop->session;
    const double begin = fsdp_time_now();
    int32_t token;
    int room;

    FSDP_TRY(generate_room(&room, s, seq, err));
    FSDP_TRY(s->ops->decode(s->decoder, seq->prompt, seq->nprompt, false, logits, err));
    loop->nprompt += seq->nprompt;
    const double after = fsdp_time_now();
    loop->prompt_seconds += after - begin;
    *finish = seq->nprompt + seq->max_tokens > room ? GENERATE_POSITIONS : GENERATE_LENGTH;
    for (int done = seq->nprompt; done < room; done++) {
        if (loop->stop && *loop->stop) {
            *finish = GENERATE_INTERRUPTED;
            break;
        }
        if (done > seq->nprompt)
            FSDP_TRY(s->ops->decode(s->decoder, &token, 1, false, logits, err));
        FSDP_TRY(generate_sample(&token, sampler, logits, err));
        loop->ngenerated++;
        if (!loop->ignore_eos && generate_session_ends(s, token)) {
            *finish = GENERATE_STOP;
            break;
        }
        FSDP_TRY(loop->put(loop->ctx, token, err));
    }
    loop->seconds += fsdp_time_now() - after;
    return FSDP_OK;
}

int generate_loop(enum generate_finish *finish, struct generate_loop *loop,
                  const struct generate_sequence *seq, struct fsdp_err *err)
{
    const int vocab = loop->session->vocab;
    struct generate_sampler *sampler;

    FSDP_TRY(generate_sampler_create(&sampler, &loop->opts, vocab, err));
    float *logits = fsdp_alloc((size_t)vocab, sizeof *logits, "logits", err);
    generate_sampler_begin(sampler, seq->seed, seq->prompt, seq->nprompt);
    const int rc = logits ? run(finish, loop, seq, sampler, logits, err) : FSDP_ENOMEM;
    fsdp_free(logits);
    generate_sampler_destroy(sampler);
    return rc;
}
