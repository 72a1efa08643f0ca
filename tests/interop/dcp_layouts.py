# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of many shapes, made and read by torch's own writers and readers.

    dcp_layouts.py make FOLDER             FOLDER/NAME/ckpt and FOLDER/NAME/expected.safetensors
    dcp_layouts.py same FOLDER MERGED      FOLDER/NAME/MERGED holds the tensors expected of each NAME
    dcp_layouts.py load WORLD KIND CKPT EXPECTED [KIND CKPT EXPECTED...]
                                           torch reads each CKPT on WORLD ranks; KIND: dcp or hf
"""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter, HuggingFaceStorageReader
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import ranks


def numbers(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    x = torch.randn(*shape, generator=generator) * 3
    if dtype == torch.bool:
        return x > 0
    if dtype == torch.complex64:
        return torch.complex(x, x.flip(0))
    if dtype == torch.float8_e8m0fnu:
        return x.abs().to(dtype)
    return x.abs().mul(20).to(dtype) if not dtype.is_floating_point else x.to(dtype)


WHOLE = {}  # DTensors made by spread, and what they are parts of: gloo moves few dtypes


def spread(whole, mesh, dim=0):
    """This rank's part of `whole`, cut as fully_shard cuts."""
    parts = torch.chunk(whole, mesh.size(), dim)
    rank = mesh.get_local_rank()
    part = parts[rank] if rank < len(parts) else whole.narrow(dim, whole.size(dim), 0)
    out = DTensor.from_local(part.contiguous(), mesh, [Shard(dim)], run_check=False,
                             shape=whole.shape, stride=whole.stride())
    WHOLE[id(out)] = (out, whole)
    return out


def flat(value, prefix=""):
    """The tensors of a nested state dict under the names that DCP gives them."""
    if isinstance(value, Stateful):
        value = value.state_dict()
    if isinstance(value, dict):
        out = {}
        for key, item in value.items():
            out.update(flat(item, f"{prefix}{key}."))
        return out
    if isinstance(value, list):
        return flat(dict(enumerate(value)), prefix)
    if not torch.is_tensor(value):
        return {}
    if isinstance(value, DTensor):
        value = WHOLE[id(value)][1] if id(value) in WHOLE else value.full_tensor()
    return {prefix[:-1]: value.detach().clone().contiguous()}


def save(folder, name, state, planner=None, **options):
    path = f"{folder}/{name}"
    expected = flat(state)
    if dist.get_rank() == 0:
        os.makedirs(path)
        save_file(expected, f"{path}/expected.safetensors")
    dist.barrier()
    dcp.save(state, storage_writer=FileSystemWriter(f"{path}/ckpt", **options), planner=planner)


class App(Stateful):
    def __init__(self, model, optim):
        self.state = {"model": model, "optim": optim}

    def state_dict(self):
        return self.state


def dtypes():
    names = ("float32 bfloat16 float16 float64 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool "
             "float8_e4m3fn float8_e5m2 float8_e8m0fnu complex64").split()
    return {f"d.{n}": numbers(5, 3, dtype=getattr(torch, n)) for n in names}


def optimizer(params, flattened):
    if flattened:
        state = {f"state.{k}.{x}": v for k, v in params.items()
                 for x in ("exp_avg", "exp_avg_sq")}
        state.update({f"state.{k}.step": torch.tensor(7.0) for k in params})
        state.update({f"param_groups.{k}.lr": 0.1 for k in params})
        return state
    return {"state": {k: {"exp_avg": v, "exp_avg_sq": v, "step": torch.tensor(7.0)}
                      for k, v in params.items()},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.95), "params": list(params)}]}


def make_rank(rank, world, folder):
    mesh = init_device_mesh("cpu", (world,))
    shard = lambda t, dim=0: spread(t, mesh, dim)
    params = {"layers.0.weight": shard(numbers(7, 4)), "norm.weight": shard(numbers(5)),
              "tiny": shard(numbers(1, 6)), "state.w": shard(numbers(4, 2, seed=1)),
              "model.x": shard(numbers(9, 5, 2), 1)}
    tag = f"{world}r-"
    save(folder, tag + "nested", {"model": params, "optim": optimizer(params, False), "step": 7})
    save(folder, tag + "flattened", {**params, "optimizer": optimizer(params, True),
                                     "train_state": {"step": torch.tensor(7)}})
    save(folder, tag + "app", {"app": App(params, optimizer(params, False))}, thread_count=3)
    save(folder, tag + "items", {"model": {k: shard(v) for k, v in dtypes().items()}},
         single_file_per_rank=False)
    save(folder, tag + "objects", {"bytes": b"\0\xff", "text": "a\0b", "list": [numbers(2), "x", None, (1, 2)],
                                   "big": 2**70, "dtype": torch.bfloat16, "epoch": 3, "nan": float("nan"),
                                   "nothing": {"t": torch.zeros(0, 4), "u": torch.zeros(3, 0)}, "w": shard(numbers(4, 2))})
    square = numbers(6, 6)
    odd = {"t": square.t(), "sliced": numbers(8, 5)[2:6, 1:4], "scalar": torch.tensor(3.5),
           "empty": torch.zeros(0, 4), "ended": torch.zeros(3, 0), "expanded": torch.ones(1, 3).expand(4, 3),
           "neg": torch._neg_view(numbers(4, 3)),
           "conj": numbers(4, 3, dtype=torch.complex64).conj(), "four": numbers(2, 3, 4, 5).permute(3, 1, 0, 2)}
    save(folder, tag + "odd", {**odd, "epoch": 3}, planner=DefaultSavePlanner(flatten_state_dict=False))
    if world == 4:
        grid = init_device_mesh("cpu", (2, 2))
        put = lambda t, *p: distribute_tensor(t, grid, list(p))
        save(folder, "hsdp", {"model": {"a": put(numbers(7, 3), Replicate(), Shard(0)),
                                        "b": put(numbers(6, 6), Shard(0), Shard(1)),
                                        "c": put(numbers(5, 5), Replicate(), Replicate())}},
             planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True))


def load_rank(rank, world, jobs):
    mesh = init_device_mesh("cpu", (world,))
    zero = lambda t: spread(torch.zeros_like(t), mesh) if t.dim() else torch.zeros_like(t)
    for kind, path, expected in jobs:
        want = load_file(expected)
        state = {name: zero(value) for name, value in want.items()}
        dcp.load(state, checkpoint_id=path,
                 storage_reader=HuggingFaceStorageReader(path) if kind == "hf" else None)
        for name, value in want.items():
            have = state[name]
            if isinstance(have, DTensor):
                have, value = have.to_local(), spread(value, mesh).to_local()
            assert same_bits(have, value), f"{path}: {name}"


def same_bits(a, b):
    raw = lambda t: t.contiguous().reshape(-1).view(torch.uint8)
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(raw(a), raw(b))


def same(folder, merged):
    names = sorted(os.listdir(folder))
    assert len(names) >= 16, names
    for name in names:
        have, want = load_file(f"{folder}/{name}/{merged}"), load_file(f"{folder}/{name}/expected.safetensors")
        assert set(have) == set(want), f"{name}: {set(have) ^ set(want)}"
        for key, value in want.items():
            assert same_bits(have[key], value), f"{name}: {key}"


if __name__ == "__main__":
    if sys.argv[1] == "make":
        for world in (1, 3, 4):
            ranks.run(make_rank, world, sys.argv[2])
    elif sys.argv[1] == "same":
        same(*sys.argv[2:])
    else:
        jobs = [sys.argv[i:i + 3] for i in range(3, len(sys.argv), 3)]
        ranks.run(load_rank, int(sys.argv[2]), jobs)
