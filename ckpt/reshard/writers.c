/* SPDX-License-Identifier: Apache-2.0 */
/* The formats of output. A new one is a writer_*.c and a row. */
#include "writer.h"

static const struct ckpt_writer_ops *const writers[] = {&ckpt_writer_hf,   &ckpt_writer_native,
                                                        &ckpt_writer_dcp,  &ckpt_writer_hf_dcp,
                                                        &ckpt_writer_gguf, &ckpt_writer_torch};

const struct ckpt_writer_ops *ckpt_writer_of(enum ckpt_output output)
{
    for (size_t i = 0; i < sizeof writers / sizeof writers[0]; i++)
        if (writers[i]->id == output)
            return writers[i];
    return NULL;
}
