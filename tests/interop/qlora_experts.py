# SPDX-License-Identifier: Apache-2.0
"""Adapters on mixtures of experts whose weights are in NF4, against bitsandbytes, PEFT, transformers and torch in fp64.

make FAMILY...       the tiny model of each (families.py) in bf16, in folder FAMILY; the same with what bitsandbytes leaves
                     of each linear map of the layers, and of each tensor of experts in its file, in FAMILY.decoded, fp32;
                     and an adapter, in FAMILY.experts.start
check KIND RUN FAMILY...  the checks of adapters.py of the run, where the reference is FAMILY.decoded
"""
import shutil

import bitsandbytes.functional as bnb
import torch
import transformers
from safetensors.torch import load_file, save_file

import adapters
import each
import families

load_as_stored = families.load


def is_packed(name, value):
    """The matrices of layers; not routers, nor the biases of experts, which are as many rows."""
    router = name.endswith(("gate.weight", "router.weight", "router.layer.weight"))
    return ".layers." in name and value.ndim > 1 and not router and not name.endswith("bias")


def decoded(value):
    """Of the flattened tensor, as blocks run over it."""
    packed, how = bnb.quantize_4bit(value.float().flatten(), blocksize=64, compress_statistics=True, quant_type="nf4")
    return bnb.dequantize_4bit(packed, how).reshape(value.shape)


def make(*names):
    families.make(*names)
    for family in names:
        load_as_stored(family, torch.bfloat16).save_pretrained(family)
        shutil.copytree(family, f"{family}.decoded")
        state = load_file(f"{family}/model.safetensors")
        packed = [name for name, value in state.items() if is_packed(name, value)]
        assert any("expert" in name or "input_linear" in name for name in packed), packed
        state = {name: decoded(value) if name in packed else value.float() for name, value in state.items()}
        save_file(state, f"{family}.decoded/model.safetensors", metadata={"format": "pt"})
    adapters.make("experts", *names)


def check(kind, run, *names):
    families.load = lambda family, dtype: load_as_stored(f"{family}.decoded", dtype)
    families.is_mixture = lambda family: True
    adapters.check(kind, run, *names)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    each.run(make=make, check=check)
