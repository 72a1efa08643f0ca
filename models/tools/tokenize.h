/* SPDX-License-Identifier: Apache-2.0 */
/* tokenize.h: what the files of fsdp-tokenize share. */
#ifndef TOOLS_TOKENIZE_H
#define TOOLS_TOKENIZE_H

#include "data/line/text.h"
#include "data/tokens/encode.h"

enum { TOKENIZE_MAX_SPECIAL = 64 };

struct tokenize_settings {
    const char *output, *tokenizer, *text_key, *date, *info, *decode, *pattern;
    const char *special_tokens[TOKENIZE_MAX_SPECIAL];
    int nspecial_tokens;
    int special, format, train_on, on_bad_line, threads;
    int train; /* tokens of a vocabulary that is made; 0: none is */
    bool overwrite, verify;
    struct tokenize_range {
        bool is_given;
        uint64_t first, end;
    } tokens, document; /* document: end is one more than first */
    int npaths;
    const char *const *paths;
};

/* How text becomes tokens by --tokenizer, whose chat template, if it is a folder, renders messages.
 * Closed where it was not opened, too. tokenize_text.c */
struct tokenize_text {
    struct data_text text;
    struct tokenizer *tokenizer;
    struct chat_template *chat;
    char chat_refusal[FSDP_ERR_TEXT_NBYTES];
};
int tokenize_text_open(struct tokenize_text *out, const struct tokenize_settings *set,
                       struct fsdp_err *err);
void tokenize_text_close(struct tokenize_text *text);

/* One line on a terminal, written again and again; else a line now and then. FSDP_ECANCELED after
 * an interrupt. tokenize_progress.c */
struct tokenize_progress {
    bool is_terminal, is_shown;
    double told;
};
void tokenize_progress_begin(struct tokenize_progress *progress);
int tokenize_progress_tell(void *progress, const struct encode_progress *now, struct fsdp_err *err);
/* Takes the line from the terminal. */
void tokenize_progress_end(struct tokenize_progress *progress);

/* tokenize_show.c */
int tokenize_show_info(const struct tokenize_settings *set, struct fsdp_err *err);
int tokenize_show_text(const struct tokenize_settings *set, struct fsdp_err *err);
/* Of the tokens, how many are learned. */
int tokenize_count_learned(uint64_t *out, const char *path, struct fsdp_err *err);

/* Makes a vocabulary. tokenize_train.c */
int tokenize_train(const struct tokenize_settings *set, const struct encode_opts *opts,
                   struct fsdp_err *err);

#endif
