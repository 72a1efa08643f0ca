#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps of optimizers that need more than an element at a time, as files that tests/core/test_slot_cases.c repeats.

Usage: slot_cases.py write FOLDER    writes FOLDER/<case>.safetensors
       slot_cases.py check FOLDER    runs again and compares with what is there; prints TAP

Weights and gradients are numbers that both sides make (number()). A file holds what is there after the last step:
the weights, and state.<parameter>.<name> as floats. adamw8bit is bitsandbytes' implementation in PyTorch, with blocks
of 128 elements in place of 256; parameters of fewer than 4096 elements are torch's AdamW, as there.
"""
import importlib.util
import inspect
import json
import os
import sys
import tempfile

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # the same numbers, without a compiler

import bitsandbytes
import numpy
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.optim import _muon

PARAMS = {"embed": (40, 130), "up": (65, 64), "experts": (3, 20, 24), "bias": (6,)}
STEPS = 4
CASES = {
    "adamw8bit": {"lr": 0.01, "weight_decay": 0.1, "betas": [0.9, 0.95]},
    "adafactor": {"lr": 0.05, "weight_decay": 0.1, "betas": [0.9, 0.95]},
    "muon": {"lr": 0.01, "weight_decay": 0.1, "betas": [0.9, 0.95], "momentum": 0.95, "nesterov": True},
}
BLOCK, SMALL = 128, 4096


def number(param, stream):
    """[-0.5, 0.5), with magnitudes over several powers of two; exact in float32."""
    shape = PARAMS[param]
    i = numpy.arange(int(numpy.prod(shape)), dtype=numpy.uint64)
    first = numpy.uint64(list(PARAMS).index(param) * 100003 + stream * 7919)
    mixed = ((i + first) * numpy.uint64(2654435761)) % numpy.uint64(1 << 32)
    mixed = ((mixed ^ (mixed >> numpy.uint64(15))) * numpy.uint64(2246822519)) % numpy.uint64(1 << 32)
    value = (mixed >> numpy.uint64(9)).astype(numpy.float32) / numpy.float32(1 << 23) - numpy.float32(0.5)
    return torch.from_numpy((value * numpy.float32(2.0) ** -(i % numpy.uint64(5)).astype(numpy.float32)).reshape(shape))


def bitsandbytes_step():
    """Its reference in PyTorch, with our size of blocks."""
    path = os.path.join(os.path.dirname(bitsandbytes.__file__), "backends/triton/kernels_optim.py")
    text = open(path).read()
    assert "blocksize = 256" in text
    with tempfile.TemporaryDirectory() as folder:
        ours = os.path.join(folder, "kernels_optim_128.py")
        open(ours, "w").write(text.replace("blocksize = 256", f"blocksize = {BLOCK}"))
        spec = importlib.util.spec_from_file_location("bitsandbytes.backends.triton.kernels_optim_128", ours)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module.optimizer_update_8bit_blockwise_pytorch


def adamw8bit(params, case):
    update = bitsandbytes_step()
    large = [n for n in params if params[n].numel() >= SMALL]
    small = torch.optim.AdamW([params[n] for n in params if n not in large], lr=case["lr"], betas=case["betas"],
                              weight_decay=case["weight_decay"])
    qmap1, qmap2 = (bitsandbytes.functional.create_dynamic_map(signed) for signed in (True, False))
    state = {n: (torch.zeros_like(params[n], dtype=torch.uint8), torch.zeros_like(params[n], dtype=torch.uint8),
                 torch.zeros(-(-params[n].numel() // BLOCK)), torch.zeros(-(-params[n].numel() // BLOCK))) for n in large}

    def step(t):
        small.step()
        for n in large:
            code1, code2, absmax1, absmax2 = state[n]
            update(params[n], params[n].grad, code1, code2, *case["betas"], 0.0, 0.0, 1e-8, t, case["lr"], qmap1, qmap2,
                   absmax1, absmax2, case["weight_decay"], 1.0, False, optimizer_name="adam")

    def named():
        out = {f"state.{n}.{k}": v for n in large for k, v in zip(("state1", "state2", "absmax1", "absmax2"), state[n])}
        return {**out, **{f"state.{n}.{k}": small.state[params[n]][k] for n in params if n not in large
                          for k in ("exp_avg", "exp_avg_sq")}}

    return step, named


def adafactor(params, case):
    optimizer = torch.optim.Adafactor(params.values(), lr=case["lr"], weight_decay=case["weight_decay"])

    def named():
        return {f"state.{n}.{k}": v for n in params for k, v in optimizer.state[params[n]].items()
                if k != "step" and v is not None}

    return lambda t: optimizer.step(), named


def muon(params, case):
    """torch's, whose iteration is ours in float32: a bfloat16 one is not the same on two machines."""
    text = inspect.getsource(_muon._zeropower_via_newtonschulz)
    assert "torch.bfloat16" in text
    exec(text.replace("torch.bfloat16", "torch.float32"), _muon.__dict__)
    matrices = [n for n in params if params[n].ndim == 2]
    large = torch.optim.Muon([params[n] for n in matrices], lr=case["lr"], weight_decay=case["weight_decay"],
                             momentum=case["momentum"], nesterov=case["nesterov"], adjust_lr_fn="match_rms_adamw")
    rest = torch.optim.AdamW([params[n] for n in params if n not in matrices], lr=case["lr"], betas=case["betas"],
                             weight_decay=case["weight_decay"])

    def step(t):
        large.step()
        rest.step()

    def named():
        out = {f"state.{n}.momentum_buffer": large.state[params[n]]["momentum_buffer"] for n in matrices}
        return {**out, **{f"state.{n}.{k}": rest.state[params[n]][k] for n in params if n not in matrices
                          for k in ("exp_avg", "exp_avg_sq")}}

    return step, named


MAKERS = {"adamw8bit": adamw8bit, "adafactor": adafactor, "muon": muon}


def run(name):
    params = {n: torch.nn.Parameter(number(n, 0)) for n in PARAMS}
    step, named = MAKERS[name](params, CASES[name])
    for t in range(1, STEPS + 1):
        for n in params:
            params[n].grad = number(n, t)
        step(t)
    out = {**{n: p.detach() for n, p in params.items()}, **named()}
    return {n: v.float().contiguous() for n, v in out.items()}


def main():
    mode, folder = sys.argv[1:]
    bad = 0
    for i, name in enumerate(CASES):
        tensors, path = run(name), os.path.join(folder, name + ".safetensors")
        if mode == "write":
            save_file(tensors, path, {"case": json.dumps({"steps": STEPS, **CASES[name]})})
            continue
        with safe_open(path, "pt") as f:
            same = set(f.keys()) == set(tensors) and all(
                torch.allclose(f.get_tensor(n), tensors[n], rtol=1e-6, atol=1e-5 if name == "muon" else 1e-7)
                or (n.endswith(("state1", "state2")) and (f.get_tensor(n) != tensors[n]).sum() <= 4) for n in tensors)
        bad |= not same
        print(f"{'ok' if same else 'not ok'} {i + 1} - {name}: the reference still gives what is stored")
    if mode == "check":
        print(f"1..{len(CASES)}")
    sys.exit(bad)


main()
