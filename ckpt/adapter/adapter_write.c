/* SPDX-License-Identifier: Apache-2.0 */
/* Writing an adapter as PEFT does. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/adapter.h"
#include "file/safetensors.h"
#include "util/text.h"

enum { NAME_NBYTES = 1024 };
#define WEIGHT ".weight"

/* ---- adapter_config.json --------------------------------------------------------------------- */

/* An empty list, or none at all, where PEFT would choose itself. */
static json_t *list_of(const char *const *texts, int ntexts, bool empty)
{
    json_t *list = ntexts || empty ? json_array() : json_null();
    for (int i = 0; i < ntexts; i++)
        json_array_append_new(list, json_string(texts[i]));
    return list;
}

/* As transformers calls them, also where files do not. */
static json_t *modules_of(const struct ckpt_adapter_spec *spec)
{
    json_t *list = list_of(spec->modules_to_save, spec->nmodules, false);
    char weight[NAME_NBYTES], name[NAME_NBYTES];

    for (int i = 0; i < spec->nmodules; i++) {
        snprintf(weight, sizeof weight, "%s" WEIGHT, spec->modules_to_save[i]);
        if (ckpt_adapter_module_name(name, sizeof name, weight))
            json_array_set_new(list, (size_t)i, json_stringn(name, strlen(name) - strlen(WEIGHT)));
    }
    return list;
}

/* PEFT's own files have integers where alpha is one. */
static json_t *number_of(double value)
{
    const json_int_t whole = (json_int_t)value;
    return (double)whole == value ? json_integer(whole) : json_real(value);
}

/* NULL where the text is none of JSON. */
static json_t *patterns_of(const char *text)
{
    return text ? json_loads(text, 0, NULL) : json_object();
}

int ckpt_adapter_config(char **out, const struct ckpt_adapter_spec *spec, struct fsdp_err *err)
{
    json_t *json = json_pack(
        "{s:s, s:s, s:s?, s:i, s:o, s:f, s:o, s:o, s:o, s:b, s:b, s:b, s:s, s:b, s:b, s:o, s:o}",
        "peft_type", "LORA", "task_type", "CAUSAL_LM", "base_model_name_or_path", spec->base, "r",
        spec->r, "lora_alpha", number_of(spec->alpha), "lora_dropout", spec->dropout,
        "target_modules", list_of(spec->targets, spec->ntargets, spec->nparameters > 0),
        "target_parameters", list_of(spec->parameters, spec->nparameters, false), "modules_to_save",
        modules_of(spec), "use_rslora", spec->rslora, "use_dora", spec->dora, "fan_in_fan_out",
        spec->transposed, "bias", "none", "inference_mode", true, "init_lora_weights", true,
        "rank_pattern", patterns_of(spec->rank_pattern), "alpha_pattern",
        patterns_of(spec->alpha_pattern));
    char *text = json ? json_dumps(json, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;

    *out = text ? fsdp_sprintf(err, "%s\n", text) : NULL;
    free(text);
    json_decref(json);
    return *out ? FSDP_OK : fsdp_err_set(err, FSDP_ENOMEM, CKPT_ADAPTER_CONFIG ": out of memory");
}

/* ---- adapter_model.safetensors --------------------------------------------------------------- */

struct ckpt_adapter_file {
    FILE *file;
    char *path;
};

static int write_header(struct ckpt_adapter_file *f, const struct fsdp_tensor *tensors,
                        int ntensors, struct fsdp_err *err)
{
    struct ckpt_st_entry *entries =
        fsdp_alloc((size_t)ntensors + 1, sizeof *entries, "header", err);
    char module[NAME_NBYTES];
    size_t nbytes = 0;
    char *header = NULL;
    int rc = entries ? FSDP_OK : FSDP_ENOMEM;

    for (int i = 0; rc == FSDP_OK && i < ntensors; i++) {
        entries[i] = (struct ckpt_st_entry){.shape = tensors[i].shape,
                                            .dtype = (uint8_t)tensors[i].dtype,
                                            .ndim = (uint8_t)tensors[i].ndim};
        const bool renamed = ckpt_adapter_module_name(module, sizeof module, tensors[i].name);
        entries[i].name =
            fsdp_sprintf(err, CKPT_ADAPTER_PREFIX "%s", renamed ? module : tensors[i].name);
        rc = entries[i].name ? FSDP_OK : FSDP_ENOMEM;
    }
    if (rc == FSDP_OK)
        rc = ckpt_st_format(&header, &nbytes, entries, ntensors, false, err);
    if (rc == FSDP_OK)
        rc = ckpt_adapter_file_put(f, header, nbytes, err);
    for (int i = 0; entries && i < ntensors; i++)
        fsdp_free((char *)(uintptr_t)entries[i].name);
    fsdp_free(entries);
    fsdp_free(header);
    return rc;
}

int ckpt_adapter_file_open(struct ckpt_adapter_file **out, const char *path,
                           const struct fsdp_tensor *tensors, int ntensors, struct fsdp_err *err)
{
    struct ckpt_adapter_file *f = fsdp_alloc(1, sizeof *f, "adapter", err);
    int fd = -1, rc = f ? FSDP_OK : FSDP_ENOMEM;

    if (rc == FSDP_OK && !(f->path = fsdp_strdup(path, err)))
        rc = FSDP_ENOMEM;
    if (rc == FSDP_OK)
        rc = fsdp_file_open(&fd, path, O_WRONLY | O_CREAT | O_TRUNC, err);
    if (rc == FSDP_OK && !(f->file = fdopen(fd, "w"))) {
        rc = fsdp_err_sys(err, errno, "%s", path);
        close(fd);
    }
    if (rc == FSDP_OK)
        rc = write_header(f, tensors, ntensors, err);
    if (rc) {
        ckpt_adapter_file_close(f, NULL);
        return rc;
    }
    *out = f;
    return FSDP_OK;
}

int ckpt_adapter_file_put(struct ckpt_adapter_file *f, const void *data, size_t nbytes,
                          struct fsdp_err *err)
{
    return fwrite(data, 1, nbytes, f->file) == nbytes ? FSDP_OK
                                                      : fsdp_err_sys(err, errno, "%s", f->path);
}

int ckpt_adapter_file_close(struct ckpt_adapter_file *f, struct fsdp_err *err)
{
    int rc = FSDP_OK;

    if (!f)
        return rc;
    if (f->file && fclose(f->file))
        rc = fsdp_err_sys(err, errno, "%s", f->path);
    fsdp_free(f->path);
    fsdp_free(f);
    return rc;
}
