#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What torch, safetensors and transformers' index reader make of our checkpoints. Prints TAP.

Usage: ckpt_torch.py CHECKPOINT EXPECTED MERGED_FILE MERGED_BF16 MERGED_FOLDER
  CHECKPOINT     a step-* folder saved by several ranks
  EXPECTED       raw little-endian bytes of each model tensor: EXPECTED/<number>, EXPECTED/list (JSON)
"""
import json
import os
import sys

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributed.checkpoint import HuggingFaceStorageReader

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F64": torch.float64}
count = failed = 0


def ok(condition, text):
    global count, failed
    count += 1
    failed += not condition
    print(f"{'ok' if condition else 'not ok'} {count} - {text}", flush=True)


def same(a, b):
    """Equal bits: the state is random bytes, so there are NaNs."""
    raw = lambda t: t.contiguous().reshape(-1).view(torch.uint8)
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(raw(a), raw(b))


def expected(folder):
    out = {}
    for i, entry in enumerate(json.load(open(os.path.join(folder, "list")))):
        data = bytearray(open(os.path.join(folder, str(i)), "rb").read())
        flat = torch.frombuffer(data, dtype=DTYPES[entry["dtype"]])
        out[entry["name"]] = (entry["kind"], flat.reshape(entry["shape"]).clone())
    return out


def main():
    step, want_folder, merged, bf16, folder = sys.argv[1:]
    want = expected(want_folder)
    for kind in ("model", "optim"):
        tensors = {n: t for n, (k, t) in want.items() if k == kind}
        state = {n: torch.zeros_like(t) for n, t in tensors.items()}
        dcp.load(state, storage_reader=HuggingFaceStorageReader(os.path.join(step, kind)),
                 no_dist=True)
        bad = [n for n in tensors if not same(state[n], tensors[n])]
        ok(tensors and not bad, f"torch reads {kind}/: {len(tensors)} tensors {bad}")

    model = {n: t for n, (k, t) in want.items() if k == "model"}
    got = load_file(merged)
    bad = [n for n in model if n not in got or not same(got[n], model[n])]
    ok(set(got) == set(model) and not bad, f"safetensors reads the merged file {bad}")
    got = load_file(bf16)
    finite = {n: t for n, t in model.items()}
    bad = []
    for n, t in finite.items():
        a, b = got[n], t.to(torch.float32).to(torch.bfloat16)
        nan = torch.isnan(b)
        if a.dtype != torch.bfloat16 or not torch.equal(torch.isnan(a), nan) or not torch.equal(
                a[~nan], b[~nan]):
            bad.append(n)
    ok(not bad, f"its cast to bfloat16 rounds as torch does {bad}")
    with safe_open(merged, framework="pt") as f:
        ok(f.metadata().get("format") == "pt", "it says format pt, which transformers asks for")

    index = json.load(open(os.path.join(folder, "model.safetensors.index.json")))
    files = {f: load_file(os.path.join(folder, f)) for f in set(index["weight_map"].values())}
    bad = [n for n, t in model.items() if not same(files[index["weight_map"][n]][n], t)]
    total = sum(t.numel() * t.element_size() for t in model.values())
    ok(not bad and len(files) > 1 and set(index["weight_map"]) == set(model),
       f"a folder of {len(files)} files and its index {bad}")
    ok(index["metadata"]["total_size"] == total, "total_size")
    print(f"1..{count}")
    return failed != 0


sys.exit(main())
