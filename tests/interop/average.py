# SPDX-License-Identifier: Apache-2.0
"""Averages by torch, for average.sh.

average.py make        three models, each in four types
average.py check       of each line of stdin, FILE and three weights and types: is it their average?
"""
import os
import sys

import torch
from safetensors.torch import load_file, save_file

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}
NAMES = "abc"


def model(index, dtype):
    torch.manual_seed(index)
    tensors = {
        "matrix": torch.randn(300, 700, dtype=torch.float64),
        "wide": torch.randn(5, 40000, dtype=torch.float64) * 10.0 ** torch.randint(-6, 4, (5, 1)).double(),
        "vector": torch.randn(1001, dtype=torch.float64),
        "scalar": torch.randn((), dtype=torch.float64),
        "empty": torch.zeros(0, 3, dtype=torch.float64),
    }
    # Many values whose average lies half way between two numbers of a shorter type.
    tensors["ties"] = torch.arange(1, 20001, dtype=torch.float64) / 256 + index / 512
    return {name: t.to(dtype) for name, t in tensors.items()}


def make():
    for key, dtype in TYPES.items():
        save_file(model(0, dtype), f"a-{key}.safetensors")
        torch.save(model(1, dtype), f"b-{key}.pt")
        os.mkdir(f"c-{key}")
        torch.save(model(2, dtype), f"c-{key}/pytorch_model.bin")
    torch.save({k: v for k, v in model(1, torch.float32).items()}, "b-f32.pt")


def round_once(exact, dtype):
    """torch converts double to half types by way of float; a value that this rounds twice is corrected."""
    if dtype in (torch.float32, torch.float64):
        return exact.to(dtype)
    near = exact.to(dtype)
    bits = near.view(torch.int16)
    best, distance = near.clone(), (near.double() - exact).abs()
    for step in (-1, 1):
        other = (bits + step).view(dtype)
        d = (other.double() - exact).abs()
        better = torch.isfinite(d) & ((d < distance) | ((d == distance) & (bits % 2 != 0)))
        best = torch.where(better, other, best)
        distance = torch.where(better, d, distance)
    return best


def check(path, weights, types):
    models = [model(i, TYPES[types[min(i, len(types) - 1)]]) for i in range(3)]
    terms = [(w, m) for w, m in zip(weights, models) if w]
    if len(set(w for w, _ in terms)) == 1:
        terms = [(1.0, m) for _, m in terms]
    have = load_file(path)
    assert set(have) == set(models[0]), set(have)
    dtype = have["matrix"].dtype
    nelem = ndiffer = 0
    for name, got in have.items():
        # The order of the sum is the program's: any order is right, and they differ in the last bit of a double.
        exact = sum((w * m[name].double() for w, m in terms), torch.zeros_like(got, dtype=torch.float64))
        exact /= sum(w for w, _ in terms)
        assert got.dtype == dtype and got.shape == models[0][name].shape, name
        want = round_once(exact, dtype)
        differ = got != want
        nelem += got.numel()
        ndiffer += int(differ.sum())
        slack = 2.0 ** -51 * sum(abs(w) * m[name].double().abs() for w, m in terms)
        off = (got.double() - exact).abs() - (want.double() - exact).abs()
        assert bool((off <= slack).all()), f"{name}: {got[differ][:3]} instead of {want[differ][:3]}"
    assert ndiffer <= nelem * (0.5 if dtype == torch.float64 else 1e-4), f"{ndiffer} of {nelem} differ"
    return f"{nelem} numbers, {ndiffer} of them in the other direction of a tie of doubles"


if sys.argv[1] == "make":
    make()
else:
    for line in sys.stdin:
        path, *rest = line.split()
        try:
            print(f"ok - {line.strip()}: {check(path, [float(x) for x in rest[:3]], rest[3:])}")
        except AssertionError as e:
            print(f"not ok - {line.strip()}: {e}")
