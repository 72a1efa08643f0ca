/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "generate_chat.h"
#include "generate_output.h"
#include "interrupt.h"

struct talk {
    struct generate_conversation *c;
    struct generate_loop *loop; /* adds up all turns */
    bool is_terminal, shows_marks, verbose;
    char *line;
    size_t max_line, nbytes;
};

/* ---- lines in -------------------------------------------------------------------------------- */

/* The next line that is not blank, without its end; *there false: there is none. */
static int read_line(struct talk *t, bool *there, struct fsdp_err *err)
{
    for (;;) {
        if (t->shows_marks)
            fputs("> ", stderr);
        interrupt_watch_read();
        errno = 0;
        const ssize_t n = getline(&t->line, &t->max_line, stdin);
        *there = n >= 0;
        if (n < 0 && t->shows_marks)
            fputc('\n', stderr);
        if (n < 0)
            return interrupt_came || feof(stdin) ? FSDP_OK
                                                 : fsdp_err_sys(err, errno, "standard input");
        t->nbytes = (size_t)n;
        while (t->nbytes && strchr("\r\n", t->line[t->nbytes - 1]))
            t->nbytes--;
        t->line[t->nbytes] = 0;
        if (strspn(t->line, " \t") < t->nbytes)
            return FSDP_OK;
    }
}

/* ---- an answer ------------------------------------------------------------------------------- */

static int show(void *ctx, const char *text, size_t nbytes, struct fsdp_err *err)
{
    (void)ctx;
    if (nbytes)
        fwrite(text, 1, nbytes, stdout);
    else
        putchar('\n');
    if (fflush(stdout) || ferror(stdout))
        return fsdp_err_sys(err, errno, "standard output");
    return FSDP_OK;
}

static int take_turn(struct talk *t, struct generate_turn *turn, struct fsdp_err *err)
{
    struct generate_loop one = *t->loop;
    int rc;

    one.nprompt = one.ngenerated = one.ntimed = 0;
    one.prompt_seconds = one.seconds = 0;
    rc = generate_conversation_turn(t->c, &one, turn, err);
    t->loop->nprompt += one.nprompt;
    t->loop->ngenerated += one.ngenerated;
    t->loop->ntimed += one.ntimed;
    t->loop->prompt_seconds += one.prompt_seconds;
    t->loop->seconds += one.seconds;
    if (rc == FSDP_OK && t->verbose)
        generate_print_speed(&one);
    return rc;
}

void generate_print_finish(const struct generate_session *s, enum generate_finish finish,
                           int max_tokens)
{
    if (finish == GENERATE_POSITIONS)
        fprintf(stderr, "fsdp-generate: stopped at the model's %d positions\n", s->max_seq_len);
    else if (finish == GENERATE_LENGTH)
        fprintf(stderr, "fsdp-generate: stopped after %d tokens (--max-tokens)\n", max_tokens);
}

/* ---- the conversation ------------------------------------------------------------------------ */

static int answer_line(struct talk *t, struct fsdp_err *err)
{
    struct generate_turn turn = {.text = t->line, .nbytes = t->nbytes, .show = show};
    struct fsdp_err why = FSDP_ERR_INIT;

    interrupt_watch();
    const int rc = take_turn(t, &turn, &why);
    if (rc && turn.refused && t->is_terminal && generate_conversation_nmessages(t->c)) {
        fprintf(stderr, "fsdp-generate: %s\n", why.text);
        return FSDP_OK;
    }
    if (rc)
        return fsdp_err_pass(err, rc, &why);
    generate_print_finish(t->loop->session, turn.finish, generate_conversation_max_tokens(t->c));
    return FSDP_OK;
}

static int talk(struct talk *t, struct fsdp_err *err)
{
    bool there;

    if (t->shows_marks)
        fputs("fsdp-generate: Ctrl-C stops an answer, Ctrl-D ends the chat\n", stderr);
    for (;;) {
        FSDP_TRY(read_line(t, &there, err));
        if (!there)
            return FSDP_OK;
        FSDP_TRY(answer_line(t, err));
        if (interrupt_came && !t->is_terminal)
            return FSDP_OK;
    }
}

int generate_chat_talk(struct generate_conversation *c, struct generate_loop *loop, bool verbose,
                       struct fsdp_err *err)
{
    const bool is_terminal = isatty(STDIN_FILENO);
    struct talk t = {.c = c,
                     .loop = loop,
                     .is_terminal = is_terminal,
                     .shows_marks = is_terminal && isatty(STDERR_FILENO),
                     .verbose = verbose};
    const int rc = talk(&t, err);

    free(t.line);
    return rc;
}
