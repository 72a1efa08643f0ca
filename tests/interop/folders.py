# SPDX-License-Identifier: Apache-2.0
"""Folders whose config.json leaves out what transformers fills in, or whose files have names that it also reads.

make    writes a folder for each case, with tiny weights
check   compares FOLDER.logits with the logits of transformers on that folder and prints a TAP line for each; for the
        folder `untied`, whose embedding and head differ though config.json ties them, that transformers unties them
"""
import json
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

TOKENS = [0, 1, 66, 17, 42, 42, 9, 5, 30, 3, 61, 7, 8, 2]
BASE = dict(vocab_size=67, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=16,
            max_position_embeddings=48, initializer_range=0.3)
LONG = dict(type="longrope", short_factor=[1.0], long_factor=[2.0])
FOLDERS = {
    "mistral": dict(BASE),
    "mistral-null": dict(BASE, model_type="mistral", head_dim=None, sliding_window=None),
    "ministral": dict(BASE, num_attention_heads=8, head_dim=4, sliding_window=5),
    "ministral3": dict(BASE, num_attention_heads=8),
    "ministral3-null": dict(BASE, model_type="ministral3", num_attention_heads=8, rope_parameters=None),
    "qwen3": dict(BASE, num_attention_heads=32),
    "smollm3": dict(BASE, num_attention_heads=8, no_rope_layers=[0, 1, 1, 0], use_sliding_window=True,
                    sliding_window=5),
    "gemma": dict(BASE),
    "gemma2": dict(BASE, num_attention_heads=8, sliding_window=5),
    "gemma3_text": dict(BASE, num_attention_heads=8, sliding_window=5,
                        rope_parameters=dict(full_attention=dict(rope_theta=500.0)),
                        rope_scaling=dict(rope_type="linear", factor=4.0)),
    "mixtral": dict(BASE, num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": dict(BASE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=20, norm_topk_prob=True),
    "granitemoeshared": dict(BASE, num_local_experts=4, num_experts_per_tok=2),
    "llama": dict(BASE, rope_parameters=dict(rope_theta=500.0), rope_scaling=dict(rope_type="linear", factor=4.0)),
    "phi3": dict(BASE, max_position_embeddings=16384, rope_scaling=LONG),
    "phi3-inner": dict(BASE, model_type="phi3", max_position_embeddings=16384,
                       rope_scaling=dict(LONG, original_max_position_embeddings=2048)),
    "gpt_neox": dict(BASE, rotary_pct=1.0),
    "gpt2": dict(vocab_size=67, n_embd=32, n_layer=2, n_head=2, n_positions=48, initializer_range=0.3),
    "untied": dict(BASE, model_type="llama", tie_word_embeddings=True),
    "head": dict(BASE, model_type="llama", tie_word_embeddings=True),
    "bare": dict(BASE, model_type="qwen2", num_key_value_heads=2, tie_word_embeddings=True),
}


def rename(folder, tensors):
    if folder == "gpt_neox":
        tensors["lm_head.weight"] = tensors.pop("embed_out.weight")
    if folder in ("gpt2", "bare"):
        return {name.split(".", 1)[1]: t for name, t in tensors.items()}
    if folder == "untied":
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 0.5
    if folder == "head":
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    return tensors


def make():
    for folder, keys in FOLDERS.items():
        os.makedirs(folder, exist_ok=True)
        keys = dict(dict(model_type=folder), **keys, pad_token_id=None, bos_token_id=1, eos_token_id=2)
        with open(f"{folder}/config.json", "w") as f:
            json.dump(keys, f)
        torch.manual_seed(5)
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
        save_file(rename(folder, load_file(f"{folder}/model.safetensors")), f"{folder}/model.safetensors",
                  {"format": "pt"})
        with open(f"{folder}/config.json", "w") as f:
            json.dump(keys, f)


def check():
    for folder in FOLDERS:
        eager = dict(attn_implementation="eager")
        if "num_experts_per_tok" in FOLDERS[folder]:
            eager["experts_implementation"] = "eager"
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, **eager)
        if folder == "untied":
            same = torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
            print(f"{'not ok' if same else 'ok'} - {folder}: transformers uses both tensors")
            continue
        with torch.no_grad():
            want = model(torch.tensor([TOKENS])).logits[0]
        try:
            rows = [[float(x) for x in line.split()] for line in open(f"{folder}.logits")]
            far = ((torch.tensor(rows, dtype=torch.float64) - want).abs().max() / want.abs().max()).item()
        except (OSError, ValueError, RuntimeError) as e:
            far = float("inf")
            print("#", e)
        print(f"{'ok' if far < 1e-5 else 'not ok'} - {folder}: logits differ by {far:.1e} of the largest")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
