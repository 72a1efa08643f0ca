/* SPDX-License-Identifier: Apache-2.0 */
/* model_changes.h: a run that resumes with another config.json than it was saved with. */
#ifndef TRAIN_MODEL_CHANGES_H
#define TRAIN_MODEL_CHANGES_H

#include "ckpt/ckpt.h"

/* Warns of each key of the file `config` (a model's config.json) whose value is another one in the
 * checkpoint's own config.json. Keys that do not change the model's results are left out. Says
 * nothing where either file cannot be read. Local, blocks. */
void train_tell_model_changes(const struct ckpt *ckpt, const char *config);

#endif
