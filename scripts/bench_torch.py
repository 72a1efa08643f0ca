# SPDX-License-Identifier: Apache-2.0
"""The other side of `scripts/bench.sh torch`: a Llama in plain PyTorch, one process or fully_shard
on gloo, on the same weights and the same rows of tokens as fsdp-launch.

    bench_torch.py --ranks N --model FOLDER --tokens FILE.u16 --batch B --seq T ...

A step is forward, backward, clipping, AdamW and zero_grad. Prints one line:
seconds (median of the slowest rank) MiB (peak of the largest rank) first-loss last-loss
"""
import argparse
import json
import os
import resource
import socket
import statistics
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file


class RMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rotate(x, cos, sin):
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, c, explicit):
        super().__init__()
        dim, heads = c["hidden_size"], c["num_attention_heads"]
        self.heads, self.head_dim, self.explicit = heads, dim // heads, explicit
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(dim, dim, bias=False))

    def forward(self, x, cos, sin):
        B, T, C = x.shape
        q, k, v = (p(x).view(B, T, self.heads, self.head_dim).transpose(1, 2)
                   for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if self.explicit:  # the faster one where scaled_dot_product_attention has no kernel
            scores = q @ k.transpose(2, 3) * self.head_dim**-0.5
            mask = torch.full((T, T), float("-inf"), dtype=scores.dtype).triu(1)
            o = F.softmax(scores + mask, dim=-1, dtype=torch.float32).to(q.dtype) @ v
        else:
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(o.transpose(1, 2).reshape(B, T, C))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        dim, ffn = c["hidden_size"], c["intermediate_size"]
        self.gate_proj = nn.Linear(dim, ffn, bias=False)
        self.up_proj = nn.Linear(dim, ffn, bias=False)
        self.down_proj = nn.Linear(ffn, dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c, explicit):
        super().__init__()
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn = Attention(c, explicit)
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.mlp = MLP(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, c, explicit):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.model.layers = nn.ModuleList(
            Layer(c, explicit) for _ in range(c["num_hidden_layers"]))
        self.model.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        half = c["hidden_size"] // c["num_attention_heads"] // 2
        self.inv_freq = c["rope_theta"] ** -(torch.arange(half).float() / half)

    def forward(self, ids):
        angles = torch.outer(torch.arange(ids.shape[1]).float(), self.inv_freq).repeat(1, 2)
        x = self.model.embed_tokens(ids)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return self.lm_head(self.model.norm(x))


def shard(model, dtype):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    policy = MixedPrecisionPolicy()
    if dtype != "float32":
        policy = MixedPrecisionPolicy(getattr(torch, dtype), torch.float32)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def train(a, rank):
    with open(os.path.join(a.model, "config.json")) as file:
        model = Llama(json.load(file), a.dtype != "float32")
    model.load_state_dict(load_file(os.path.join(a.model, "model.safetensors")))
    if a.ranks > 1:
        shard(model, a.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), eps=1e-8,
                                  weight_decay=0.1, fused=True)
    rows = np.fromfile(a.tokens, dtype="<u2").astype(np.int64)
    rows = torch.from_numpy(rows[: len(rows) // (a.seq + 1) * (a.seq + 1)].reshape(-1, a.seq + 1))
    seconds, losses, begin = [], [], time.perf_counter()
    for step in range(a.warmup + a.steps):
        first = ((step * a.ranks + rank) * a.batch) % len(rows)
        batch = rows[first : first + a.batch]
        if a.ranks > 1:
            dist.barrier()
        start = time.perf_counter()
        logits = model(batch[:, :-1]).float()
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch[:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
        losses.append(loss.detach().double())
        late = torch.tensor(float(time.perf_counter() - begin > a.seconds))
        if a.ranks > 1:
            dist.all_reduce(late)
        if late > 0:  # a step of a minute needs no warm-up
            break
    return statistics.median(seconds[min(a.warmup, len(seconds) - 1) :]), losses[0], losses[-1]


def work(rank, a, port):
    torch.set_num_threads(a.threads)
    if a.ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=a.ranks)
    median, first, last = train(a, rank)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    most = torch.tensor([median, peak], dtype=torch.float64)
    mean = torch.stack([first, last]) / a.ranks
    if a.ranks > 1:
        dist.all_reduce(most, dist.ReduceOp.MAX)
        dist.all_reduce(mean)
    if rank == 0:
        print(f"{most[0]:.4f} {most[1]:.0f} {mean[0]:.4f} {mean[1]:.4f}", flush=True)
    if a.ranks > 1:
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--batch", type=int, default=4, help="rows of a rank")
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no step after these")
    a = parser.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    if a.ranks > 1:
        mp.spawn(work, (a, port), nprocs=a.ranks)
    else:
        work(0, a, port)


if __name__ == "__main__":
    main()
