/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one core tokenizes: bench_tokenizer TOKENIZER TEXT [ROUNDS]. The text is cut into documents
 * at the first newline after each 2,000 bytes. Prints MB/s, millions of ids per second and the
 * number of ids, of the best round. scripts/bench_tokens.py runs it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer/tokenizer.h"

enum { DOCUMENT_NBYTES = 2000 };

static int encode_all(struct tokenizer_encoder *encoder, const char *text, size_t nbytes,
                      struct tokenizer_ids *ids, size_t *nids, struct fsdp_err *err)
{
    *nids = 0;
    for (size_t at = 0, end; at < nbytes; at = end) {
        const char *feed = nbytes - at > DOCUMENT_NBYTES ? memchr(text + at + DOCUMENT_NBYTES, '\n',
                                                                  nbytes - at - DOCUMENT_NBYTES)
                                                         : NULL;
        end = feed ? (size_t)(feed + 1 - text) : nbytes;
        ids->nids = 0;
        FSDP_TRY(tokenizer_encode(encoder, text + at, end - at, false, ids, err));
        *nids += ids->nids;
    }
    return FSDP_OK;
}

static int measure(const char *tokenizer_path, const char *text_path, int nrounds,
                   struct fsdp_err *err)
{
    struct tokenizer *tokenizer = NULL;
    struct tokenizer_encoder *encoder = NULL;
    struct tokenizer_ids ids = {0};
    size_t nbytes = 0, nids = 0;
    char *text = NULL;
    double best = 0;
    int rc;

    FSDP_TRY_GOTO(fsdp_file_read(&text, &nbytes, text_path, (size_t)1 << 30, err), out);
    FSDP_TRY_GOTO(tokenizer_open(&tokenizer, tokenizer_path, err), out);
    FSDP_TRY_GOTO(tokenizer_encoder_create(&encoder, tokenizer, err), out);
    for (int round = 0; round < nrounds; round++) {
        const double began = fsdp_time_now();
        FSDP_TRY_GOTO(encode_all(encoder, text, nbytes, &ids, &nids, err), out);
        const double seconds = fsdp_time_now() - began;
        best = !round || seconds < best ? seconds : best;
    }
    printf("%.2f %.3f %zu\n", (double)nbytes / 1e6 / best, (double)nids / 1e6 / best, nids);
out:
    tokenizer_ids_free(&ids);
    tokenizer_encoder_destroy(encoder);
    tokenizer_close(tokenizer);
    fsdp_free(text);
    return rc;
}

int main(int argc, char **argv)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    if (argc < 3) {
        fprintf(stderr, "usage: bench_tokenizer TOKENIZER TEXT [ROUNDS]\n");
        return 2;
    }
    if (measure(argv[1], argv[2], argc > 3 ? atoi(argv[3]) : 5, &err) == FSDP_OK)
        return 0;
    fprintf(stderr, "%s\n", err.text);
    return 1;
}
