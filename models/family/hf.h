/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hf.h: reading the config.json of a Hugging Face model folder. Every error names the file and the
 * key. Keys may be paths, such as "rope_scaling.factor". A key that is missing or null leaves *out
 * as the caller set it (the default), unless it is required.
 */
#ifndef HF_H
#define HF_H

#include "fsdp/base.h"

struct hf_config;

/* Local, blocks. FSDP_ENOTFOUND, FSDP_EINVAL with the line for what is not a JSON object. */
int hf_config_open(struct hf_config **out, const char *path, struct fsdp_err *err);
void hf_config_close(struct hf_config *config);

/* Is the key there, with a value other than null? */
bool hf_has(const struct hf_config *config, const char *key);
/* Is it there as null? */
bool hf_is_null(const struct hf_config *config, const char *key);
/* Gives the key this value, JSON, where the file has neither it nor `other`. */
int hf_default(const struct hf_config *config, const char *key, const char *other, const char *json,
               struct fsdp_err *err);
/* From now on keys are those of the object `section`, and those of `outer` (NULL-terminated) that
 * the file has around it, which win. Before all others. Its absent keys get the values that they
 * have in `defaults`, a JSON object. */
int hf_enter(struct hf_config *config, const char *section, const char *const *outer,
             const char *defaults, struct fsdp_err *err);
/* An integer of [least, most]. */
int hf_int(const struct hf_config *config, const char *key, bool required, int least, int most,
           int *out, struct fsdp_err *err);
/* A number of [least, most]. */
int hf_float(const struct hf_config *config, const char *key, bool required, double least,
             double most, double *out, struct fsdp_err *err);
int hf_bool(const struct hf_config *config, const char *key, bool *out, struct fsdp_err *err);
/* Lives as long as config. */
int hf_text(const struct hf_config *config, const char *key, bool required, const char **out,
            struct fsdp_err *err);
/* An integer or a list of them, each of [least, most]; *count is how many (at most max_count). */
int hf_ints(const struct hf_config *config, const char *key, int least, int most, int *out,
            int max_count, int *count, struct fsdp_err *err);
/* Like hf_ints: a list of exactly `count` numbers, of [least, most]. */
int hf_floats(const struct hf_config *config, const char *key, double least, double most,
              double *out, int count, struct fsdp_err *err);
/* Element i of a list of exactly `count` strings; lives as long as config. */
int hf_text_at(const struct hf_config *config, const char *key, int i, int count, const char **out,
               struct fsdp_err *err);
/* A key of the file's own level that no function above was asked for and that has a value other
 * than null, false, 0, "", [] and {}; *place is 0 at first. NULL: there is none left. */
const char *hf_next_unread(const struct hf_config *config, size_t *place);
/* *present: is the key there? It must then be an object. */
int hf_object(const struct hf_config *config, const char *key, bool *present, struct fsdp_err *err);
/* Sets err to "PATH: KEY ...". */
int hf_refuse(const struct hf_config *config, int status, struct fsdp_err *err, const char *key,
              const char *fmt, ...) FSDP_PRINTF(5, 6);

#endif
