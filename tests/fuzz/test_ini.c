/* SPDX-License-Identifier: Apache-2.0 */
/* The AWS files `credentials` and `config`: one input is both. */
#include "fuzz.h"

#if HAVE_CURL
#include "../../ckpt/store/s3/creds.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    static const char *const settings[] = {"region", "s3.addressing_style", "aws_access_key_id",
                                           "role_arn"};
    const char *path = fuzz_file("config", data, nbytes);
    setenv("AWS_SHARED_CREDENTIALS_FILE", path, 1);
    setenv("AWS_CONFIG_FILE", path, 1);
    for (size_t s = 0; s < sizeof settings / sizeof settings[0]; s++) {
        bool known = false;
        fsdp_free(ckpt_s3_profile_get("default", settings[s], &known));
        fsdp_free(ckpt_s3_profile_get("work", settings[s], &known));
    }
    return 0;
}
#else
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    fuzz_file("config", data, nbytes);
    return 0;
}
#endif

FUZZ_TARGET("ini")
