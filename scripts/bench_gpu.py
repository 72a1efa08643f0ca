# SPDX-License-Identifier: Apache-2.0
"""Training on a GPU: fsdp-launch and PyTorch on the same model, rows of random tokens, numerics and
recomputation, one after the other on the same machine.

    bench_gpu.py losses --bin BIN --work FOLDER [--steps 200]
    bench_gpu.py bench --bin BIN --work FOLDER --model gpt2-124m|llama-1b|llama-3b|llama-8b|llama-small
                       [--sides libfsdp,fsdp2,plain]
    bench_gpu.py torch ...                    (one side of it, in a process of its own)

PyTorch runs twice: fully_shard on one rank with every block and the loss compiled, and a plain compiled model
under autocast; both with fused AdamW and cuDNN's or flash attention. --tiny runs small models on the
CPU, to see that the script works. The last line is one JSON object.
"""
import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time

MODELS = {
    "gpt2-124m": dict(T=1024, B=32, recompute="none", moments="float32", config=dict(
        model_type="gpt2", vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12, n_head=12,
        n_inner=None, activation_function="gelu_new", layer_norm_epsilon=1e-5,
        initializer_range=0.02, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)),
    "llama-1b": dict(T=4096, B=4, recompute="none", moments="float32", config=dict(
        model_type="llama", vocab_size=128256, hidden_size=2048, intermediate_size=8192,
        num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, hidden_act="silu",
        max_position_embeddings=4096, initializer_range=0.02, rms_norm_eps=1e-5,
        rope_theta=500000.0, tie_word_embeddings=True)),
    "llama-3b": dict(T=4096, B=2, recompute="none", moments="float32", config=dict(
        model_type="llama", vocab_size=128256, hidden_size=3072, intermediate_size=8192,
        num_hidden_layers=28, num_attention_heads=24, num_key_value_heads=8, hidden_act="silu",
        max_position_embeddings=4096, initializer_range=0.02, rms_norm_eps=1e-5,
        rope_theta=500000.0, tie_word_embeddings=True)),
    "llama-8b": dict(T=4096, B=2, recompute="none", moments="bfloat16", config=dict(
        model_type="llama", vocab_size=128256, hidden_size=4096, intermediate_size=14336,
        num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, hidden_act="silu",
        max_position_embeddings=4096, initializer_range=0.02, rms_norm_eps=1e-5,
        rope_theta=500000.0, tie_word_embeddings=False)),
}
SMALL = {
    "gpt2": dict(vocab_size=512, n_positions=64, n_embd=64, n_layer=2, n_head=2),
    "llama": dict(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                  num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64),
}
MODELS["llama-small"] = dict(T=256, B=8, recompute="none", moments="float32", config=dict(
    MODELS["llama-1b"]["config"], vocab_size=4096, hidden_size=256, intermediate_size=704,
    num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256))
LR, BETAS, EPS, DECAY, CLIP = 3e-4, (0.9, 0.95), 1e-8, 0.1, 1.0


def model_of(a):
    spec = dict(MODELS[a.model])
    if a.tiny:
        spec.update(T=64, B=2, config=dict(spec["config"], **SMALL[spec["config"]["model_type"]]))
    spec["B"] = a.batch or spec["B"]
    return spec


# ---- PyTorch's side ---------------------------------------------------------------------------------

def build(c):
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    class RMSNorm(nn.Module):
        def __init__(self, dim, eps):
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

        def forward(self, x):
            wide = x.float()
            wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
            return (self.weight * wide).to(x.dtype)

    class LlamaBlock(nn.Module):
        def __init__(self):
            super().__init__()
            d, f = c["hidden_size"], c["intermediate_size"]
            self.heads, self.kv = c["num_attention_heads"], c["num_key_value_heads"]
            self.hd = d // self.heads
            self.norm1, self.norm2 = (RMSNorm(d, c["rms_norm_eps"]) for _ in range(2))
            self.qkv = nn.Linear(d, (self.heads + 2 * self.kv) * self.hd, bias=False)
            self.o = nn.Linear(d, d, bias=False)
            self.gate_up, self.down = nn.Linear(d, 2 * f, bias=False), nn.Linear(f, d, bias=False)

        def forward(self, x, cos, sin):
            B, T, d = x.shape
            qkv = self.qkv(self.norm1(x)).view(B, T, -1, self.hd).transpose(1, 2)
            q, k, v = qkv.split([self.heads, self.kv, self.kv], 1)
            q, k = (rotate(t, cos, sin) for t in (q, k))
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + self.o(o.transpose(1, 2).reshape(B, T, d))
            gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
            return x + self.down(F.silu(gate) * up)

    class GPT2Block(nn.Module):
        def __init__(self):
            super().__init__()
            d, self.heads = c["n_embd"], c["n_head"]
            self.norm1, self.norm2 = (nn.LayerNorm(d, c["layer_norm_epsilon"]) for _ in range(2))
            self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def forward(self, x):
            B, T, d = x.shape
            q, k, v = (t.view(B, T, self.heads, -1).transpose(1, 2)
                       for t in self.qkv(self.norm1(x)).chunk(3, -1))
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(o.transpose(1, 2).reshape(B, T, d))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    def loss_of(logits, labels):
        return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())

    def rotate(x, cos, sin):
        low, high = x.chunk(2, -1)
        return x * cos + torch.cat((-high, low), -1) * sin

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.gpt2, self.loss = c["model_type"] == "gpt2", loss_of
            d = c["n_embd" if self.gpt2 else "hidden_size"]
            n = c["n_layer" if self.gpt2 else "num_hidden_layers"]
            self.embed = nn.Embedding(c["vocab_size"], d)
            if self.gpt2:
                self.positions = nn.Embedding(c["n_positions"], d)
            self.blocks = nn.ModuleList((GPT2Block if self.gpt2 else LlamaBlock)() for _ in range(n))
            self.norm = nn.LayerNorm(d) if self.gpt2 else RMSNorm(d, c["rms_norm_eps"])
            self.head = nn.Linear(d, c["vocab_size"], bias=False)
            if self.gpt2 or c["tie_word_embeddings"]:
                self.head.weight = self.embed.weight
            for module in self.modules():
                if isinstance(module, (nn.Linear, nn.Embedding)):
                    nn.init.normal_(module.weight, std=c["initializer_range"])
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)

        def forward(self, ids, labels):
            x, T = self.embed(ids), ids.shape[1]
            more = ()
            if self.gpt2:
                x = x + self.positions(torch.arange(T, device=ids.device))
            else:
                half = c["hidden_size"] // c["num_attention_heads"] // 2
                inverse = c["rope_theta"] ** -(torch.arange(half, device=ids.device).float() / half)
                angles = torch.outer(torch.arange(T, device=ids.device).float(), inverse).repeat(1, 2)
                kind = torch.bfloat16 if self.blocks[0].o.weight.dtype == torch.bfloat16 else x.dtype
                more = (angles.cos().to(kind), angles.sin().to(kind))
            for block in self.blocks:
                x = block(x, *more)
            return self.loss(self.head(self.norm(x)), labels)

    return Model()


def torch_side(a):
    import numpy as np
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    spec = model_of(a)
    device = "cpu" if a.tiny else "cuda"
    torch.manual_seed(0)
    with torch.device(device):
        model = build(spec["config"])
    # With bf16 moments PyTorch's AdamW has no masters either: the whole state is bf16.
    if spec["moments"] == "bfloat16":
        model.bfloat16()
    autocast = a.variant == "plain" and spec["moments"] == "float32"
    if a.variant == "fsdp2":
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000))
        dist.init_process_group("gloo" if a.tiny else "nccl", rank=0, world_size=1)
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        mesh = init_device_mesh(device, (1,))
        if not a.eager:  # else the fp32 logits and their gradients would go through memory many times
            model.loss = torch.compile(model.loss)
        for block in model.blocks:
            if not a.eager:
                block.compile()
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    elif not a.eager:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, eps=EPS,
                                  weight_decay=DECAY, fused=True)
    B, T = spec["B"], spec["T"]
    rows = np.fromfile(a.tokens, "<u4").astype(np.int64).reshape(-1, T + 1)
    rows = torch.from_numpy(rows).to(device)
    wait = (lambda: None) if a.tiny else torch.cuda.synchronize
    seconds, losses = [], []
    with sdpa_kernel([SDPBackend.MATH] if a.tiny else
                     [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        for step in range(a.steps):
            wait()
            begin = time.perf_counter()
            batch = rows[torch.arange(step * B, step * B + B) % len(rows)]
            with torch.autocast(device, torch.bfloat16, enabled=autocast):
                loss = model(batch[:, :-1], batch[:, 1:])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            wait()
            seconds.append(time.perf_counter() - begin)
    peak = 0 if a.tiny else torch.cuda.max_memory_reserved()
    print(json.dumps(dict(seconds=statistics.median(seconds[a.warmup:]), peak_torch=peak,
                          losses=[float(x) for x in losses])))
    if a.variant == "fsdp2":
        dist.destroy_process_group()


# ---- both sides -------------------------------------------------------------------------------------

def make_files(a, spec, nrows):
    import numpy as np
    folder = os.path.join(a.work, a.model + ("-tiny" if a.tiny else ""))
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(spec["config"], file)
    tokens = os.path.join(folder, "tokens.u32")
    rng = np.random.default_rng(1)
    rng.integers(0, spec["config"]["vocab_size"], (nrows, spec["T"] + 1), dtype=np.uint32).tofile(tokens)
    return folder, tokens


class Peak(threading.Thread):
    """The GPU's memory in use, above what it was before."""

    def __init__(self, tiny):
        super().__init__(daemon=True)
        self.done, self.most, self.tiny = threading.Event(), 0, tiny
        self.before = self.read()

    def read(self):
        if self.tiny:
            return 0
        text = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i",
                               "0"], capture_output=True, text=True).stdout
        return int(re.findall(r"\d+", text)[0])

    def run(self):
        while not self.done.wait(0.2):
            self.most = max(self.most, self.read() - self.before)

    def stop(self):
        self.done.set()
        self.join()
        return self.most


BEGIN, MOST_S = time.monotonic(), 460  # of all sides: a part has 8 minutes


def run(command, tiny):
    peak = Peak(tiny)
    peak.start()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
    why = ""
    try:
        out, err = process.communicate(timeout=max(1, MOST_S - (time.monotonic() - BEGIN)))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        why = f"stopped: all sides have {MOST_S} s"
    mib = peak.stop()
    if process.returncode:
        return None, mib, why or " / ".join((out + err).strip().splitlines()[-3:])
    return out, mib, ""


def our_side(a, spec, folder, tokens, steps):
    metrics = os.path.join(folder, "metrics.jsonl")
    if os.path.exists(metrics):
        os.remove(metrics)
    settings = [
        f"model.path={folder}", "model.init=random", f"data.path={tokens}", "data.format=u32",
        "data.layout=rows", f"data.seq_len={spec['T']}", f"train.steps={steps}",
        f"train.global_batch_size={spec['B']}", f"train.micro_batch_size={spec['B']}",
        f"optim.lr={LR}", "optim.schedule=constant", "optim.decay=all",
        f"fsdp.device={'cpu' if a.tiny else 'cuda'}", "fsdp.param_dtype=bfloat16",
        f"fsdp.activation_checkpointing={spec['recompute']}", f"log.metrics={metrics}",
        "log.interval=1000"]
    if spec["moments"] == "bfloat16":
        settings += ["optim.moment_dtype=bfloat16", "optim.master=split"]
    config = os.path.join(folder, "run.yaml")
    with open(config, "w") as file:
        file.write("".join(f"# {s}\n" for s in settings))
        for section in ("model", "data", "train", "optim", "fsdp", "log"):
            file.write(section + ":\n")
            for s in settings:
                key, value = s.split("=", 1)
                if key.startswith(section + "."):
                    file.write(f"  {key.split('.', 1)[1]}: {value}\n")
    out, mib, why = run([os.path.join(a.bin, "fsdp-launch"), config], a.tiny)
    if out is None:
        return dict(error=why)
    rows = [json.loads(line) for line in open(metrics)]
    rows = [r for r in rows if "tokens_per_s" in r]
    speeds = [r["tokens_per_s"] for r in rows[a.warmup:]]
    return dict(tokens_per_s=statistics.median(speeds), MiB=mib, losses=[r["loss"] for r in rows])


def their_side(a, spec, tokens, variant, steps):
    command = [sys.executable, os.path.abspath(__file__), "torch", "--model", a.model, "--tokens", tokens,
               "--variant", variant, "--steps", str(steps), "--warmup", str(a.warmup), "--batch",
               str(spec["B"])] + ["--tiny"] * a.tiny + ["--eager"] * a.eager
    out, mib, why = run(command, a.tiny)
    if out is None:
        return dict(error=why)
    row = json.loads(out.strip().splitlines()[-1])
    return dict(tokens_per_s=spec["B"] * spec["T"] / row["seconds"], MiB=mib, losses=row["losses"])


def bench(a):
    spec = model_of(a)
    folder, tokens = make_files(a, spec, 16 * spec["B"])
    sides = {}
    for name in a.sides.split(","):
        sides[name] = (our_side(a, spec, folder, tokens, a.steps) if name == "libfsdp" else
                       their_side(a, spec, tokens, name, a.steps))
        s = sides[name]
        what = {"libfsdp": "fsdp-launch", "fsdp2": "PyTorch FSDP2 + compile", "plain": "PyTorch compile"}[name]
        if "error" in s:
            print(f"{a.model:10} {what:24} {s['error']}")
        else:
            print(f"{a.model:10} {what:24} {s['tokens_per_s']:10.0f} tokens/s {s['MiB']:8d} MiB   losses "
                  f"{s['losses'][0]:.4f} ... {s['losses'][-1]:.4f}", flush=True)
        s.pop("losses", None)
    print(json.dumps(dict(model=a.model, T=spec["T"], B=spec["B"], recompute=spec["recompute"],
                          moments=spec["moments"], **sides)))
    return 0 if all("error" not in s for s in sides.values()) else 1


def losses(a):
    """The same model from other initial values: means of the last 50 losses may differ as two of
    PyTorch's own seeds would, some hundredths."""
    a.model, a.warmup = "llama-small", 1
    spec = model_of(a)
    folder, tokens = make_files(a, spec, spec["B"] * 8)  # few rows: there is something to learn
    ours = our_side(a, spec, folder, tokens, a.steps)
    theirs = their_side(a, spec, tokens, "plain", a.steps)
    for side in (ours, theirs):
        if "error" in side:
            print(side["error"])
            return 1
    mine, other = (statistics.mean(s["losses"][-50:]) for s in (ours, theirs))
    print(f"mean of the last 50 losses: ours {mine:.4f}, PyTorch {other:.4f}, difference {mine - other:+.4f}")
    return 0 if abs(mine - other) <= 0.05 * other else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("bench", "losses", "torch"))
    parser.add_argument("--bin", default="build/bin")
    parser.add_argument("--work", default="build/gpu-bench")
    parser.add_argument("--model", choices=MODELS, default="gpt2-124m")
    parser.add_argument("--tokens")
    parser.add_argument("--variant", choices=("fsdp2", "plain"), default="plain")
    parser.add_argument("--sides", default="libfsdp,fsdp2,plain", help="which of them, and in what order")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--batch", type=int, default=0, help="rows of a micro-batch")
    parser.add_argument("--eager", action="store_true", help="PyTorch without compilation")
    parser.add_argument("--tiny", action="store_true")
    a = parser.parse_args()
    return {"bench": bench, "losses": losses, "torch": torch_side}[a.what](a)


if __name__ == "__main__":
    sys.exit(main())
