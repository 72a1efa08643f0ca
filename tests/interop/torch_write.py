# SPDX-License-Identifier: Apache-2.0
"""What torch and transformers load of files that ckpt-merge wrote. Run in the folder of the inputs."""
import os
import sys
import zipfile

import torch
import transformers
from safetensors.torch import load_file
from torch.utils.serialization import config

DTYPES = ["float32", "bfloat16", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
          "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"]


def make():
    torch.manual_seed(1)
    state = {}
    for name in reversed(DTYPES):  # neither sorted nor by size
        raw = torch.randint(0, 2 if name == "bool" else 100, (5, 7)).to(torch.float32)
        state["x." + name] = raw.to(getattr(torch, name))
    state["scalar"] = torch.tensor(3.5)
    state["empty"] = torch.empty(0, 4)
    state["base"] = torch.randn(6, 4)
    state["same"] = state["base"]
    state["transposed"] = state["base"].t()
    state["part"] = state["base"][2:4]
    torch.save(state, "state.pt")
    for tied, name in ((True, "tied"), (False, "model")):
        shape = transformers.LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, tie_word_embeddings=tied)
        transformers.LlamaForCausalLM(shape).save_pretrained(name)
    # As older transformers saved it: both names, one storage.
    model = transformers.LlamaForCausalLM.from_pretrained("tied")
    torch.save(model.state_dict(), "tied/pytorch_model.bin")
    os.remove("tied/model.safetensors")


def bits(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)


def equal(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def check(text, good):
    print(("ok - " if good else "not ok - ") + text)


def load(path, **kw):
    return torch.load(path, weights_only=True, **kw)


def compare(text, path, want, ordered=True):
    for kw in ({}, {"mmap": True}):
        got = load(path, **kw)
        same = list(got) == list(want) if ordered else set(got) == set(want)
        same = same and all(equal(got[k], want[k]) for k in want)
        check(f"{text}: torch.load({kw}) has every bit" + (", in order" if ordered else ""), same)


def check_all():
    state = load("state.pt")
    compare("every dtype", "state-again.pt", state)
    compare("cast", "state-half.pt",
            {k: v.to(torch.bfloat16) if v.is_floating_point() else v for k, v in state.items()})
    again = load("state-again.pt")
    where = {k: v.untyped_storage().data_ptr() for k, v in again.items()}
    check("tied tensors share a storage, other views do not",
          where["base"] == where["same"] and len({where[k] for k in ("base", "transposed", "part")}) == 3)
    check("Python's zipfile finds every checksum right",
          all(zipfile.ZipFile(p).testzip() is None for p in ("state-again.pt", "model.pth")))
    with config.patch("load.calculate_storage_offsets", True):
        compare("with computed offsets", "state-again.pt", state)
    compare("a model", "model.pth", load_file("model/model.safetensors"))
    compare("a tied model", "tied.pt", load("tied/pytorch_model.bin"))
    compare("a tied model from three ranks", "tied-native.bin", load("tied/pytorch_model.bin"), ordered=False)
    for source, folder in (("model", "model-bin"), ("model", "model-split"), ("tied", "tied-bin")):
        want = transformers.AutoModelForCausalLM.from_pretrained(source).state_dict()
        model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        got = model.state_dict()
        check(f"transformers loads {folder}: {list(got)[-1]}",
              list(got) == list(want) and all(equal(got[k], want[k]) for k in want) and not info["missing_keys"] and
              not info["unexpected_keys"])


make() if sys.argv[1] == "make" else check_all()
