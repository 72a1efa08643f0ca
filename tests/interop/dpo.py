# SPDX-License-Identifier: Apache-2.0
"""Direct preference optimization against torch in fp64, by TRL's published formula, and against TRL itself where its
package imports.

make        a tiny Llama in `llama`; pairs.jsonl and held-out.jsonl
trl         trains with TRL's DPOTrainer: trl.json is its log, and trl-pairs.jsonl the pairs as it tokenized them
check       prints a TAP line for each RUN.metrics, of ten steps of AdamW: losses, rewards and held-out losses
            are those of torch, and of trl-run.metrics those of TRL
"""
import copy
import json
import os
import sys

import torch
import transformers

from families import STEPS, VOCAB, load, make as make_families

BETA = 0.3
SMOOTHING = {"smooth": 0.2}


def pairs(path):
    return [json.loads(line) for line in open(path)]


def make():
    make_families("llama")
    torch.manual_seed(21)
    for path, lengths in (("pairs.jsonl", [(3, 5, 2), (7, 1, 9), (1, 15, 4), (4, 4, 4), (9, 3, 6)]),
                          ("held-out.jsonl", [(2, 3, 6), (5, 8, 1), (6, 2, 2)])):
        with open(path, "w") as f:
            for sizes in lengths:
                ids = (torch.randint(3, VOCAB, (n,)).tolist() for n in sizes)
                print(json.dumps(dict(zip(("prompt_ids", "chosen_ids", "rejected_ids"), ids))), file=f)


def trl():
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from trl import DPOConfig, DPOTrainer

    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="t2", pad_token="t0")
    text = [{key[:-4]: "".join(f"t{i} " for i in ids) for key, ids in pair.items()} for pair in pairs("pairs.jsonl")]
    args = DPOConfig(output_dir="trl", beta=BETA, per_device_train_batch_size=len(text), max_steps=STEPS,
                     learning_rate=1e-3, lr_scheduler_type="constant", adam_beta1=0.9, adam_beta2=0.95, weight_decay=0,
                     max_grad_norm=0, logging_steps=1, report_to=[], use_cpu=True, bf16=False, max_length=None,
                     gradient_checkpointing=False, disable_tqdm=True, save_strategy="no")
    trainer = DPOTrainer(model=load("llama", torch.float32), ref_model=load("llama", torch.float32), args=args,
                         train_dataset=Dataset.from_list(text), processing_class=tokenizer)
    trainer.train()
    with open("trl-pairs.jsonl", "w") as f:
        for pair in trainer.train_dataset:
            print(json.dumps({key: pair[key] for key in ("prompt_ids", "chosen_ids", "rejected_ids")}), file=f)
    with open("trl.json", "w") as f:
        json.dump([row for row in trainer.state.log_history if "loss" in row], f)


def check_trl(path):
    ours, theirs = [json.loads(line) for line in open(path)], json.load(open("trl.json"))
    keys = {"loss": "loss", "reward_chosen": "rewards/chosen", "reward_rejected": "rewards/rejected",
            "reward_margin": "rewards/margins", "reward_accuracy": "rewards/accuracies"}
    ours[0]["reward_accuracy"] = 0  # of rewards that are 0 but for rounding
    worst = max(abs(a[k] - float(b[t])) for a, b in zip(ours, theirs, strict=True) for k, t in keys.items())
    print(f"{'ok' if worst <= 2e-5 else 'not ok'} - {path}: losses and rewards of ten steps differ from TRL's by up to "
          f"{worst:.1e}")


def logp(model, prompt, answer):
    ids = torch.tensor([prompt + answer])
    logps = model(ids[:, :-1]).logits.log_softmax(-1)[0].gather(-1, ids[0, 1:, None])
    return logps[len(prompt) - 1:].sum()


def losses(model, reference, path, smoothing):
    """The mean loss, and means of the rewards of chosen and rejected answers and of which is right."""
    sums = []
    for pair in pairs(path):
        rewards = []
        for side in ("chosen_ids", "rejected_ids"):
            with torch.no_grad():
                before = logp(reference, pair["prompt_ids"], pair[side])
            rewards.append(BETA * (logp(model, pair["prompt_ids"], pair[side]) - before))
        x = rewards[0] - rewards[1]
        log_sigmoid = torch.nn.functional.logsigmoid
        loss = -(1 - smoothing) * log_sigmoid(x) - smoothing * log_sigmoid(-x)
        sums.append(torch.stack([loss, *rewards, (x > 0).double()]))
    return torch.stack(sums).mean(0)


def train(smoothing):
    model = load("llama", torch.float64)
    reference = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    out = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        means = losses(model, reference, "pairs.jsonl", smoothing)
        means[0].backward()
        optimizer.step()
        with torch.no_grad():
            held_out = losses(model, reference, "held-out.jsonl", smoothing)[0]
        out.append([*means.tolist(), held_out.item()])
    return out


def check_run(path, want):
    rows = [json.loads(line) for line in open(path)]
    keys = ("loss", "reward_chosen", "reward_rejected", "reward_accuracy", "eval_loss")
    worst = max(abs(row[key] - value) for row, values in zip(rows, want, strict=True) for key, value in zip(keys, values))
    ok = worst <= 5e-6 and want[-1][0] < want[0][0]
    print(f"{'ok' if ok else 'not ok'} - {path}: losses from {want[0][0]:.4f} to {want[-1][0]:.4f}, rewards and held-out "
          f"losses differ by up to {worst:.1e}")


def check():
    plain = train(0)
    for path in sorted(os.listdir()):
        if path == "trl-run.metrics":
            check_trl(path)
        elif path.endswith(".metrics"):
            name = path.split(".")[0]
            check_run(path, train(SMOOTHING[name]) if name in SMOOTHING else plain)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    {"make": make, "trl": trl, "check": check}[sys.argv[1]]()
