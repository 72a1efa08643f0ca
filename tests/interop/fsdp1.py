# SPDX-License-Identifier: Apache-2.0
"""LOCAL_STATE_DICT of torch's FSDP1 (FullyShardedDataParallel, gloo): flat parameters, of each family.

    fsdp1.py FOLDER WORLD    FOLDER/names: the names of all; FOLDER/NAME/{local,dcp,hf}: files of ranks, a distributed checkpoint, and the model's
                             config.json with expected.safetensors, which is the FULL_STATE_DICT
"""
import functools
import json
import os
import sys
import warnings

import torch
import torch.distributed.checkpoint as dcp
import transformers
from safetensors.torch import save_file
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp import ShardingStrategy, StateDictType
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

import ranks

# Sizes that no multiple of 16 bytes divides, so that padding is seen.
SMALL = dict(vocab_size=49, hidden_size=18, intermediate_size=29, num_hidden_layers=2, num_attention_heads=3,
             num_key_value_heads=1, head_dim=6, pad_token_id=0, bos_token_id=1, eos_token_id=2)
FAMILIES = {name: {} for name in ("llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3", "gemma", "gemma2", "gemma3_text",
                                  "olmo2", "olmo3", "granite", "gpt2", "gpt_neox")}
FAMILIES["gpt2"] = dict(vocab_size=49, n_embd=18, n_layer=2, n_head=3, n_positions=11, bos_token_id=1, eos_token_id=2)
FAMILIES["gpt_neox"] = dict(vocab_size=49, hidden_size=18, intermediate_size=29, num_hidden_layers=2, num_attention_heads=3,
                            bos_token_id=1, eos_token_id=2)
Q_PROJ = "model.layers.1.self_attn.q_proj"
# name: family, its settings, how FSDP wraps it
CASES = {f"{family}": (family, {}, {}) for family in FAMILIES}
CASES |= {f"{family}-orig": (family, {}, dict(use_orig_params=True)) for family in FAMILIES}
CASES |= {
    "llama-tied": ("llama", dict(tie_word_embeddings=True), {}),
    "llama-tied-orig": ("llama", dict(tie_word_embeddings=True), dict(use_orig_params=True)),
    "llama-biased": ("llama", dict(attention_bias=True, mlp_bias=True), dict(use_orig_params=True)),
    "gpt2-untied": ("gpt2", dict(tie_word_embeddings=False), {}),
    "neox-unbiased": ("gpt_neox", dict(attention_bias=False), {}),
    "neox-tied-orig": ("gpt_neox", dict(tie_word_embeddings=True), dict(use_orig_params=True)),
    "neox-ignored": ("gpt_neox", {}, dict(ignored="lm_head")),
    "llama-bf16": ("llama", {}, dict(use_orig_params=True, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))),
    "llama-whole": ("llama", {}, dict(auto_wrap_policy=None)),
    "llama-nested": ("llama", {}, dict(nested=True)),
    "llama-sizes": ("llama", {}, dict(auto_wrap_policy=functools.partial(size_based_auto_wrap_policy, min_num_params=600))),
    "qwen3-zero2": ("qwen3", {}, dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)),
    "llama-ignored": ("llama", {}, dict(ignored=Q_PROJ)),
    "llama-ignored-orig": ("llama", {}, dict(ignored=Q_PROJ, use_orig_params=True)),
    "llama-compiled": ("llama", {}, dict(use_orig_params=True, compiled=True)),
}
CASES |= {f"{family}-absent": (family, dict(absent=True, num_attention_heads=64, hidden_size=128), {})
          for family in ("mistral", "qwen2", "qwen3", "smollm3", "gemma", "gemma2", "gemma3_text")}
# Keys for which transformers has values, other than those that follow from the sizes.
ABSENT = ("num_key_value_heads", "head_dim", "tie_word_embeddings")


def leave_out(path):
    with open(path) as f:
        config = json.load(f)
    with open(path, "w") as f:
        json.dump({k: v for k, v in config.items() if k not in ABSENT}, f)


def save(rank, world, folder, name):
    family, settings, wrapping = CASES[name]
    base = FAMILIES[family] or SMALL
    settings = {**base, **settings}
    absent = settings.pop("absent", False)
    config = transformers.AutoConfig.for_model(family, **{k: v for k, v in settings.items() if not absent or k not in ABSENT})
    torch.manual_seed(len(name) + world)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    wrapping = dict(wrapping)
    layers = {type(module) for path, module in model.named_modules() if path.split(".")[-1] == "0"}
    if wrapping.pop("nested", False):
        layers |= {type(module) for path, module in model.named_modules() if path.endswith(".mlp")}
    compiled = wrapping.pop("compiled", False)
    if ignored := wrapping.pop("ignored", None):
        wrapping["ignored_modules"] = [model.get_submodule(ignored)]
    wrapping.setdefault("auto_wrap_policy", functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=layers))
    if compiled:
        for i, layer in enumerate(model.model.layers):
            model.model.layers[i] = torch.compile(layer)
    full_names = [n.replace("_orig_mod.", "") for n in model.state_dict()]
    model = FSDP(model, device_id=torch.device("cpu"), **wrapping)
    out = f"{folder}/{name}"
    if rank == 0:
        for part in ("local", "hf"):
            os.makedirs(f"{out}/{part}")
        config.save_pretrained(f"{out}/hf")
        if absent:
            leave_out(f"{out}/hf/config.json")
    torch.distributed.barrier()
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        local = model.state_dict()
        torch.save(local, f"{out}/local/pytorch_model_fsdp_rank{rank}.bin")
        dcp.save({"model": local}, checkpoint_id=f"{out}/dcp")
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)):
        full = model.state_dict()
    if rank == 0:
        full = {key.replace("_orig_mod.", ""): value for key, value in full.items()}
        assert sorted(full) == sorted(full_names), name
        if family == "gpt_neox":  # the name in files
            full["embed_out.weight"] = full.pop("lm_head.weight")
        if config.tie_word_embeddings:
            del full["embed_out.weight" if family == "gpt_neox" else "lm_head.weight"]
        save_file({key: value.contiguous() for key, value in full.items()}, f"{out}/hf/expected.safetensors")


def work(rank, world, folder):
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    for name in CASES:
        save(rank, world, folder, name)


if __name__ == "__main__":
    with open(f"{sys.argv[1]}/names", "w") as names:
        print(*CASES, file=names)
    ranks.run(work, int(sys.argv[2]), sys.argv[1])
