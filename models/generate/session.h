/* SPDX-License-Identifier: Apache-2.0 */
/* session.h: a model that is loaded for generating. */
#ifndef GENERATE_SESSION_H
#define GENERATE_SESSION_H

#include "ckpt/adapter.h"
#include "family/model.h"
#include "settings.h"

struct generate_session {
    struct ckpt *ckpt;
    struct ckpt_adapters *adapters; /* NULL: none */
    const char *path;               /* as asked for; borrowed */
    char *fetched; /* folder of small files that came from a store; NULL: there are none */
    const struct model_ops *ops;
    struct model *model;
    struct fsdp_module_tree *tree;
    float **param; /* each on the device */
    struct fsdp_device *device;
    struct fsdp_lane *lane;
    struct model_decoder *decoder;
    int vocab, max_seq_len;
    int nsequences;                /* of the decoder */
    struct generate_config config; /* what the folder says */
    int bos;                       /* token id, -1: none */
    int neos, eos[MODEL_MAX_EOS];  /* end tokens */
};

/* Loads weights and settings of the model at set->model onto the device. Logs go where fsdp_log_set
 * says. `s` is zeros; close it, also after an error. Local, blocks. */
int generate_session_open(struct generate_session *s, const struct generate_settings *set,
                          struct fsdp_err *err);
void generate_session_close(struct generate_session *s);
/* Path on this machine of a small file of the model, such as tokenizer.json, freed by the caller;
 * NULL where there is none. A file of a store is fetched; the copy lives until the session is
 * closed. Local, blocks. */
int generate_session_file(char **out, struct generate_session *s, const char *name,
                          struct fsdp_err *err);
/* The same for the model's tokenizer, in the order of tokenizer_open. */
int generate_session_tokenizer(char **out, struct generate_session *s, struct fsdp_err *err);
/* The folder on this machine in which the model's chat template and its special tokens are; NULL
 * where it has no file that could hold a template. Freed by the caller. */
int generate_session_template(char **folder, struct generate_session *s, struct fsdp_err *err);
/* Makes s->decoder, in place of one that is there. kv_dtype -1: that of the model's weights. Its
 * memory is logged. */
int generate_session_decoder(struct generate_session *s, int max_tokens, int nsequences,
                             int kv_dtype, struct fsdp_err *err);
/* Is it one of the model's end tokens? */
bool generate_session_ends(const struct generate_session *s, int32_t token);

#endif
