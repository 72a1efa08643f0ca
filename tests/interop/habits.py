# SPDX-License-Identifier: Apache-2.0
"""Losses and what is told of a run, against torch in fp64.

make       a tiny Llama in `model`; tokens.bin, one batch of rows; weighted.jsonl, documents with weights
check      prints a TAP line for each: NAME.jsonl are metrics of ten steps of AdamW
  smooth   label smoothing 0.1 and z-loss 1e-3: torch's cross_entropy(label_smoothing=...), and lse squared
  weights  documents with weights: the mean of losses by weights
  noise    gradient noise scale of the first step
"""
import json
import sys

import torch
import transformers
from torch.nn.functional import cross_entropy

from families import SEQ_LEN, STEPS, VOCAB, documents, load, make as make_families, rows

WEIGHTS = [1, 0.25, 3, None, 0, 2.5, 0.5, 1]


def make():
    make_families("llama")
    with open("weighted.jsonl", "w") as f:
        for document, weight in zip(documents(), WEIGHTS):
            line = {"input_ids": document.tolist(), "importance": weight}
            print(json.dumps({k: v for k, v in line.items() if v is not None}), file=f)


def train(loss_of):
    model = load("llama", torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def smooth(model):
    batch = rows()
    logits = model(batch[:, :-1]).logits.flatten(0, 1)
    z = torch.logsumexp(logits, -1).square().mean()
    return cross_entropy(logits, batch[:, 1:].flatten(), label_smoothing=0.1) + 1e-3 * z


def weights(model):
    total, count = 0, 0
    for ids, weight in zip(documents(), WEIGHTS):
        weight = 1 if weight is None else weight
        logits = model(ids[None, :-1]).logits[0]
        total = total + weight * cross_entropy(logits, ids[1:], reduction="sum")
        count += weight * (len(ids) - 1)
    return total / count


def noise():
    model, batch = load("llama", torch.float64), rows()
    gradients = []
    for row in batch:
        model.zero_grad()
        cross_entropy(model(row[None, :-1]).logits[0], row[1:]).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    small = sum(g.square().sum() for g in gradients) / len(gradients)
    big, n = (sum(gradients) / len(gradients)).square().sum(), len(gradients)
    return (((small - big) / (1 - 1 / n)) / ((n * big - small) / (n - 1))).item()


def metrics(path, key):
    return [row[key] for row in map(json.loads, open(path)) if key in row]


def check():
    for name, function in (("smooth", smooth), ("weights", weights)):
        want, got = train(function), metrics(f"{name}.jsonl", "loss")
        worst = max(abs(g - w) / w for g, w in zip(got, want, strict=True))
        print(f"{'ok' if worst <= 2e-6 else 'not ok'} - {name}: ten losses from {want[0]:.4f} to {want[-1]:.4f} differ by "
              f"up to {worst:.1e}")
    want, got = noise(), metrics("noise.jsonl", "noise_scale")[0]
    print(f"{'ok' if abs(got - want) <= 1e-4 * want else 'not ok'} - gradient noise scale {got}, torch: {want:.9g}")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    {"make": make, "check": check}[sys.argv[1]]()
