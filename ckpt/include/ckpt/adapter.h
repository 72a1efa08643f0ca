/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adapter.h: low-rank adapters (LoRA) in the files of PEFT: adapter_config.json, and
 * adapter_model.safetensors, whose tensors have the model's names behind a prefix:
 *
 *     base_model.model.<module>.lora_A.weight               (r, in)
 *     base_model.model.<module>.lora_B.weight               (out, r)
 *     base_model.model.<module>.lora_magnitude_vector       (out), of DoRA
 *     base_model.model.<module>.weight                      a module that was trained whole
 *
 * Of experts, whose weights PEFT has as parameters (experts, ...) of one module, they are
 *
 *     base_model.model.<module>.base_layer.lora_A.weight    (experts r, in), of gate_up_proj
 *     base_model.model.<module>.base_layer.lora_B.weight    (out, r experts), experts innermost
 *     base_model.model.<module>.lora_{A,B}.weight           of down_proj, or of the only one
 */
#ifndef CKPT_ADAPTER_H
#define CKPT_ADAPTER_H

#include "ckpt/ckpt.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CKPT_ADAPTER_CONFIG "adapter_config.json"
#define CKPT_ADAPTER_TENSORS "adapter_model.safetensors"
#define CKPT_ADAPTER_PREFIX "base_model.model."

/* What adapter_config.json says. Texts are the caller's, or live as long as the adapter. */
struct ckpt_adapter_spec {
    int r;
    double alpha, dropout;
    bool rslora;      /* multiplied by alpha / sqrt(r), not alpha / r */
    bool dora;        /* with magnitudes */
    bool transposed;  /* the model's matrices are (in, out), as GPT-2's are */
    const char *base; /* where the model is that it belongs to; NULL: not said */
    /* Names of modules, from behind the number of their layer on: "self_attn.q_proj". */
    const char *const *targets, *const *modules_to_save;
    int ntargets, nmodules;
    /* PEFT's target_parameters, of experts: names, or their ends: "mlp.experts.gate_up_proj". */
    const char *const *parameters;
    int nparameters;
    /* PEFT's rank_pattern and alpha_pattern, JSON objects; NULL: all have r and alpha. */
    const char *rank_pattern, *alpha_pattern;
};
/* What B A is multiplied with. Pure. */
double ckpt_adapter_scale(const struct ckpt_adapter_spec *spec);
/* Where in the name of a tensor the module begins that has an adapter, behind the number of its
 * layer where it has one, and its bytes; NULL where it is no lora_A. Pure. */
const char *ckpt_adapter_target(size_t *nbytes, const char *name);
/* Are these the adapters of a run, without the model that they belong to? Local. */
bool ckpt_holds_adapters(const struct ckpt *ckpt);

/* Is this the module of experts' parameters that have adapters, where the name of a lora_A has it?
 * Pure. */
bool ckpt_adapter_is_expert(const struct ckpt_adapter_spec *spec, const char *module,
                            size_t nbytes);

/* PEFT names weights as transformers does, where the files of some models have other names: the
 * stored name of such a weight, and back. False: both are the same. Pure. */
bool ckpt_adapter_stored_name(char *stored, size_t stored_nbytes, const char *weight);
bool ckpt_adapter_module_name(char *weight, size_t weight_nbytes, const char *stored);

/* The name of the parameter of experts whose A is module.lora_A.weight; false: it is of none. Pure.
 */
bool ckpt_adapter_parameter(char *parameter, size_t parameter_nbytes,
                            const struct ckpt_adapter_spec *spec, const char *module,
                            size_t nbytes);

/* ---- reading --------------------------------------------------------------------------------- */

struct ckpt_adapter;

/* A folder of both files, a checkpoint that a run with adapters saved, or a folder of such, of
 * which the newest counts; also addresses. FSDP_EUNSUPPORTED names a key that asks for what is not
 * LoRA as above. Local, blocks. */
int ckpt_adapter_open(struct ckpt_adapter **out, const char *path, struct fsdp_err *err);
/* NULL is allowed. */
void ckpt_adapter_close(struct ckpt_adapter *adapter);
const struct ckpt_adapter_spec *ckpt_adapter_spec(const struct ckpt_adapter *adapter);
/* Of one module, by its whole name in transformers ("model.layers.0.self_attn.q_proj"), or of a
 * parameter of experts (".mlp.experts.gate_up_proj"): what rank_pattern and alpha_pattern say.
 * Local. */
struct ckpt_rank {
    int r;
    double scale;
};
struct ckpt_rank ckpt_adapter_rank(const struct ckpt_adapter *adapter, const char *module);
/* Its tensors, under the names of the file. Lives as long as the adapter. */
struct ckpt *ckpt_adapter_ckpt(const struct ckpt_adapter *adapter);
/* Its tensor of a parameter, which is named as the model's files name it, or transformers; NULL:
 * there is none. Lives as long as the adapter. Local. */
const struct ckpt_tensor *ckpt_adapter_tensor(const struct ckpt_adapter *adapter,
                                              const char *parameter);

/* Its folder, or that of the checkpoint that it is of. Lives as long as the adapter. */
const char *ckpt_adapter_folder(const struct ckpt_adapter *adapter);
/* PEFT's file of an adapter of the head has the head, too (lm_head.base_layer.weight). Is this
 * tensor such a one? weight: the name of the model's. Pure. */
bool ckpt_adapter_is_base(char *weight, size_t weight_nbytes, const char *name);
/* FSDP_EMISMATCH names such a tensor that is another than the model's. Local, blocks. */
int ckpt_adapter_check_base(struct ckpt_adapter *adapter, struct ckpt *model, struct fsdp_err *err);
/* FSDP_EINVAL names the first tensor, and its file, that holds what is no finite number. Reads all
 * of the file. Local, blocks. */
int ckpt_adapter_check_values(struct ckpt_adapter *adapter, struct fsdp_err *err);

/* ---- merging --------------------------------------------------------------------------------- */

/* Each a path as above, or PATH=WEIGHT: what is added is multiplied by WEIGHT. Where a path exists
 * that ends so, it is that; where both do, FSDP_EINVAL. Local, blocks. */
int ckpt_adapters_open(struct ckpt_adapters **out, const char *const *paths, int npaths,
                       struct fsdp_err *err);
/* NULL is allowed. */
void ckpt_adapters_close(struct ckpt_adapters *adapters);
/* FSDP_EMISMATCH names a tensor of an adapter that fits none of the model's, FSDP_EUNSUPPORTED a
 * module that was trained whole or has magnitudes, of one of several adapters or of one with a
 * weight, FSDP_EINVAL a tensor that holds what is no finite number. An adapter that a run trained
 * on another model is logged as a warning. The model, whose weights magnitudes need, is borrowed
 * until close. Local, blocks. */
int ckpt_adapters_check(struct ckpt_adapters *adapters, struct ckpt *model, struct fsdp_err *err);
/* Does one of them multiply the sums (DoRA), so that it needs whole weights of the model? Local. */
bool ckpt_adapters_scale(const struct ckpt_adapters *adapters);
/* Do they change the model's tensor of this name? NULL for adapters: no. Local. */
bool ckpt_adapters_change(const struct ckpt_adapters *adapters, const char *weight);
/* After ckpt_adapters_check. values: a box of a tensor of the model, in its dtype, row-major: some
 * whole rows, or a part of one. They become what PEFT's merge_and_unload makes of them. FSDP_EINVAL
 * names the tensor where its dtype cannot hold them. Thread safe. Blocks. */
int ckpt_adapters_apply(struct ckpt_adapters *adapters, const struct fsdp_tensor *weight,
                        const struct fsdp_box *box, void *values, struct fsdp_err *err);
/* The folder of adapter i, as ckpt_adapter_folder, and its tensors; NULL behind the last one. */
const char *ckpt_adapters_folder(const struct ckpt_adapters *adapters, int i,
                                 const struct ckpt **ckpt);
int ckpt_adapters_count(const struct ckpt_adapters *adapters);
/* The model that adapter i was made for, as its configuration names it; NULL: it does not. */
const char *ckpt_adapters_base(const struct ckpt_adapters *adapters, int i);
/* Adds to a hash which they are. Local, blocks. */
int ckpt_adapters_hash(uint64_t *hash, const struct ckpt_adapters *adapters, struct fsdp_err *err);

/* ---- writing --------------------------------------------------------------------------------- */

/* The text of adapter_config.json; freed with fsdp_free. Local. */
int ckpt_adapter_config(char **out, const struct ckpt_adapter_spec *spec, struct fsdp_err *err);

/* adapter_model.safetensors, a local file that is replaced. Names are those of parameters, as the
 * model's files have them. Then the tensors' bytes in this order, and close, which says whether all
 * was written. Local, block. */
struct ckpt_adapter_file;
int ckpt_adapter_file_open(struct ckpt_adapter_file **out, const char *path,
                           const struct fsdp_tensor *tensors, int ntensors, struct fsdp_err *err);
int ckpt_adapter_file_put(struct ckpt_adapter_file *file, const void *data, size_t nbytes,
                          struct fsdp_err *err);
int ckpt_adapter_file_close(struct ckpt_adapter_file *file, struct fsdp_err *err);

#ifdef __cplusplus
}
#endif
#endif
