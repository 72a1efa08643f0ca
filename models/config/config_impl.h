/* SPDX-License-Identifier: Apache-2.0 */
/* config_impl.h: what config*.c share: the table of settings, and how a value is refused. */
#ifndef CONFIG_IMPL_H
#define CONFIG_IMPL_H

#include "config.h"

extern const struct fsdp_tunable config_table[]; /* [config_nrows] */
extern const int config_nrows;

/* Row of a key that is in the table. */
int config_row_of(const char *key);
/* FSDP_EINVAL with the place of the key (file and line, or command line) before the text. */
int config_refuse(const struct config *config, const char *key, struct fsdp_err *err,
                  const char *fmt, ...) FSDP_PRINTF(4, 5);

#endif
