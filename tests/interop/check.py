# SPDX-License-Identifier: Apache-2.0
"""make: models of transformers in right/, and in wrong/ with a mistake each, listed in `models` and `mistakes`.
card FOLDER: reads its model card and configuration."""
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
