/* SPDX-License-Identifier: Apache-2.0 */
/* generate_output.h: what fsdp-generate prints. */
#ifndef TOOLS_GENERATE_OUTPUT_H
#define TOOLS_GENERATE_OUTPUT_H

#include "generate/loop.h"
#include "generate/words.h"

/* The logits after each token of the prompt, or the probabilities of the next one after it: "id
 * probability" a line, the most likely first. On standard output. */
int generate_print_logits(struct generate_session *s, const struct generate_sequence *seq,
                          struct fsdp_err *err);
int generate_print_probabilities(struct generate_session *s, const struct generate_sequence *seq,
                                 const struct generate_opts *opts, struct fsdp_err *err);

/* One prompt, and its tokens on standard output, each when it comes. */
struct generate_printer {
    const struct generate_words *words;
    const struct generate_sequence *seq;
    void *stream;
    bool begun;
    enum generate_finish finish; /* out */
};
int generate_printer_open(struct generate_printer *p, const struct generate_words *words,
                          const struct generate_sequence *seq, struct fsdp_err *err);
struct generate_source generate_printer_source(struct generate_printer *p);
void generate_printer_close(struct generate_printer *p);

/* One line about tokens and speed on standard error. */
void generate_print_speed(const struct generate_loop *loop);

#endif
