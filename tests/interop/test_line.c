/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Documents of JSON Lines as a filter, which chat_mask.py compares with transformers: test_line
 * FOLDER [assistant|last|all]. The folder holds a tokenizer and perhaps a template. For each line
 * of standard input a line comes out: ids and labels, or "error" and its text. Without a folder it
 * has nothing to do.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/line/line.h"
#include "tap.h"
#include "text/chat/chat.h"
#include "text/tokenizer/tokenizer.h"

static void print_line(const struct data_line *line)
{
    for (size_t i = 0; i < line->ntokens; i++)
        printf("%s%d", i ? "," : "", line->tokens[i]);
    printf(" ");
    for (size_t i = 0; i < line->ntokens; i++)
        printf("%s%d", i ? "," : "", line->labels[i]);
    printf("\n");
}

static int run(const char *folder, const char *train_on, struct fsdp_err *err)
{
    struct tokenizer *tokenizer = NULL;
    struct chat_template *chat = NULL;
    char *text = NULL;
    size_t room = 0;
    ssize_t nbytes;

    FSDP_TRY(tokenizer_open(&tokenizer, folder, err));
    FSDP_TRY(chat_template_open(&chat, folder, err));
    const struct data_text how = {.tokenizer = tokenizer,
                                  .chat = chat,
                                  .end = tokenizer_eos(tokenizer),
                                  .special = DATA_SPECIAL_EOS,
                                  .train_on = !strcmp(train_on, "last")  ? DATA_TRAIN_LAST
                                              : !strcmp(train_on, "all") ? DATA_TRAIN_ALL
                                                                         : DATA_TRAIN_ASSISTANT};
    struct data_line line = {.path = "stdin", .text = &how, .highest = -1};
    while ((nbytes = getline(&text, &room, stdin)) > 0) {
        struct fsdp_err why = FSDP_ERR_INIT;
        line.number++;
        if (data_line_parse(&line, text, (size_t)nbytes, &why))
            printf("error %s\n", why.text);
        else
            print_line(&line);
        fflush(stdout);
    }
    free(text);
    data_line_free(&line);
    chat_template_destroy(chat);
    tokenizer_close(tokenizer);
    return FSDP_OK;
}

int main(int argc, char **argv)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    if (argc < 2) {
        tap_skip("tests/interop/chat_mask.sh runs it");
        return tap_done();
    }
    if (run(argv[1], argc > 2 ? argv[2] : "assistant", &err) == FSDP_OK)
        return 0;
    fprintf(stderr, "%s\n", err.text);
    return 1;
}
