# SPDX-License-Identifier: Apache-2.0
"""Documents with labels that do not count: the same training steps in transformers and torch.

make FOLDER...    a small model and documents.jsonl in each
check FOLDER...   losses and gradient norms of its metrics.jsonl are those of three steps here, on packed rows with a
                  mask between documents; and the first loss is that of the documents each alone
"""
import json
import random
import sys

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

SEQ_LEN, ROWS, STEPS, VOCAB = 24, 4, 3, 101


def make(folder):
    torch.manual_seed(4)
    if folder.startswith("gpt2"):
        config = GPT2Config(vocab_size=VOCAB, n_embd=48, n_layer=2, n_head=3, n_positions=64, embd_pdrop=0,
                            attn_pdrop=0, resid_pdrop=0, initializer_range=0.2)
        model = GPT2LMHeadModel(config)
    else:
        config = LlamaConfig(vocab_size=VOCAB, hidden_size=48, intermediate_size=112, num_hidden_layers=2,
                             num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=64,
                             initializer_range=0.2)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    random.seed(5)
    with open(f"{folder}/documents.jsonl", "w") as f:
        for _ in range(60):
            ids = [random.randrange(VOCAB) for _ in range(random.randrange(2, 14))]
            prompt = random.randrange(len(ids))
            print(json.dumps({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]}), file=f)


def documents(folder):
    """(inputs, labels of each input) of every document."""
    with open(f"{folder}/documents.jsonl") as f:
        lines = [json.loads(line) for line in f]
    return [(line["input_ids"][:-1], line["labels"][1:]) for line in lines]


def packed(folder):
    """Rows of documents, whole and in order."""
    rows, used = [[]], 0
    for document in documents(folder):
        if used + len(document[0]) > SEQ_LEN:
            rows, used = rows + [[]], 0
        rows[-1].append(document)
        used += len(document[0])
    return rows


def row_loss(model, row):
    """Sum of a packed row's losses: one document after the other behind a mask, positions anew in each."""
    inputs = [token for document in row for token in document[0]]
    labels = torch.tensor([label for document in row for label in document[1]])
    number = torch.tensor([i for i, document in enumerate(row) for _ in document[0]])
    positions = torch.tensor([t for document in row for t in range(len(document[0]))])
    seen = (number[:, None] == number[None, :]).tril()
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
    logits = model(torch.tensor([inputs]), attention_mask=mask, position_ids=positions[None]).logits[0]
    return torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")


def alone(model, rows):
    """Mean loss of the documents one by one, by the model's own labels."""
    total, count = 0.0, 0
    for inputs, labels in (document for row in rows for document in row):
        n = sum(label != -100 for label in labels)
        if n:  # transformers shifts labels by itself: the last input's label needs a token more
            ids = torch.tensor([inputs + [0]])
            shifted = torch.tensor([[-100] + labels])
            total += model(ids, labels=shifted).loss.item() * n
            count += n
    return total / count


def near(what, got, want, bound):
    print(f"{what}: {got:.9g}, torch {want:.9g}")
    assert abs(got - want) <= bound * abs(want), what


def check(folder):
    with open(f"{folder}/metrics.jsonl") as f:
        metrics = [json.loads(line) for line in f]
    assert len(metrics) == STEPS
    print(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    rows = packed(folder)
    near("documents alone", metrics[0]["loss"], alone(model, rows[:ROWS]), 1e-5)
    for step, line in enumerate(metrics):
        batch = rows[step * ROWS : (step + 1) * ROWS]
        count = sum(label != -100 for row in batch for _, labels in row for label in labels)
        assert line["counted_tokens"] == count, f"{line['counted_tokens']} tokens count, not {count}"
        optimizer.zero_grad()
        loss = sum(row_loss(model, row) for row in batch) / count
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        near(f"loss of step {step + 1}", line["loss"], loss.item(), 1e-5)
        near("its gradient norm", line["grad_norm"], norm.item(), 1e-4)


if __name__ == "__main__":
    for folder in sys.argv[2:]:
        {"make": make, "check": check}[sys.argv[1]](folder)
