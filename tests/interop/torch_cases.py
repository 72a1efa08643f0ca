#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small training runs of PyTorch's FSDP2, as files that tests/core/test_torch_cases.c repeats.

Usage: torch_cases.py write FOLDER     writes FOLDER/<case>.safetensors
       torch_cases.py check FOLDER     runs again and compares with what is there; prints TAP

The model has two blocks (w [5, 6], b [6]) under a root (scale [7]). Its gradients are given: the
loss is the sum of parameter times given value, so that what is compared is what FSDP and the
optimizer do, to the bit where PyTorch's order of operations is ours.

A file holds, with all parameters one after another in the order of PARAMS (P elements):
  init [P], given [steps, ranks, accumulation, P], param [steps, P], norm [steps],
  and of the optimizer after the last step: exp_avg, exp_avg_sq, momentum_buffer, ema [P]
and the settings, as JSON, in __metadata__.case.
"""
import fnmatch
import json
import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

PARAMS = {"scale": (7,), "blocks.0.w": (5, 6), "blocks.0.b": (6,), "blocks.1.w": (5, 6), "blocks.1.b": (6,)}
RANKS = 2
DEFAULTS = {"optimizer": "adamw", "steps": 4, "accumulation": 1, "lr": 0.01, "weight_decay": 0.0}
CASES = {
    "adamw": {"betas": [0.9, 0.95], "weight_decay": 0.1, "clip_grad_norm": 0.5, "accumulation": 2},
    "adamw-groups": {
        "weight_decay": 0.1,
        "groups": ["scale *.b: weight_decay=0", "blocks.1.*: lr=0.002 betas=0.8,0.99", "*.w: weight_decay=0.3"],
    },
    "adamw-clip-inf": {"clip_grad_norm": 0.25, "clip_norm_type": "inf"},
    "adamw-ema": {"ema_decay": 0.9},
    "adamw-ema-fast": {"ema_decay": 0.25},
    "sgd": {"optimizer": "sgd", "lr": 0.1},
    "sgd-momentum": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.05},
    "sgd-dampening": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "dampening": 0.4},
    "sgd-nesterov": {
        "optimizer": "sgd", "lr": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.05,
        "clip_grad_norm": 1.0, "groups": ["*.w: lr_scale=0.5 weight_decay=0.1"],
    },
}


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.empty(PARAMS["blocks.0.w"]))
        self.b = torch.nn.Parameter(torch.empty(PARAMS["blocks.0.b"]))

    def forward(self, given, name):
        return (self.w * given[name + ".w"]).sum() + (self.b * given[name + ".b"]).sum()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.empty(PARAMS["scale"]))
        self.blocks = torch.nn.ModuleList([Block(), Block()])

    def forward(self, given):
        loss = (self.scale * given["scale"]).sum()
        for i, block in enumerate(self.blocks):
            loss = loss + block(given, f"blocks.{i}")
        return loss


def flat(tensors):
    return torch.cat([tensors[name].detach().float().reshape(-1) for name in PARAMS])


def split(vector):
    sizes = [torch.Size(shape).numel() for shape in PARAMS.values()]
    return {n: v.reshape(s) for (n, s), v in zip(PARAMS.items(), vector.split(sizes))}


def full(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def group_settings(spec, name):
    """Settings of the first group that names the parameter."""
    settings = {}
    for group in spec.get("groups", []):
        patterns, pairs = group.split(":")
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns.split()):
            for pair in pairs.split():
                key, value = pair.split("=")
                numbers = [float(x) for x in value.split(",")]
                settings[key] = tuple(numbers) if key == "betas" else numbers[0]
            break
    if "lr_scale" in settings:
        settings["lr"] = settings.pop("lr_scale") * spec["lr"]
    return settings


def make_optimizer(spec, model):
    groups = [{"params": [p], **group_settings(spec, n)} for n, p in model.named_parameters()]
    if spec["optimizer"] == "sgd":
        keys = ("lr", "momentum", "dampening", "nesterov", "weight_decay")
        return torch.optim.SGD(groups, **{k: spec[k] for k in keys if k in spec})
    betas = tuple(spec.get("betas", (0.9, 0.999)))
    return torch.optim.AdamW(groups, lr=spec["lr"], betas=betas, eps=1e-8, weight_decay=spec["weight_decay"])


def run_case(name, spec, rank):
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    total = sum(torch.Size(s).numel() for s in PARAMS.values())
    out = {"init": torch.randn(total, generator=generator)}
    shape = (spec["steps"], RANKS, spec["accumulation"], total)
    out["given"] = torch.randn(shape, generator=generator)

    plain, model = Model(), Model()
    for target in (plain, model):
        target.load_state_dict(split(out["init"]))
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = make_optimizer(spec, model)
    average = None
    if "ema_decay" in spec:
        average = AveragedModel(plain, multi_avg_fn=get_ema_multi_avg_fn(spec["ema_decay"]))

    params, norms = [], []
    for step in range(spec["steps"]):
        for micro in range(spec["accumulation"]):
            model.set_requires_gradient_sync(micro == spec["accumulation"] - 1)
            (model(split(out["given"][step, rank, micro])) / spec["accumulation"]).backward()
        limit = spec.get("clip_grad_norm", float("inf"))
        kind = float(spec.get("clip_norm_type", 2))
        norms.append(full(torch.nn.utils.clip_grad_norm_(model.parameters(), limit, norm_type=kind)))
        optimizer.step()
        optimizer.zero_grad()
        state = {n: full(p) for n, p in model.state_dict().items()}
        params.append(flat(state))
        if average is not None:
            plain.load_state_dict(state)
            average.update_parameters(plain)
    out["param"], out["norm"] = torch.stack(params), torch.stack(norms).float()
    state = {n: optimizer.state[p] for n, p in model.named_parameters()}
    for key in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
        if all(s.get(key) is not None for s in state.values()):
            out[key] = flat({n: full(s[key]) for n, s in state.items()})
    if average is not None:
        out["ema"] = flat(dict(average.module.named_parameters()))
    return out


def rank_main(rank, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    for name, spec in CASES.items():
        spec = {**DEFAULTS, **spec}
        out = run_case(name, spec, rank)
        if rank == 0:
            tensors = {k: v.contiguous() for k, v in out.items()}
            save_file(tensors, f"{folder}/{name}.safetensors", metadata={"case": json.dumps(spec, sort_keys=True)})
    dist.destroy_process_group()


def read(path):
    with safe_open(path, "pt") as f:
        return f.metadata()["case"], {k: f.get_tensor(k) for k in f.keys()}


def check(folder, fresh):
    """Prints a line per case: the settings are equal, and the numbers to rounding."""
    stored = {n[: -len(".safetensors")] for n in os.listdir(folder) if n.endswith(".safetensors")}
    print(f"{'ok' if stored == set(CASES) else 'not ok'} 1 - a file for every case, and no other")
    for i, name in enumerate(CASES):
        problem = "no such file"
        if name in stored:
            (old_spec, old), (new_spec, new) = read(f"{folder}/{name}.safetensors"), read(f"{fresh}/{name}.safetensors")
            problem = "" if old_spec == new_spec and old.keys() == new.keys() else "other settings"
            for key in old if not problem else ():
                if not torch.allclose(old[key], new[key], rtol=1e-6, atol=1e-7):
                    problem = f"{key} differs"
        print(f"{'not ok' if problem else 'ok'} {i + 2} - {name}{': ' + problem if problem else ''}")
    print(f"1..{len(CASES) + 1}")


def main():
    mode, folder = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        mp.spawn(rank_main, args=(scratch,), nprocs=RANKS)
        if mode == "check":
            return check(folder, scratch)
        for name in CASES:
            data = open(f"{scratch}/{name}.safetensors", "rb").read()
            open(f"{folder}/{name}.safetensors", "wb").write(data)


if __name__ == "__main__":
    main()
