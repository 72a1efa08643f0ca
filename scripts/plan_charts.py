#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The charts of docs/images and the tables of docs/results/scaling.md, from fsdp-plan: make plan-charts.

A table stands between <!-- begin NAME --> and <!-- end NAME --> and is replaced.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PLAN = os.path.join(os.environ.get("BIN", os.path.join(ROOT, "build/bin")), "fsdp-plan")
PAGE = os.path.join(ROOT, "docs/results/scaling.md")
IMAGES = os.path.join(ROOT, "docs/images")
SEQ = 8192
FULL = ["fsdp.activation_checkpointing=full"]
MODELS = {"8b": ("Llama 8B", []), "70b": ("Llama 70B", FULL), "405b": ("Llama 405B", FULL + ["fsdp.reduce_dtype=bfloat16", "fsdp.grad_buffers=1"])}
BIG = 16384
SMALL_MODEL = {  # the dimensions of Llama 3.2 1B
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16"}
STRATEGIES = [
    ("NO_SHARD", "DDP", ["fsdp.sharding_strategy=NO_SHARD"]),
    ("ZERO1", "ZeRO-1", ["fsdp.sharding_strategy=ZERO1"]),
    ("SHARD_GRAD_OP", "ZeRO-2", ["fsdp.sharding_strategy=SHARD_GRAD_OP"]),
    ("FULL_SHARD", "ZeRO-3", ["fsdp.sharding_strategy=FULL_SHARD"]),
    ("FULL_SHARD, two levels", "", ["fsdp.sharding_strategy=FULL_SHARD", "fsdp.two_level=true"]),
    ("HYBRID_SHARD by node", "HSDP", ["fsdp.sharding_strategy=HYBRID_SHARD", "fsdp.shard_size=8"])]


def plan(*words):
    """The JSON of a call; 1 is the status of a run that does not fit."""
    out = subprocess.run([PLAN, *words, "--json", "-"], stdout=subprocess.PIPE, check=False)
    if out.returncode not in (0, 1):
        sys.exit(f"{' '.join(words)}: status {out.returncode}")
    return json.loads(out.stdout)


def one(model, gpus, micro=1, *words):
    """A plan whose GPUs have one micro-batch of `micro` rows each."""
    return plan("--model", model, "--seq", str(SEQ), "--gpus", str(gpus), "--batch", str(gpus * micro * SEQ),
                f"train.micro_batch_size={micro}", *words)


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return "\n".join(lines + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows])


def rate_of(row):
    return row["tokens_per_s_per_gpu"]["value"]


def exposed_of(row):
    return row["exposed_s"] / row["step_s"]["value"]


def percent(share):
    return f"{100 * share:.0f} %"


def change(share):
    return f"{100 * share:+.0f} %" if abs(share) >= 0.005 else "0 %"


def lines_of(answer):
    """By strategy: its label, and its rows that fit, by GPUs."""
    lines = {}
    for line in answer["scale"]:
        kind = "two" if "two levels" in line["strategy"] else "group" if "HYBRID" in line["strategy"] else "flat"
        lines[kind] = (line["strategy"], {r["gpus"]: r for r in line["rows"] if r["fits"]})
    return lines


def over_gpus(lines):
    """The rows of one model."""
    _, flat = lines["flat"]
    two, group = lines["two"][1], lines["group"][1]
    rows = []
    for gpus in sorted(flat):
        cells = [f"{gpus:,}" + ("*" if flat[gpus]["extrapolated"] else "")]
        best = max(rate_of(r[gpus]) for r in (flat, two, group) if gpus in r)
        for line in (flat, two, group):
            row = line.get(gpus)
            if not row:
                cells += ["", ""]
                continue
            value = f"{rate_of(row):,.0f}"
            cells += [f"**{value}**" if best <= 1.03 * rate_of(row) else value, percent(exposed_of(row))]
        cells.append(f"{flat[gpus]['memory_bytes'] / 2**30:.0f}, "
                     + (f"{group[gpus]['memory_bytes'] / 2**30:.0f}" if gpus in group else "-"))
        rows.append(cells)
    return table(["GPUs", "FULL_SHARD, tokens/s of a GPU", "exposed", "two levels", "exposed",
                  lines["group"][0], "exposed", "GiB of a GPU: FULL_SHARD, HYBRID_SHARD"], rows)


def first_above(line, share):
    return next((g for g in sorted(line) if exposed_of(line[g]) > share), None)


def first_slower(line, than, margin):
    """The first number of GPUs from which on `line` is slower than `than` by more than the margin."""
    found = None
    for gpus in sorted(set(line) & set(than), reverse=True):
        if rate_of(than[gpus]) <= (1 + margin) * rate_of(line[gpus]):
            break
        found = gpus
    return found


def many(gpus):
    return f"{gpus:,} GPUs ({gpus // 8:,} nodes)" if gpus else "none up to 16,384"


def crossings(all_lines):
    rows = []
    for name, lines in all_lines.items():
        flat, two, group = (lines[k][1] for k in ("flat", "two", "group"))
        rows.append([MODELS[name][0], many(first_slower(flat, two, 0.03)), many(first_slower(flat, group, 0.03)),
                     many(first_above(flat, 0.1)), many(first_above(flat, 0.3))])
    return table(["model", "two levels more than 3 % faster from", "HYBRID_SHARD more than 3 % faster from",
                  "exposed above 10 % from", "above 30 % from"], rows)


def efficiency(all_lines):
    rows = []
    for name, lines in all_lines.items():
        for kind in ("flat", "two", "group"):
            label, line = lines[kind]
            first = min(lines["flat"][1])
            base = rate_of(lines["flat"][1][first])
            rows.append([MODELS[name][0], label] +
                        [percent(rate_of(line[g]) / base) if g in line else "" for g in (128, 512, 1024, 2048, 4096, BIG)])
    return table(["model", "strategy", "128 GPUs", "512", "1,024*", "2,048*", "4,096*", "16,384*"], rows)


def remedies(all_lines):
    """What helps the 8B model where more than 30 % of a flat step is exposed."""
    model = os.path.join(ROOT, "examples/llama-8b")
    gpus = first_above(all_lines["8b"]["flat"][1], 0.3)
    if not gpus:
        return "None up to 16,384 GPUs."
    tries = [("FULL_SHARD, 1 row of 8,192 tokens", 1, []), ("fsdp.two_level=true", 1, ["fsdp.two_level=true"]),
             ("HYBRID_SHARD by node", 1, STRATEGIES[-1][2]),
             ("fsdp.reduce_dtype=bfloat16", 1, ["fsdp.reduce_dtype=bfloat16"]),
             ("prefetch of 2 units", 1, ["fsdp.forward_prefetch=2", "fsdp.backward_prefetch=2", "fsdp.limit_all_gathers=3"]),
             ("SHARD_GRAD_OP", 1, ["fsdp.sharding_strategy=SHARD_GRAD_OP"]),
             ("2 rows in a micro-batch", 2, []), ("twice the network: --net 800Gbx8", 1, ["--net", "800Gbx8"])]
    rows = []
    for label, micro, words in tries:
        a = one(model, gpus, micro, *words)
        t, m = a["time"], a["memory"]
        base = rows[0][0] if rows else rate_of(t)
        rows.append((base, label, rate_of(t), exposed_of(t), m["fits"], (m["planned_bytes"] + m["reserved_bytes"]) / 2**30))
    return f"Llama 8B on {gpus:,} GPUs:\n\n" + table(
        ["change", "tokens/s of a GPU", "against the first", "exposed", "GiB of a GPU"],
        [[label, f"{rate:,.0f}", change(rate / base - 1), percent(exposed), f"{gib:.0f}" + ("" if fits else ", too much")]
         for base, label, rate, exposed, fits, gib in rows])


def stages(folder):
    rows = []
    for name, known, words in STRATEGIES:
        cells = [name, known]
        for gpus in (8, 64, 512, 2048):
            if gpus == 8 and ("two levels" in name or "HYBRID" in name):
                cells.append("")
                continue
            a = one(folder, gpus, 2, *words)
            cells.append(f"{rate_of(a['time']):,.0f}" + ("" if a["memory"]["fits"] else " (too large)"))
        for model, micro, more in ((folder, 2, []), (os.path.join(ROOT, "examples/llama-8b"), 1, []),
                                   (os.path.join(ROOT, "examples/llama-70b"), 1, FULL)):
            m = one(model, 64, micro, *words, *more)["memory"]
            gib = (m["planned_bytes"] + m["reserved_bytes"]) / 2**30
            cells.append(f"{gib:,.0f}" if m["fits"] else f"~~{gib:,.0f}~~")
        rows.append(cells)
    return table(["strategy", "also known as", "1B: tokens/s of a GPU on 8", "64", "512", "2,048*",
                  "GiB on 64 GPUs: 1B", "8B", "70B"], rows)


def replace(page, name, text):
    begin, end = f"<!-- begin {name} -->\n", f"\n<!-- end {name} -->"
    if begin not in page or end not in page:
        sys.exit(f"{PAGE} has no place for {name}")
    return re.sub(re.escape(begin) + ".*?" + re.escape(end), lambda _: begin + "\n" + text + "\n" + end, page, flags=re.S)


def main():
    os.makedirs(IMAGES, exist_ok=True)
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    all_lines = {}
    for name, (_, words) in MODELS.items():
        all_lines[name] = lines_of(plan("--model", os.path.join(ROOT, f"examples/llama-{name}"), "--seq", str(SEQ), "--scale",
                                        f"8..{BIG}", "--chart", os.path.join(IMAGES, f"scale-{name}.svg"), *words))
        page = replace(page, name, over_gpus(all_lines[name]))
    one(os.path.join(ROOT, "examples/llama-8b"), 64, 1, "--chart", os.path.join(IMAGES, "settings-8b.svg"))
    page = replace(page, "crossings", crossings(all_lines))
    page = replace(page, "efficiency", efficiency(all_lines))
    page = replace(page, "remedies", remedies(all_lines))
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(SMALL_MODEL, file)
        page = replace(page, "stages", stages(folder))
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(page)


main()
