/* SPDX-License-Identifier: Apache-2.0 */
/* Credentials as JSON: of an endpoint of containers or instances, and of a program. */
#include "fuzz.h"

#if HAVE_CURL
#include "../../ckpt/store/s3/creds.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    static const char *const tokens[] = {"Token", "SessionToken"};
    for (size_t t = 0; t < sizeof tokens / sizeof tokens[0]; t++) {
        struct ckpt_s3_creds creds = {.source = "a test"};
        int rc = ckpt_s3_creds_json(&creds, (const char *)data, nbytes, tokens[t], "a test", NULL);
        if (!memchr(creds.key_id, 0, sizeof creds.key_id) ||
            !memchr(creds.secret, 0, sizeof creds.secret) ||
            !memchr(creds.token, 0, sizeof creds.token) || (!rc && !*creds.key_id))
            abort();
        ckpt_s3_creds_wipe(&creds);
    }
    return 0;
}
#else
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    (void)data, (void)nbytes;
    return 0;
}
#endif

FUZZ_TARGET("creds")
