# SPDX-License-Identifier: Apache-2.0
"""What transformers.sh asks of Python; a failed assertion is the answer no."""
import glob

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, pipeline

import each


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


def byte_tokens(path, prompt, ours):
    """A folder whose tokens are bytes: ids are their values, and a pipeline writes what we write."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert len(tokenizer) == 256, len(tokenizer)
    for text in [prompt, "", " a  b\n\t's don't 12 ", "".join(map(chr, range(0x300))),
                 "\u4eca\u65e5 \U0001f469\u200d\U0001f4bb e\u0301 \ufeff"]:
        ids = tokenizer(text)["input_ids"]
        assert ids == list(text.encode()), f"{text!r}: {ids}"
        assert tokenizer.decode(ids) == text, f"{text!r}: {tokenizer.decode(ids)!r}"
    write = pipeline("text-generation", model=path, dtype=torch.float32, device="cpu")
    got = write(prompt, max_new_tokens=40, do_sample=False)[0]["generated_text"]
    with open(ours, newline="") as f:
        want = f.read()
    print(f"{got!r}, ours {want!r}")
    assert got.startswith(prompt) and len(got.encode()) == len(prompt) + 40
    assert got.rstrip("\n") == want.rstrip("\n")


def make(path):
    torch.manual_seed(3)
    config = LlamaConfig(vocab_size=300, hidden_size=64, intermediate_size=160, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=128,
                         tie_word_embeddings=False)
    LlamaForCausalLM(config).save_pretrained(path, max_shard_size="200KB")


if __name__ == "__main__":
    each.run(same=same, logits=logits, byte_tokens=byte_tokens, make=make)
