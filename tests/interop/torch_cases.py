#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small training runs of PyTorch's FSDP2 and FSDP1, as files that tests/core/test_torch_cases.c repeats.

Usage: torch_cases.py write FOLDER [CASE...]    writes FOLDER/<case>.safetensors
       torch_cases.py check FOLDER              runs again and compares with what is there; prints TAP

The model has two blocks (w [5, 6], b [6]) under a root (scale [7]). Its gradients are given: the
loss is the sum of parameter times given value, so that what is compared is what FSDP and the
optimizer do, to the bit where PyTorch's order of operations is ours.

A file holds, with all parameters one after another in the order of PARAMS (P elements):
  init [P], given [steps, ranks, accumulation, P], param [steps, P], norm [steps],
  of the optimizer after the last step: exp_avg, exp_avg_sq, momentum_buffer, z, ema [P],
  the loss scale after every step: scale [steps], what summon_full_params showed: summoned [2, P]
and the settings, as JSON, in __metadata__.case. Of schedulefree param is x. Settings that are not the optimizer's:
  fsdp1           FullyShardedDataParallel instead of fully_shard
  frozen          patterns of parameters without a gradient
  tied            blocks.1.w is blocks.0.w
  unused          [step, rank] in which blocks.1.w takes no part in the loss (and is reduced all the same)
  param_dtype, reduce_dtype, overrides ("MODULE KEY=VALUE...", of single units)
  factor          set_gradient_divide_factor
  scaler          ShardedGradScaler; at step 2 rank 1 has a gradient that is not finite
  hook            register_comm_hook(bf16_compress_hook or fp16_compress_hook)
  summon          at this step, before the optimizer's: weights and gradients are summoned, and
                  the weights of blocks.0 doubled and written back
"""
import fnmatch
import json
import os
import sys
import tempfile
import warnings

import lion_pytorch
import schedulefree
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed.algorithms._comm_hooks import default_hooks
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import ranks

PARAMS = {"scale": (7,), "blocks.0.w": (5, 6), "blocks.0.b": (6,), "blocks.1.w": (5, 6), "blocks.1.b": (6,)}
RANKS = 2
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
HOOKS = {"bfloat16": default_hooks.bf16_compress_hook, "float16": default_hooks.fp16_compress_hook}
INFINITE_STEP = 2
SGD = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9}
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


GROUPS = ["scale *.b: weight_decay=0", "blocks.1.*: lr_scale=0.5 betas=0.8,0.97", "*.w: weight_decay=0.3"]
CASES |= {
    "adam": {"optimizer": "adam", "weight_decay": 0.1, "clip_grad_norm": 0.5, "groups": GROUPS},
    "lion": {"optimizer": "lion", "betas": [0.9, 0.99], "weight_decay": 0.1, "groups": GROUPS, "accumulation": 2},
    "schedulefree": {"optimizer": "schedulefree", "weight_decay": 0.1, "groups": GROUPS, "steps": 6},
    "frozen": {"frozen": ["*.0.b", "blocks.1.w"], "weight_decay": 0.1, "clip_grad_norm": 0.5},
    "tied": {"tied": True, "accumulation": 2, "weight_decay": 0.1, "clip_grad_norm": 0.5},
    "unused": {"unused": [[1, 1], [2, 0], [3, 0], [3, 1]], "weight_decay": 0.1},
    "factor": {**SGD, "factor": 3.0, "accumulation": 2},
    "mixed-bf16": {**SGD, "param_dtype": "bfloat16", "reduce_dtype": "float32"},
    "reduce-bf16": {**SGD, "param_dtype": "bfloat16", "reduce_dtype": "bfloat16"},
    "reduce-bf16-factor": {**SGD, "param_dtype": "bfloat16", "reduce_dtype": "bfloat16", "factor": 8.0},
    "reduce-fp16": {**SGD, "param_dtype": "float16", "reduce_dtype": "float16"},
    "reduce-fp16-factor": {**SGD, "param_dtype": "float16", "reduce_dtype": "float16", "factor": 16.0},
    "overrides": {**SGD, "overrides": ["blocks.0 param_dtype=bfloat16 reduce_dtype=bfloat16",
                                       "blocks.1 reshard_after_forward=false"]},
    "hook-bf16": {**SGD, "fsdp1": True, "hook": "bfloat16"},
    "hook-fp16": {**SGD, "fsdp1": True, "hook": "float16"},
    "summon": {**SGD, "fsdp1": True, "summon": 1},
    "scaler": {**SGD, "fsdp1": True, "steps": 6, "param_dtype": "float16", "reduce_dtype": "float16",
               "scaler": {"init": 1024.0, "growth": 2.0, "backoff": 0.5, "interval": 2}},
}


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.empty(PARAMS["blocks.0.w"]))
        self.b = torch.nn.Parameter(torch.empty(PARAMS["blocks.0.b"]))

    def forward(self, given, name, uses_w=True):
        w, b = given[name + ".w"].to(self.w.dtype), given[name + ".b"].to(self.b.dtype)
        loss = (self.b * b).sum()
        return loss + (self.w * w).sum() if uses_w else loss


class Model(torch.nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.empty(PARAMS["scale"]))
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        if tied:
            self.blocks[1].w = self.blocks[0].w

    def forward(self, given, uses_last=True):
        loss = (self.scale * given["scale"].to(self.scale.dtype)).sum()
        for i, block in enumerate(self.blocks):
            loss = loss + block(given, f"blocks.{i}", uses_last or i == 0)
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
    named = [(plain_name(n), p) for n, p in model.named_parameters() if p.requires_grad]
    groups = [{"params": [p], **group_settings(spec, n)} for n, p in named]
    if spec["optimizer"] == "sgd":
        keys = ("lr", "momentum", "dampening", "nesterov", "weight_decay")
        return torch.optim.SGD(groups, **{k: spec[k] for k in keys if k in spec})
    betas = tuple(spec.get("betas", (0.9, 0.999)))
    if spec["optimizer"] == "lion":
        return lion_pytorch.Lion(groups, lr=spec["lr"], betas=betas, weight_decay=spec["weight_decay"])
    if spec["optimizer"] == "schedulefree":
        return schedulefree.AdamWScheduleFree(groups, lr=spec["lr"], betas=betas, eps=1e-8, foreach=False,
                                              weight_decay=spec["weight_decay"])
    if spec["optimizer"] == "adam":
        return torch.optim.Adam(groups, lr=spec["lr"], betas=betas, eps=1e-8, weight_decay=spec["weight_decay"])
    return torch.optim.AdamW(groups, lr=spec["lr"], betas=betas, eps=1e-8, weight_decay=spec["weight_decay"])


def shard_fsdp2(spec, model):
    overrides = {}
    for text in spec.get("overrides", []):
        name, *pairs = text.split()
        overrides[name] = dict(pair.split("=") for pair in pairs)

    def shard(module, name):
        own = {**spec, **overrides.get(name, {})}
        policy = MixedPrecisionPolicy(param_dtype=DTYPES[own.get("param_dtype", "float32")],
                                      reduce_dtype=DTYPES[own.get("reduce_dtype", "float32")])
        keep = own.get("reshard_after_forward") == "false"
        fully_shard(module, mp_policy=policy, reshard_after_forward=False if keep else None)
        if "factor" in spec:
            module.set_gradient_divide_factor(spec["factor"])
            module.set_force_sum_reduction_for_comms(True)  # gloo has no PREMUL_SUM
        module.set_reduce_scatter_unused_params("unused" in spec)

    for i, block in enumerate(model.blocks if not spec.get("tied") else ()):
        shard(block, f"blocks.{i}")
    shard(model, "")
    return model


def shard_fsdp1(spec, model):
    dtypes = None
    if "param_dtype" in spec:
        dtypes = MixedPrecision(param_dtype=DTYPES[spec["param_dtype"]], reduce_dtype=DTYPES[spec["reduce_dtype"]])
    model = FSDP1(model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=dtypes, use_orig_params=True,
                  device_id=torch.device("cpu"))
    if "hook" in spec:
        state = default_hooks.LowPrecisionState(process_group=dist.group.WORLD)
        model.register_comm_hook(state, HOOKS[spec["hook"]])
    return model


def plain_name(name):
    return name.replace("_fsdp_wrapped_module.", "")


def whole_state(spec, model):
    """Every name, tied ones too, with its whole tensor."""
    if spec.get("fsdp1"):
        with FSDP1.summon_full_params(model, writeback=False):
            return {plain_name(n): p.detach().clone() for n, p in model.named_parameters()}
    return {n: full(p) for n, p in model.state_dict().items()}


def summon(model, out):
    with FSDP1.summon_full_params(model, writeback=False, with_grads=True):
        named = {plain_name(n): p for n, p in model.named_parameters()}
        out["summoned"] = torch.stack([flat(named), flat({n: p.grad for n, p in named.items()})])
    with FSDP1.summon_full_params(model.blocks[0], recurse=False), torch.no_grad():
        for p in model.blocks[0].parameters():
            p.mul_(2)


def given_gradients(spec, generator, total):
    shape = (spec["steps"], RANKS, spec["accumulation"], total)
    given = torch.randn(shape, generator=generator)
    if spec.get("param_dtype", "float32") != "float32" or "overrides" in spec:
        given = given.to(torch.bfloat16).float()  # what the model is given, it has in every dtype
    if "scaler" in spec:
        given[INFINITE_STEP, 1, 0, 11] = float("inf")
    return given


def make_scaler(spec):
    s = spec.get("scaler")
    return s and ShardedGradScaler(device="cpu", init_scale=s["init"], growth_factor=s["growth"],
                                   backoff_factor=s["backoff"], growth_interval=s["interval"])


def clip(spec, model):
    limit, kind = spec.get("clip_grad_norm", float("inf")), float(spec.get("clip_norm_type", 2))
    if spec.get("fsdp1"):
        return model.clip_grad_norm_(limit, kind)
    return full(torch.nn.utils.clip_grad_norm_(model.parameters(), limit, norm_type=kind))


def run_step(spec, model, optimizer, scaler, given, step, rank, out):
    """Micro-steps and update; returns the gradient norm."""
    last = spec["accumulation"] - 1
    for micro in range(spec["accumulation"]):
        if not spec.get("fsdp1"):
            model.set_requires_gradient_sync(micro == last)
        uses_last = [step, rank] not in spec.get("unused", [])
        loss = model(split(given[step, rank, micro]), uses_last) / spec["accumulation"]
        (scaler.scale(loss.float()) if scaler else loss).backward()
    if spec.get("summon") == step:
        summon(model, out)
    if scaler:
        scaler.unscale_(optimizer)
    norm = clip(spec, model)
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    optimizer.zero_grad()
    return norm


def set_mode(optimizer, mode):
    """Of an optimizer that trains with other weights than it evaluates with."""
    if isinstance(optimizer, schedulefree.AdamWScheduleFree):
        getattr(optimizer, mode)()


def run_case(name, spec, rank):
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    total = sum(torch.Size(s).numel() for s in PARAMS.values())
    out = {"init": torch.randn(total, generator=generator)}
    if spec.get("tied"):
        values = split(out["init"])
        out["init"] = flat({**values, "blocks.1.w": values["blocks.0.w"]})
    out["given"] = given_gradients(spec, generator, total)
    plain, model = Model(spec.get("tied")), Model(spec.get("tied"))
    for target in (plain, model):
        target.load_state_dict(split(out["init"]))
    for n, p in model.named_parameters():
        p.requires_grad = not any(fnmatch.fnmatchcase(n, pattern) for pattern in spec.get("frozen", []))
    model = (shard_fsdp1 if spec.get("fsdp1") else shard_fsdp2)(spec, model)
    optimizer, scaler = make_optimizer(spec, model), make_scaler(spec)
    set_mode(optimizer, "train")
    average = None
    if "ema_decay" in spec:
        average = AveragedModel(plain, multi_avg_fn=get_ema_multi_avg_fn(spec["ema_decay"]))

    params, norms, scales = [], [], []
    for step in range(spec["steps"]):
        norms.append(run_step(spec, model, optimizer, scaler, out["given"], step, rank, out))
        set_mode(optimizer, "eval")
        state = whole_state(spec, model)
        set_mode(optimizer, "train")
        params.append(flat(state))
        if average is not None:
            plain.load_state_dict(state)
            average.update_parameters(plain)
        if scaler:
            scales.append(scaler.get_scale())
    out["param"], out["norm"] = torch.stack(params), torch.stack(norms).float()
    if scaler:
        out["scale"] = torch.tensor(scales)
    state = {n: optimizer.state[p] for n, p in model.named_parameters()}
    for key in ("exp_avg", "exp_avg_sq", "momentum_buffer", "z"):
        if not spec.get("fsdp1") and not spec.get("tied") and all(s.get(key) is not None for s in state.values()):
            out[key] = flat({n: full(s[key]) for n, s in state.items()})
    if average is not None:
        out["ema"] = flat(dict(average.module.named_parameters()))
    return out


def rank_main(rank, world, folder, names):
    warnings.simplefilter("ignore")
    torch.Tensor.record_stream = lambda tensor, stream: None  # the supplied hooks call it on the CPU, too
    for name in names:
        spec = {**DEFAULTS, **CASES[name]}
        out = run_case(name, spec, rank)
        if rank == 0:
            tensors = {k: v.contiguous() for k, v in out.items()}
            save_file(tensors, f"{folder}/{name}.safetensors", metadata={"case": json.dumps(spec, sort_keys=True)})


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
    mode, folder, *names = sys.argv[1:]
    names = names or list(CASES)
    with tempfile.TemporaryDirectory() as scratch:
        ranks.run(rank_main, RANKS, scratch, names)
        if mode == "check":
            return check(folder, scratch)
        for name in names:
            data = open(f"{scratch}/{name}.safetensors", "rb").read()
            open(f"{folder}/{name}.safetensors", "wb").write(data)


if __name__ == "__main__":
    main()
