/* SPDX-License-Identifier: Apache-2.0 */
/* A pickle, and its value as JSON. */
#include "../../ckpt/format/dcp/dcp.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct ckpt_pickle pickle;
    uint64_t dims[FSDP_MAX_DIMS];
    int ndim;
    const char *why = NULL;
    if (ckpt_pickle_parse(&pickle, data, nbytes, "fuzz", NULL))
        return 0;
    ckpt_pk_dims(dims, &ndim, pickle.root);
    ckpt_pk_get(pickle.root, "size");
    json_decref(ckpt_dcp_json(pickle.root, &why));
    ckpt_pickle_free(&pickle);
    return 0;
}

FUZZ_TARGET("pickle")
