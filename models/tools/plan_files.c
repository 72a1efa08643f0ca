/* SPDX-License-Identifier: Apache-2.0 */
/* May the files that fsdp-plan was told to write be written? */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "plan.h"

static int check_file(const char *option, const char *path, const struct plan_settings *set,
                      const char *config, struct fsdp_err *err)
{
    char model[4096] = "";
    struct stat st;

    if (set->model)
        snprintf(model, sizeof model, "%s/config.json", set->model);
    const char *const inputs[] = {config, set->cluster, set->model ? model : NULL, set->against,
                                  set->calibrate};
    for (size_t i = 0; path && i < sizeof inputs / sizeof inputs[0]; i++)
        if (inputs[i] && fsdp_file_is_same(path, inputs[i]))
            return fsdp_err_set(err, FSDP_EINVAL,
                                "--%s %s: that is %s, which the plan is made of; name another file",
                                option, path, inputs[i]);
    if (path && !stat(path, &st) && S_ISDIR(st.st_mode))
        return fsdp_err_set(err, FSDP_EINVAL, "--%s %s is a folder: name a file in it", option,
                            path);
    return FSDP_OK;
}

int plan_check_files(const struct plan_settings *set, const char *config, struct fsdp_err *err)
{
    const struct {
        const char *option, *path;
    } outputs[] = {
        {"json", set->json}, {"trace", set->trace}, {"chart", set->chart}, {"output", set->output}};
    const size_t n = sizeof outputs / sizeof outputs[0];

    for (size_t i = 0; i < n; i++) {
        FSDP_TRY(check_file(outputs[i].option, outputs[i].path, set, config, err));
        for (size_t k = 0; k < i; k++)
            if (outputs[i].path && outputs[k].path && strcmp(outputs[i].path, "/dev/null") != 0 &&
                (!strcmp(outputs[i].path, outputs[k].path) ||
                 fsdp_file_is_same(outputs[i].path, outputs[k].path)))
                return fsdp_err_set(err, FSDP_EINVAL, "--%s and --%s are one file: name two",
                                    outputs[k].option, outputs[i].option);
    }
    return FSDP_OK;
}
