/* SPDX-License-Identifier: Apache-2.0 */
/* foreign_answer.h: the part of an answer that is of other frameworks. */
#ifndef ANSWER_FOREIGN_H
#define ANSWER_FOREIGN_H

#include "answer.h"
#include "train/setup/setup.h"

/* Fills answer->foreign where it is asked for. FSDP_EINVAL: ranks, layers or rows cannot be divided
 * so; FSDP_EUNSUPPORTED: no formulas for this model or device. */
int answer_price_foreign(struct answer *answer, const struct train_parts *parts,
                         const struct question *question, struct fsdp_err *err);

#endif
