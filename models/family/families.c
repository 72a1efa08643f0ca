/* SPDX-License-Identifier: Apache-2.0 */
/* The model families. A new one is a row. */
#include <stdio.h>
#include <string.h>

#include "hf.h"
#include "model.h"

static const struct model_ops *const families[] = {&model_gpt2_ops, &model_llama_ops};
enum { NFAMILIES = sizeof families / sizeof families[0] };

int model_find(const struct model_ops **out, const char *config_json_path, struct fsdp_err *err)
{
    const char *type = NULL;
    char known[256] = "";
    struct hf_config *config;

    FSDP_TRY(hf_config_open(&config, config_json_path, err));
    int rc = hf_text(config, "model_type", true, &type, err);
    if (rc)
        goto out;
    for (int i = 0; i < NFAMILIES; i++) {
        if (!strcmp(type, families[i]->family)) {
            *out = families[i];
            goto out;
        }
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", families[i]->family);
    }
    rc = hf_refuse(config, FSDP_EUNSUPPORTED, err, "model_type",
                   "'%.64s' is not a known model family (known: %s)", type, known);
out:
    hf_config_close(config);
    return rc;
}
