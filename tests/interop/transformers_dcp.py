# SPDX-License-Identifier: Apache-2.0
"""A small Llama through folders of torch.distributed.checkpoint, for transformers.

    transformers_dcp.py make FOLDER         FOLDER/hf, and FOLDER/app, FOLDER/run/pytorch_model_fsdp_0: torch's
    transformers_dcp.py check HF MERGED...  each MERGED is the model of HF, names and logits
"""
import os
import shutil
import sys

import torch
import torch.distributed.checkpoint as dcp
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM


def make(folder):
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                                         num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=False))
    model.generation_config.max_length = 77
    model.save_pretrained(f"{folder}/hf")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 4, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    model.load_state_dict(LlamaForCausalLM.from_pretrained(f"{folder}/hf").state_dict())
    weights = model.state_dict()
    app = {"app": {"model": weights, "opt": optimizer.state_dict(), "ema": weights}, "step": torch.tensor(5)}
    dcp.save(app, checkpoint_id=f"{folder}/app", no_dist=True)
    dcp.save({"model": weights}, checkpoint_id=f"{folder}/run/pytorch_model_fsdp_0", no_dist=True)
    for name in ("config.json", "generation_config.json"):
        shutil.copy(f"{folder}/hf/{name}", f"{folder}/app/{name}")
        shutil.copy(f"{folder}/hf/{name}", f"{folder}/run/{name}")


def logits(path):
    model, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[kind]:
            print(f"{path}: {kind}: {sorted(info[kind])}")
    with torch.no_grad():
        return model(torch.arange(24).reshape(2, 12)).logits, model.generation_config.max_length


def check(reference, merged):
    want, max_length = logits(reference)
    for path in merged:
        have, its_max_length = logits(path)
        if not torch.equal(have, want) or its_max_length != max_length:
            print(f"{path}: other logits, or another generation_config.json")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    os.environ["HF_HUB_OFFLINE"] = "1"
    make(sys.argv[2]) if sys.argv[1] == "make" else check(sys.argv[2], sys.argv[3:])
