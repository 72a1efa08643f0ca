/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slot is a sequence of the decoder and what is in it. Prompts are read one by one; then every
 * slot gets a token at a time, all in one reading of the weights, and one that ends gets the next
 * prompt.
 */
#include "loop.h"

struct slot {
    bool busy;
    struct generate_sequence seq;
    struct generate_sampler *sampler;
    int ntokens, room; /* tokens so far with the prompt, and at most */
};

struct slots {
    struct generate_loop *loop;
    struct slot *slot; /* [nslots] */
    int32_t *tokens;   /* [nslots] the last of each, -1: not busy */
    float *logits;     /* (nslots, V) */
    int nslots;
    bool dry; /* the source has no more */
};

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

static bool is_stopped(const struct slots *s)
{
    return s->loop->stop && *s->loop->stop;
}

static int end_slot(struct slots *s, int i, enum generate_finish finish, struct fsdp_err *err)
{
    s->slot[i].busy = false;
    s->tokens[i] = -1;
    return s->loop->source.done(s->loop->source.ctx, &s->slot[i].seq, finish, err);
}

/* One more token of a slot, from the logits after its last one. */
static int advance(struct slots *s, int i, const float *logits, struct fsdp_err *err)
{
    struct generate_loop *loop = s->loop;
    struct slot *slot = &s->slot[i];

    if (is_stopped(s))
        return end_slot(s, i, GENERATE_INTERRUPTED, err);
    if (slot->ntokens == slot->room)
        return end_slot(s, i, GENERATE_POSITIONS, err);
    FSDP_TRY(generate_sample(&s->tokens[i], slot->sampler, logits, err));
    loop->ngenerated++;
    slot->ntokens++;
    if (!loop->ignore_eos && generate_session_ends(loop->session, s->tokens[i]))
        return end_slot(s, i, GENERATE_STOP, err);
    FSDP_TRY(loop->source.put(loop->source.ctx, &slot->seq, s->tokens[i], err));
    if (slot->ntokens < slot->room)
        return FSDP_OK;
    const bool all = slot->ntokens == slot->seq.nprompt + slot->seq.max_tokens;
    return end_slot(s, i, all ? GENERATE_LENGTH : GENERATE_POSITIONS, err);
}

/* In pieces, between which it can be interrupted. */
static int read_prompt(struct slots *s, int i, struct fsdp_err *err)
{
    enum { PIECE = 256 };
    struct generate_session *session = s->loop->session;
    const struct generate_sequence *seq = &s->slot[i].seq;
    const double begin = fsdp_time_now();
    int done = session->ops->decoder_truncate(session->decoder, i, seq->ncommon);

    for (int n; done < seq->nprompt && !is_stopped(s); done += n) {
        n = seq->nprompt - done < PIECE ? seq->nprompt - done : PIECE;
        FSDP_TRY(session->ops->decode(session->decoder, i, seq->prompt + done, n, false, s->logits,
                                      err));
        s->loop->nprompt += n;
    }
    s->loop->prompt_seconds += fsdp_time_now() - begin;
    return FSDP_OK;
}

/* The source's next prompt, and the first token after it. */
static int begin_slot(struct slots *s, int i, struct fsdp_err *err)
{
    struct generate_loop *loop = s->loop;
    struct slot *slot = &s->slot[i];
    bool there = false;

    FSDP_TRY(loop->source.next(loop->source.ctx, &slot->seq, &there, err));
    if (!there) {
        s->dry = true;
        return FSDP_OK;
    }
    const struct generate_sequence *seq = &slot->seq;
    FSDP_TRY(generate_room(&slot->room, loop->session, seq, err));
    FSDP_TRY(read_prompt(s, i, err));
    generate_sampler_begin(slot->sampler, seq->seed, seq->prompt, seq->nprompt);
    slot->ntokens = seq->nprompt;
    slot->busy = true;
    return advance(s, i, s->logits, err);
}

static int fill_slots(struct slots *s, int *nbusy, struct fsdp_err *err)
{
    *nbusy = 0;
    for (int i = 0; i < s->nslots; i++) {
        while (!s->slot[i].busy && !s->dry && !is_stopped(s))
            FSDP_TRY(begin_slot(s, i, err));
        *nbusy += s->slot[i].busy;
    }
    return FSDP_OK;
}

static int step(struct slots *s, struct fsdp_err *err)
{
    struct generate_session *session = s->loop->session;
    const double begin = fsdp_time_now();
    const int64_t before = s->loop->ngenerated;

    FSDP_TRY(session->ops->decode_each(session->decoder, s->tokens, s->logits, err));
    for (int i = 0; i < s->nslots; i++)
        if (s->slot[i].busy)
            FSDP_TRY(advance(s, i, s->logits + (size_t)i * (size_t)session->vocab, err));
    s->loop->ntimed += s->loop->ngenerated - before;
    s->loop->seconds += fsdp_time_now() - begin;
    return FSDP_OK;
}

static int run(struct slots *s, struct fsdp_err *err)
{
    for (int nbusy = 1;;) {
        FSDP_TRY(fill_slots(s, &nbusy, err));
        if (!nbusy)
            return FSDP_OK;
        FSDP_TRY(step(s, err));
    }
}

static int make_slots(struct slots *s, struct fsdp_err *err)
{
    const size_t n = (size_t)s->nslots, vocab = (size_t)s->loop->session->vocab;

    if (!(s->slot = fsdp_alloc(n, sizeof *s->slot, "sequences", err)) ||
        !(s->tokens = fsdp_alloc(n, sizeof *s->tokens, "sequences", err)) ||
        !(s->logits = fsdp_alloc(n * vocab, sizeof *s->logits, "logits", err)))
        return FSDP_ENOMEM;
    for (int i = 0; i < s->nslots; i++) {
        s->tokens[i] = -1;
        FSDP_TRY(generate_sampler_create(&s->slot[i].sampler, &s->loop->opts, (int)vocab, err));
    }
    return FSDP_OK;
}

int generate_loop(struct generate_loop *loop, struct fsdp_err *err)
{
    struct slots s = {.loop = loop, .nslots = loop->session->nsequences};
    int rc = make_slots(&s, err);

    if (rc == FSDP_OK)
        rc = run(&s, err);
    for (int i = 0; s.slot && i < s.nslots; i++)
        generate_sampler_destroy(s.slot[i].sampler);
    fsdp_free(s.slot);
    fsdp_free(s.tokens);
    fsdp_free(s.logits);
    return rc;
}
