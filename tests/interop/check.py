# SPDX-License-Identifier: Apache-2.0
"""make: models of transformers in right/, and in wrong/ with a mistake each, listed in `models` and `mistakes`.
card FOLDER: reads its model card and configuration."""
import json
import os
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from families import COMMON, MODELS

# Without the biases that the models of families.py have, and with what those leave out.
PLAIN = dict(COMMON, hidden_size=40)
MORE = {
    "llama-plain": ("llama", PLAIN),
    "llama-tied": ("llama", dict(PLAIN, tie_word_embeddings=True)),
    "gemma2-untied": ("gemma2", dict(COMMON, head_dim=10, tie_word_embeddings=False)),
    "qwen3-plain": ("qwen3", dict(COMMON, head_dim=14)),
    "gpt_neox-without-bias": ("gpt_neox", dict(MODELS["gpt_neox"], attention_bias=False)),
    "gpt2-default-mlp": ("gpt2", {k: v for k, v in MODELS["gpt2"].items() if k != "n_inner"}),
    "gpt_neox-lm_head": ("gpt_neox", MODELS["gpt_neox"]),
    "qwen3_moe-dense-layers": ("qwen3_moe", dict(MODELS["qwen3_moe"], mlp_only_layers=[1])),
    "qwen3_moe-sparse-step": ("qwen3_moe", dict(MODELS["qwen3_moe"], decoder_sparse_step=2)),
}
# Keys that a config.json may leave out, for which transformers has values: none of these sizes gives them by itself.
OPTIONAL = ("num_key_value_heads", "head_dim", "num_experts", "num_local_experts", "shared_intermediate_size", "n_inner",
            "tie_word_embeddings", "attention_bias", "mlp_bias", "sliding_window", "num_experts_per_tok", "rope_parameters",
            "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "attn_logit_softcapping", "final_logit_softcapping")
SIZES = dict(vocab_size=256, hidden_size=128, intermediate_size=24, num_hidden_layers=2, num_attention_heads=64,
             max_position_embeddings=48)
IMAGES = ("vocab_size", "num_attention_heads", "num_hidden_layers")  # of gemma3's text_config, as published


def default_keys(family):
    if family == "gpt2":
        return dict(vocab_size=256, n_embd=36, n_layer=2, n_head=3, n_positions=48)
    if family == "gemma3":
        text = {k: v for k, v in SIZES.items() if k not in IMAGES} | dict(hidden_size=32)
        return dict(text_config=text, vision_config=MODELS["gemma3"]["vision_config"])
    # ministral needs a head_dim; the others have what GGUF can carry.
    more = {"ministral": dict(head_dim=2), "qwen3_moe": dict(moe_intermediate_size=20, norm_topk_prob=True),
            "gpt_oss": dict(rope_parameters=dict(rope_type="default", rope_theta=1000.0))}
    return dict(SIZES, **more.get(family, {}))


def make_default(family):
    """right/FAMILY-full, and right/FAMILY-absent with the same weights, whose config.json lacks these keys."""
    full, absent = f"right/{family}-full", f"right/{family}-absent"
    config = AutoConfig.for_model(family, bos_token_id=1, eos_token_id=2, pad_token_id=None, **default_keys(family))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(full)
    shutil.copytree(full, absent)
    path = os.path.join(absent, "config.json")
    with open(path) as f:
        data = json.load(f)
    section = data.get("text_config", data)
    for key in OPTIONAL + (IMAGES if section is not data else ()):
        if key not in default_keys(family):
            section.pop(key, None)
            data.pop(key, None)
    with open(path, "w") as f:
        json.dump(data, f)
    with torch.device("meta"):
        again = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(absent))
    shapes = [{k: v.shape for k, v in m.state_dict().items()} for m in (model, again)]
    assert shapes[0] == shapes[1], family


def spoil(source, kind, name):
    folder = f"wrong/{os.path.basename(source)}-{kind}"
    shutil.copytree(source, folder)
    path = os.path.join(folder, "model.safetensors")
    tensors = load_file(path)
    if kind == "missing":
        del tensors[name]
    elif kind == "other":
        tensors[name] = torch.zeros(3)
    else:
        tensors[name] = torch.zeros([n + 1 for n in tensors[name].shape])
    save_file(tensors, path, metadata={"format": "pt"})


def rename_head(folder):
    """A name that transformers reads, too."""
    path = os.path.join(folder, "model.safetensors")
    tensors = load_file(path)
    tensors["lm_head.weight"] = tensors.pop("embed_out.weight")
    save_file(tensors, path, metadata={"format": "pt"})
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys")), info
    assert torch.equal(model.lm_head.weight, tensors["lm_head.weight"])


def make():
    cases = {family: (family, keys) for family, keys in MODELS.items()} | MORE
    with open("models", "w") as models, open("mistakes", "w") as mistakes:
        for name, (family, keys) in cases.items():
            torch.manual_seed(1)
            keys = {k: v for k, v in keys.items() if v is not None}
            config = AutoConfig.for_model(family, bos_token_id=1, eos_token_id=2, pad_token_id=None, **keys)
            AutoModelForCausalLM.from_config(config).save_pretrained(f"right/{name}")
            if name.endswith("-lm_head"):
                rename_head(f"right/{name}")
            print(name, file=models)
            if name in MORE:
                continue
            text = [n for n in load_file(f"right/{name}/model.safetensors") if "vision" not in n and "multi" not in n]
            prefix = "language_model." if family == "gemma3" else ""
            for kind, tensor in (("missing", text[len(text) // 2]), ("other", prefix + "model.more.weight"),
                                 ("shape", text[-1])):
                spoil(f"right/{name}", kind, tensor)
                print(name, kind, tensor, file=mistakes)
        for family in MODELS:
            make_default(family)
            print(f"{family}-full\n{family}-absent", file=models)


def card(folder):
    from huggingface_hub import ModelCard
    read = ModelCard.load(os.path.join(folder, "README.md"))
    data = read.data.to_dict()
    assert data["library_name"] == "transformers" and data["pipeline_tag"] == "text-generation", data
    assert data["tags"] == ["llama"], data
    assert "| family | llama |" in read.text, read.text
    assert AutoConfig.from_pretrained(folder).dtype == torch.bfloat16
    assert AutoModelForCausalLM.from_pretrained(folder).dtype == torch.bfloat16


make() if sys.argv[1] == "make" else card(sys.argv[2])
