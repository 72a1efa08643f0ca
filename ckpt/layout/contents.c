/* SPDX-License-Identifier: Apache-2.0 */
/* Writing manifest.json. Its last member is the checksum of what stands before it. */
#include <string.h>

#include "contents.h"
#include "util/text.h"

void ckpt_manifest_free(struct ckpt_manifest *m)
{
    for (int i = 0; i < m->nunits; i++) {
        fsdp_free(m->units[i].name);
        fsdp_free(m->units[i].tensors);
    }
    for (int i = 0; i < m->noptim; i++)
        fsdp_free(m->optim[i].name);
    for (int i = 0; i < m->naliases; i++) {
        fsdp_free((char *)(uintptr_t)m->aliases[i].name);
        fsdp_free((char *)(uintptr_t)m->aliases[i].target);
    }
    for (int i = 0; i < m->nextras; i++) {
        fsdp_free(m->extras[i].path);
        fsdp_free(m->extras[i].full_path);
    }
    fsdp_free(m->units);
    fsdp_free(m->optim);
    fsdp_free(m->aliases);
    fsdp_free(m->extras);
    fsdp_free(m->state_json);
    ckpt_layout_free(&m->layout);
    memset(m, 0, sizeof *m);
}

static const char *comma(int i)
{
    return i ? ",\n  " : "\n  ";
}

static void format_tensors(struct ckpt_text *text, const struct ckpt_layout *layout)
{
    ckpt_text_printf(text, ",\n \"tensors\": {");
    for (int i = 0; i < layout->ntensors; i++) {
        const struct ckpt_tensor *t = &layout->tensors[i];
        ckpt_text_printf(text, "%s", comma(i));
        ckpt_text_json(text, t->tensor.name);
        ckpt_text_printf(text, ": {\"kind\": \"%s\", \"dtype\": \"%s\", \"shape\": ",
                         t->kind == FSDP_SLICE_MODEL ? "model" : "optim",
                         fsdp_dtype_name(t->tensor.dtype));
        ckpt_text_dims(text, t->tensor.shape, t->tensor.ndim);
        ckpt_text_printf(text, ", \"fingerprint\": \"%016llx\"}",
                         (unsigned long long)t->fingerprint);
    }
    ckpt_text_printf(text, "}");
}

static void format_units(struct ckpt_text *text, const struct ckpt_manifest *m)
{
    ckpt_text_printf(text, ",\n \"units\": [");
    for (int i = 0; i < m->nunits; i++) {
        ckpt_text_printf(text, "%s{\"name\": ", comma(i));
        ckpt_text_json(text, m->units[i].name);
        ckpt_text_printf(text, ", \"trainable\": %s, \"tensors\": [",
                         m->units[i].trainable ? "true" : "false");
        for (int k = 0; k < m->units[i].ntensors; k++) {
            ckpt_text_printf(text, "%s", k ? ", " : "");
            ckpt_text_json(text, m->layout.tensors[m->units[i].tensors[k]].tensor.name);
        }
        ckpt_text_printf(text, "]}");
    }
    ckpt_text_printf(text, "],\n \"optim\": [");
    for (int i = 0; i < m->noptim; i++) {
        ckpt_text_printf(text, "%s", i ? ", " : "");
        if (m->optim[i].kind != FSDP_PER_ELEMENT)
            ckpt_text_printf(text,
                             "{\"per\": \"%s\", \"name\": ", fsdp_slot_kind_name(m->optim[i].kind));
        ckpt_text_json(text, m->optim[i].name);
        if (m->optim[i].kind != FSDP_PER_ELEMENT)
            ckpt_text_printf(text, "}");
    }
    ckpt_text_printf(text, "]");
}

static void format_files(struct ckpt_text *text, const struct ckpt_manifest *m)
{
    ckpt_text_printf(text, ",\n \"files\": [");
    for (int i = 0; i < m->layout.nfiles; i++) {
        const struct ckpt_layout_file *file = &m->layout.files[i];
        ckpt_text_printf(text, "%s{\"path\": ", comma(i));
        ckpt_text_json(text, file->path);
        ckpt_text_printf(text, ", \"nbytes\": %llu, \"header_nbytes\": %llu, \"crc32c\": \"%08x\"}",
                         (unsigned long long)file->nbytes, (unsigned long long)file->header_nbytes,
                         file->crc32c);
    }
    ckpt_text_printf(text, "],\n \"extras\": [");
    for (int i = 0; i < m->nextras; i++) {
        ckpt_text_printf(text, "%s{\"path\": ", comma(i));
        ckpt_text_json(text, m->extras[i].path);
        ckpt_text_printf(text, ", \"nbytes\": %llu, \"crc32c\": \"%08x\"}",
                         (unsigned long long)m->extras[i].nbytes, m->extras[i].crc32c);
    }
    ckpt_text_printf(text, "]");
}

int ckpt_manifest_format(char **out, size_t *out_nbytes, const struct ckpt_manifest *m,
                         struct fsdp_err *err)
{
    struct ckpt_text text = {0};
    ckpt_text_printf(&text, "{\n \"format\": \"fsdp-checkpoint\",\n \"version\": %d,\n",
                     CKPT_MANIFEST_VERSION);
    ckpt_text_printf(&text, " \"uuid\": \"%s\",\n \"step\": ", m->uuid);
    if (m->step < 0)
        ckpt_text_printf(&text, "null,\n");
    else
        ckpt_text_printf(&text, "%lld,\n", (long long)m->step);
    ckpt_text_printf(&text, " \"mesh\": {\"shard_size\": %d, \"replicate_size\": %d}",
                     m->shard_size, m->replicate_size);
    format_files(&text, m);
    format_units(&text, m);
    format_tensors(&text, &m->layout);
    ckpt_text_printf(&text, ",\n \"aliases\": {");
    for (int i = 0; i < m->naliases; i++) {
        ckpt_text_printf(&text, "%s", comma(i));
        ckpt_text_json(&text, m->aliases[i].name);
        ckpt_text_printf(&text, ": ");
        ckpt_text_json(&text, m->aliases[i].target);
    }
    ckpt_text_printf(&text, "},\n \"state\": %s", m->state_json ? m->state_json : "null");
    if (!text.failed)
        ckpt_text_printf(&text, ",\n \"crc32c\": \"%08x\"\n}\n",
                         ckpt_crc32c(0, text.data, text.nbytes));
    if (text.failed) {
        ckpt_text_free(&text);
        return fsdp_err_set(err, FSDP_ENOMEM, "manifest: out of memory");
    }
    *out = text.data;
    *out_nbytes = text.nbytes;
    return FSDP_OK;
}
