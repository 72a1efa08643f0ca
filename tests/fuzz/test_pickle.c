/* SPDX-License-Identifier: Apache-2.0 */
/* A pickle, and its value as JSON: the same whether or not equal values are shared. */
#include "../../ckpt/format/dcp/dcp.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct ckpt_pickle pickle, shared;
    uint64_t dims[FSDP_MAX_DIMS];
    int ndim;
    const char *why = NULL;
    uint8_t *copy = fsdp_alloc_unset(nbytes, 1, "fuzz", NULL);
    memcpy(copy, data, nbytes);
    const int rc = ckpt_pickle_parse(&pickle, data, nbytes, "fuzz", NULL);
    const int shared_rc = ckpt_pickle_parse_shared(&shared, copy, nbytes, "fuzz", NULL);
    fsdp_free(copy);
    if (rc || shared_rc) { /* one of them may have come to its limit of memory */
        ckpt_pickle_free(&pickle);
        ckpt_pickle_free(&shared);
        return 0;
    }
    ckpt_pk_dims(dims, &ndim, pickle.root);
    ckpt_pk_get(pickle.root, "size");
    json_t *json = ckpt_dcp_json(pickle.root, &why);
    json_t *shared_json = ckpt_dcp_json(shared.root, &why);
    if (!json != !shared_json || (json && !json_equal(json, shared_json)))
        abort();
    json_decref(json);
    json_decref(shared_json);
    ckpt_pickle_free(&pickle);
    ckpt_pickle_free(&shared);
    return 0;
}

FUZZ_TARGET("pickle")
