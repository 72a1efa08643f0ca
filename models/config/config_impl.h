/* SPDX-License-Identifier: Apache-2.0 */
/* config_impl.h: what config*.c share: the table of settings, and how a value is refused. */
#ifndef CONFIG_IMPL_H
#define CONFIG_IMPL_H

#include "config.h"

extern const struct fsdp_tunable config_table[]; /* [config_nrows] */
extern const int config_nrows;

/* Row of a key that is in the table. */
int config_row_of(const char *key);
/* What keys of `data` and of its sources allow. */
#define CONFIG_FORMATS "text|u16|u32|llmc|jsonl|megatron"
#define CONFIG_LAYOUTS "stream|rows"
#define CONFIG_PACKS "auto|none|documents"
#define CONFIG_BAD_LINES "stop|skip"
#define CONFIG_TOO_LONG "split|refuse|truncate|drop"
#define CONFIG_DOCUMENT_ENDS "auto=-1|none=-2|0..2147483647"

/* Is it the key of an item, "data.sources[0].path"? */
bool config_is_source_key(const char *key);
/* Sets it, from a value or from values. `line` is config's. */
int config_source_set(struct config *config, const char *where, int line, const char *key,
                      const char *value, const char *const *values, int nvalues,
                      struct fsdp_err *err);
int config_sources_check(const struct config *config, struct fsdp_err *err);
/* data.sources as YAML in one line. */
int config_sources_print(const struct config *config, FILE *to, struct fsdp_err *err);

/* FSDP_EINVAL with the place of the key (file and line, or command line) before the text. */
int config_refuse(const struct config *config, const char *key, struct fsdp_err *err,
                  const char *fmt, ...) FSDP_PRINTF(4, 5);

#endif
