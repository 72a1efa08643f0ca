/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "conversation.h"

enum { LEAST_ROOM = 2048 }; /* tokens of the first decoder, unless the model has fewer */

struct generate_conversation {
    struct generate_session *session;
    const struct generate_chat *chat;
    int max_answer, kv_dtype, room; /* room: tokens of the decoder; 0: there is none yet */
    json_t *messages;
    uint64_t nturns;
    /* Tokens that the decoder has read, and possibly one more. */
    int32_t *had;
    size_t max_had;
    int nhad;
    /* The current turn. */
    struct generate_turn *turn;
    struct generate_sequence seq;
    int32_t *prompt;
    void *stream; /* decodes the answer */
    char *answer;
    size_t nbytes, max_nbytes;
    bool begun;
};

int generate_conversation_create(struct generate_conversation **out, struct generate_session *s,
                                 const struct generate_chat *chat, int max_tokens, int kv_dtype,
                                 struct fsdp_err *err)
{
    struct generate_conversation *c = fsdp_alloc(1, sizeof *c, "conversation", err);

    if (!c)
        return FSDP_ENOMEM;
    *c = (struct generate_conversation){.session = s,
                                        .chat = chat,
                                        .max_answer = max_tokens,
                                        .kv_dtype = kv_dtype,
                                        .messages = json_array()};
    *out = c;
    return FSDP_OK;
}

static void end_turn(struct generate_conversation *c)
{
    if (c->stream)
        c->chat->words->ops->stream_destroy(c->stream);
    c->stream = NULL;
    fsdp_free(c->prompt);
    c->prompt = NULL;
}

void generate_conversation_destroy(struct generate_conversation *c)
{
    if (!c)
        return;
    end_turn(c);
    json_decref(c->messages);
    fsdp_free(c->had);
    fsdp_free(c->answer);
    fsdp_free(c);
}

int generate_conversation_nmessages(const struct generate_conversation *c)
{
    return (int)json_array_size(c->messages);
}

int generate_conversation_max_tokens(const struct generate_conversation *c)
{
    return c->max_answer;
}

/* ---- messages -------------------------------------------------------------------------------- */

static int add_message(struct generate_conversation *c, const char *role, const char *text,
                       size_t nbytes, struct fsdp_err *err)
{
    json_t *message = generate_chat_message(role, text, nbytes);

    if (!message)
        return fsdp_err_set(err, FSDP_EINVAL, "the %s's message is not valid UTF-8", role);
    return json_array_append_new(c->messages, message)
               ? fsdp_err_set(err, FSDP_ENOMEM, "no memory for a message")
               : FSDP_OK;
}

static void forget_message(struct generate_conversation *c)
{
    json_array_remove(c->messages, json_array_size(c->messages) - 1);
}

static int add_answer(struct generate_conversation *c, struct fsdp_err *err)
{
    char *clean;
    size_t nbytes;

    if (c->turn->finish == GENERATE_INTERRUPTED && !c->nbytes) {
        forget_message(c);
        return FSDP_OK;
    }
    FSDP_TRY(generate_words_utf8(&clean, &nbytes, c->answer ? c->answer : "", c->nbytes, err));
    const int rc = add_message(c, "assistant", clean, nbytes, err);
    fsdp_free(clean);
    return rc;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static int add_token(struct generate_conversation *c, int32_t token, struct fsdp_err *err)
{
    int32_t *had =
        fsdp_alloc_grow(c->had, (size_t)c->nhad, &c->max_had, sizeof *had, "conversation", err);

    if (!had)
        return FSDP_ENOMEM;
    c->had = had;
    c->had[c->nhad++] = token;
    return FSDP_OK;
}

/* Sets `had` to the prompt, and ncommon to the part that the decoder has read. */
static int take_prompt(struct generate_conversation *c, struct fsdp_err *err)
{
    int n = 0;

    while (n < c->nhad && n < c->seq.nprompt - 1 && c->had[n] == c->prompt[n])
        n++;
    c->seq.ncommon = c->nhad = n;
    for (; n < c->seq.nprompt; n++)
        FSDP_TRY(add_token(c, c->prompt[n], err));
    return FSDP_OK;
}

/* A larger decoder reads the conversation from its beginning. */
static int make_room(struct generate_conversation *c, int want, struct fsdp_err *err)
{
    const int most = c->session->max_seq_len;
    int room = c->room ? c->room : LEAST_ROOM;

    if (want <= c->room)
        return FSDP_OK;
    while (room < want && room < most / 2)
        room *= 2;
    room = room < want || room > most ? most : room;
    FSDP_TRY(generate_session_decoder(c->session, room, 1, c->kv_dtype, err));
    c->room = room;
    return FSDP_OK;
}

static int begin_turn(struct generate_conversation *c, uint64_t seed, struct fsdp_err *err)
{
    int want = 0;

    FSDP_TRY(generate_chat_encode(&c->prompt, &c->seq.nprompt, c->chat, c->messages, NULL, err));
    c->seq.prompt = c->prompt;
    c->seq.max_tokens = c->max_answer;
    c->seq.seed = seed;
    /* The last position leaves no room for an answer. */
    if (c->seq.nprompt >= c->session->max_seq_len)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "the conversation has become %d tokens long, and the model has %d "
                            "positions: begin a new one",
                            c->seq.nprompt, c->session->max_seq_len);
    FSDP_TRY(generate_room(&want, c->session, &c->seq, err));
    FSDP_TRY(make_room(c, want, err));
    FSDP_TRY(take_prompt(c, err));
    return c->chat->words->ops->stream_create(&c->stream, c->chat->words, NULL, 0, err);
}

/* ---- the loop's callbacks -------------------------------------------------------------------- */

static int next_prompt(void *ctx, struct generate_sequence *seq, bool *there, struct fsdp_err *err)
{
    struct generate_conversation *c = ctx;
    (void)err;

    *there = !c->begun;
    c->begun = true;
    *seq = c->seq;
    return FSDP_OK;
}

/* Adds the text that a token completes; -1: the rest. */
static int add_text(struct generate_conversation *c, int32_t token, struct fsdp_err *err)
{
    const char *text;
    size_t nbytes;

    FSDP_TRY(c->chat->words->ops->stream_put(&text, &nbytes, c->stream, token, err));
    if (!nbytes)
        return FSDP_OK;
    char *all = fsdp_alloc_reserve(c->answer, c->nbytes, &c->max_nbytes, c->nbytes + nbytes, 1,
                                   "answer", err);
    if (!all)
        return FSDP_ENOMEM;
    c->answer = all;
    memcpy(c->answer + c->nbytes, text, nbytes);
    c->nbytes += nbytes;
    return c->turn->show(c->turn->ctx, text, nbytes, err);
}

static int put_token(void *ctx, const struct generate_sequence *seq, int32_t token,
                     struct fsdp_err *err)
{
    struct generate_conversation *c = ctx;
    (void)seq;

    FSDP_TRY(add_token(c, token, err));
    return add_text(c, token, err);
}

static int end_answer(void *ctx, const struct generate_sequence *seq, enum generate_finish finish,
                      struct fsdp_err *err)
{
    struct generate_conversation *c = ctx;
    (void)seq;

    c->turn->finish = finish;
    FSDP_TRY(add_text(c, -1, err));
    return c->turn->show(c->turn->ctx, "", 0, err);
}

/* ---- a turn ---------------------------------------------------------------------------------- */

static int answer(struct generate_conversation *c, struct generate_loop *loop, struct fsdp_err *err)
{
    c->begun = false;
    c->nbytes = 0;
    loop->source = (struct generate_source){
        .ctx = c, .next = next_prompt, .put = put_token, .done = end_answer};
    /* The result if the loop is interrupted before it asks for a prompt. */
    c->turn->finish = GENERATE_INTERRUPTED;
    FSDP_TRY(generate_loop(loop, err));
    return add_answer(c, err);
}

int generate_conversation_turn(struct generate_conversation *c, struct generate_loop *loop,
                               struct generate_turn *turn, struct fsdp_err *err)
{
    int rc;

    c->turn = turn;
    turn->refused = true;
    FSDP_TRY(add_message(c, "user", turn->text, turn->nbytes, err));
    rc = begin_turn(c, loop->opts.seed + c->nturns, err);
    if (rc) {
        forget_message(c);
    } else {
        turn->refused = false;
        c->nturns++;
        rc = answer(c, loop, err);
    }
    end_turn(c);
    return rc;
}
