/* SPDX-License-Identifier: Apache-2.0 */
/* A file of torch.save. All that can be read is read. */
#include "fuzz.h"
#include "read_all.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    read_all(fuzz_file("x.pt", data, nbytes));
    return 0;
}

FUZZ_TARGET("torch")
