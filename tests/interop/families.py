# SPDX-License-Identifier: Apache-2.0
"""Every decoder family against transformers and torch in fp64.

list                 the families
make FAMILY...       a tiny model of each, in folder FAMILY, with odd sizes and every trait of the family on; and
                     tokens.bin and documents.jsonl, each the rows of a batch
check RUN FAMILY...  prints a TAP line for each check of each family, where FAMILY.RUN holds, as far as it exists:
  logits             fsdp-generate's logits of TOKENS: those of transformers, within 1e-5 of the largest
  tokens             its greedy tokens after TOKENS: those of transformers, which computes all anew for each
  sgd/               the model after a step of SGD with learning rate RATE: its gradients are those of torch, within
                     1e-5 of each tensor's; transformers loads it without missing or unexpected keys, and names, shapes
                     and types are those that save_pretrained wrote
  metrics.jsonl      losses of ten steps of AdamW: those of torch, within 2e-6 (RUN bf16: within 5e-3; RUN packed: of
                     each document alone)
"""
import json
import os
import sys

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB, SEQ_LEN, ROWS, RATE, STEPS = 67, 24, 4, 64.0, 10
TOKENS = [0, 1, 66, 17, 42, 42, 9, 5, 30, 3, 61, 7, 8, 2]

COMMON = dict(vocab_size=VOCAB, hidden_size=36, intermediate_size=52, num_hidden_layers=3, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=48, initializer_range=0.2)
WINDOW = dict(sliding_window=7)
TYPES = dict(layer_types=["sliding_attention", "full_attention", "sliding_attention"])
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=12, rope_theta=1000.0)
MODELS = {
    "llama": dict(COMMON, head_dim=10, attention_bias=True, mlp_bias=True,
                  rope_parameters=dict(YARN, truncate=False)),
    "mistral": dict(COMMON, head_dim=10, **WINDOW),
    "ministral": dict(COMMON, head_dim=10, **WINDOW, **TYPES),
    "ministral3": dict(COMMON, head_dim=10, **WINDOW,
                       rope_parameters=dict(YARN, llama_4_scaling_beta=0.3, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
                                            mscale_all_dim=1.0)),
    "qwen2": dict(COMMON, use_sliding_window=True, max_window_layers=1, rope_parameters=dict(
        rope_type="dynamic", factor=2.0, rope_theta=5000.0), hidden_size=40, **WINDOW),
    "qwen3": dict(COMMON, head_dim=14, attention_bias=True, use_sliding_window=True, max_window_layers=2, **WINDOW),
    "smollm3": dict(COMMON, hidden_size=40, use_sliding_window=True, no_rope_layers=[1, 0, 1], attention_bias=True,
                    mlp_bias=True, **WINDOW),
    "olmo2": dict(COMMON, hidden_size=40, attention_bias=True),
    "olmo3": dict(COMMON, hidden_size=40, **WINDOW, **TYPES, rope_parameters=dict(
        full_attention=YARN, sliding_attention=dict(rope_type="default", rope_theta=500.0))),
    "phi3": dict(COMMON, hidden_size=48, original_max_position_embeddings=16, rope_parameters=dict(
        rope_type="longrope", partial_rotary_factor=0.5, rope_theta=10000.0, original_max_position_embeddings=16,
        short_factor=[1.0, 1.2, 1.4], long_factor=[1.5, 2.0, 4.0]), **WINDOW),
    "gemma": dict(COMMON, head_dim=10, attention_bias=True),
    "gemma2": dict(COMMON, head_dim=10, query_pre_attn_scalar=24, final_logit_softcapping=5.0,
                   attn_logit_softcapping=3.0, **WINDOW, **TYPES),
    "gemma3_text": dict(COMMON, head_dim=10, query_pre_attn_scalar=24, final_logit_softcapping=5.0, **WINDOW, **TYPES,
                        rope_parameters=dict(
                            full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                            sliding_attention=dict(rope_type="default", rope_theta=1e4))),
    "granite": dict(COMMON, hidden_size=40, attention_bias=True, mlp_bias=True, embedding_multiplier=12.0,
                    logits_scaling=8.0, residual_multiplier=0.22, attention_multiplier=0.15),
    "gpt2": dict(vocab_size=VOCAB, n_embd=36, n_layer=3, n_head=3, n_positions=48, n_inner=52, embd_pdrop=0,
                 attn_pdrop=0, resid_pdrop=0, initializer_range=0.2),
    "gpt_neox": dict(COMMON, hidden_size=40, num_attention_heads=5, rotary_pct=0.5, num_key_value_heads=None),
}


def make(*families):
    for family in families:
        torch.manual_seed(11)
        keys = {k: v for k, v in MODELS[family].items() if v is not None}
        config = AutoConfig.for_model(family, bos_token_id=1, eos_token_id=2, pad_token_id=None, **keys)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        with torch.no_grad():  # norms and biases begin as ones and zeros, which would hide mistakes
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        model.save_pretrained(family)
    torch.manual_seed(12)
    ids = torch.randint(0, VOCAB, (ROWS * SEQ_LEN + 1,), dtype=torch.int32)
    with open("tokens.bin", "wb") as f:
        f.write(ids.to(torch.uint16).numpy().tobytes())
    with open("documents.jsonl", "w") as f:
        for document in documents():
            print(json.dumps({"input_ids": document.tolist()}), file=f)


def rows():
    """The rows of every step: the file is one batch."""
    with open("tokens.bin", "rb") as f:
        ids = torch.frombuffer(bytearray(f.read()), dtype=torch.uint16).to(torch.int64)
    return torch.stack([ids[r * SEQ_LEN:][:SEQ_LEN + 1] for r in range(ROWS)])


def documents():
    """Token ids of the documents that fill four rows of 16."""
    torch.manual_seed(13)
    return [torch.randint(0, VOCAB, (n + 1,)) for n in (7, 9, 16, 5, 6, 5, 3, 13)]


def load(folder, dtype):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").train()


def loss_of(model, batch):
    logits = model(batch[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def check_logits(family, path):
    with torch.no_grad():
        want = load(family, torch.float64).eval()(torch.tensor([TOKENS])).logits[0]
    with open(path) as f:
        got = torch.tensor([[float(x) for x in line.replace(",", " ").split()] for line in f], dtype=torch.float64)
    assert got.shape == want.shape, f"{got.shape} for {want.shape}"
    worst, largest = (got - want).abs().max().item(), want.abs().max().item()
    assert worst <= 1e-5 * largest, f"{worst} of {largest}"
    return f"logits differ by {worst / largest:.1g} of the largest"


def check_tokens(family, path):
    count = 2 if family == "phi3" else 24  # as many as leave longrope with its short factors
    model = load(family, torch.float64).eval()
    ids = torch.tensor([TOKENS])
    with torch.no_grad():
        for _ in range(count):
            ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    want = ids[0, len(TOKENS):].tolist()
    with open(path) as f:
        got = [int(t) for t in f.read().replace(",", " ").split()][-count:]
    assert got == want, f"{got}, transformers: {want}"
    return f"{count} greedy tokens are those of transformers"


def check_gradients(family, folder):
    model = load(family, torch.float64)
    loss_of(model, rows()).backward()
    before, after = load_file(f"{family}/model.safetensors"), load_file(f"{folder}/model.safetensors")
    error, total = {}, torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    state = dict(model.named_parameters(remove_duplicate=False))
    for name, value in before.items():
        want = state[name if name in state else name.replace("embed_out", "lm_head")].grad
        got = (value.double() - after[name].double()) / RATE
        error[name] = ((got - want).norm() / want.norm()).item()
        # That of a bias of keys without rotary positions is 0, as every score gets the same: within 1e-7 of all.
        if want.norm() <= 1e-7 * total:
            error[name] = (got.norm() / total).item() * 100
    wrong = {k: v for k, v in error.items() if not v <= 1e-5}
    assert not wrong, wrong
    return f"gradients of {len(error)} tensors differ by up to {max(error.values()):.1g}"


def check_folder(family, folder):
    before, after = load_file(f"{family}/model.safetensors"), load_file(f"{folder}/model.safetensors")
    before, after = ({k: (v.shape, v.dtype) for k, v in x.items()} for x in (before, after))
    assert before == after, set(before.items()) ^ set(after.items())
    _, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    problems = {k: v for k, v in info.items() if v}
    assert not problems, problems
    return f"transformers loads the merged folder, whose {len(after)} tensors are those of save_pretrained"


def packed_loss(model):
    """The mean over the tokens of all documents, each of which runs alone."""
    total = sum(loss_of(model, ids[None]) * (len(ids) - 1) for ids in documents())
    return total / sum(len(ids) - 1 for ids in documents())


def check_losses(family, path):
    bound = 5e-3 if ".bf16/" in path else 2e-6
    model = load(family, torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    want = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = packed_loss(model) if ".packed/" in path else loss_of(model, rows())
        loss.backward()
        optimizer.step()
        want.append(loss.item())
    with open(path) as f:
        got = [row["loss"] for row in map(json.loads, f) if "loss" in row]
    assert len(got) == STEPS and want[-1] < want[0], (got, want)
    worst = max(abs(g - w) / w for g, w in zip(got, want))
    assert worst <= bound, f"{worst}: {list(zip(got, want))}"
    return f"ten losses from {want[0]:.4f} to {want[-1]:.4f} differ by up to {worst:.1g}"


def check(run, *families):
    checks = [("logits", check_logits), ("tokens", check_tokens), ("sgd", check_gradients), ("sgd", check_folder),
              ("metrics.jsonl", check_losses)]
    for family in families:
        for name, function in checks:
            path = f"{family}.{run}/{name}"
            if not os.path.exists(path):
                continue
            try:
                print(f"ok - {family}: {function(family, path)}")
            except Exception as e:
                print(f"not ok - {family}: {function.__name__}\n# {str(e)[:900]}")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    {"list": lambda: print(*MODELS), "make": make, "check": check}[sys.argv[1]](*sys.argv[2:])
