# SPDX-License-Identifier: Apache-2.0
"""What transformers.sh asks of Python; a failed assertion is the answer no."""
import glob
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM


def tensors(path):
    """Every tensor of a file or folder of safetensors."""
    out = {}
    for name in [path] if path.endswith(".safetensors") else glob.glob(path + "/*.safetensors"):
        out.update(load_file(name))
    return out


def same(*paths):
    first = tensors(paths[0])
    assert first, f"{paths[0]} holds nothing"
    for path in paths[1:]:
        other = tensors(path)
        assert set(other) == set(first), f"{path}: {set(other) ^ set(first)}"
        for name, value in other.items():
            assert value.dtype == first[name].dtype, f"{path}: {name}: {value.dtype}"
            assert torch.equal(value, first[name]), f"{path}: {name} differs"
        model, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
        problems = {k: v for k, v in info.items() if v}
        assert not problems, f"{path}: {problems}"
        state = model.state_dict()
        for name, value in first.items():
            assert torch.equal(state[name], value), f"transformers: {path}: {name} differs"


def logits(path, tokens, ours):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    ids = torch.tensor([[int(t) for t in tokens.split(",")]])
    with torch.no_grad():
        want = model(ids).logits[0]
    with open(ours) as f:
        got = torch.tensor([[float(x) for x in line.replace(",", " ").split()] for line in f])
    assert got.shape == want.shape, f"{got.shape} for {want.shape}"
    worst = (got - want).abs().max().item()
    print(f"largest difference {worst:.3g} of logits up to {want.abs().max():.3g}")
    assert worst <= 1e-5 * max(1.0, want.abs().max().item())


def make(path):
    torch.manual_seed(3)
    config = LlamaConfig(vocab_size=300, hidden_size=64, intermediate_size=160, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=128,
                         tie_word_embeddings=False)
    LlamaForCausalLM(config).save_pretrained(path, max_shard_size="200KB")


if __name__ == "__main__":
    {"same": same, "logits": logits, "make": make}[sys.argv[1]](*sys.argv[2:])
