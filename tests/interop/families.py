# SPDX-License-Identifier: Apache-2.0
"""Every decoder family against transformers and torch in fp64.

list                 the families
mixtures             those that have experts
make FAMILY...       a tiny model of each, in folder FAMILY, with odd sizes and every trait of the family on; and
                     tokens.bin and documents.jsonl, each the rows of a batch
dcp FAMILY...        FAMILY.torch: torch's distributed checkpoint of the model as save_pretrained names it
check RUN FAMILY...  prints a TAP line for each check of each family, where FAMILY.RUN holds, as far as it exists:
  logits             fsdp-generate's logits of TOKENS: those of transformers, within 1e-5 of the largest
  tokens             its greedy tokens after TOKENS: those of transformers, which computes all anew for each
  sgd/               the model after a step of SGD with learning rate RATE: its gradients are those of torch, within
                     1e-5 of each tensor's; transformers loads it without missing or unexpected keys, and names, shapes
                     and types are those that save_pretrained wrote
  metrics.jsonl      losses of ten steps of AdamW, with the load-balance loss of experts: those of torch, within 2e-6
                     (RUN bf16: within 5e-3, of mixtures of experts 4e-2; RUN packed: of each document alone); how
                     even the load of experts is in the first step; RUN router...: with the z-loss of the routers
  dcp/               the checkpoint, resharded for torch: it loads there, and its weights are those of sgd/
  back.safetensors   FAMILY.torch, resharded for three ranks and merged: the model again
"""
import functools
import json
import os
import sys

import torch
import torch.distributed.checkpoint as dcp
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

import each

VOCAB, SEQ_LEN, ROWS, RATE, STEPS, Z_LOSS = 67, 24, 4, 64.0, 10, 0.02
TOKENS = [0, 1, 66, 17, 42, 42, 9, 5, 30, 3, 61, 7, 8, 2]

COMMON = dict(vocab_size=VOCAB, hidden_size=36, intermediate_size=52, num_hidden_layers=3, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=48, initializer_range=0.2)
WINDOW = dict(sliding_window=7)
TYPES = dict(layer_types=["sliding_attention", "full_attention", "sliding_attention"])
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=12, rope_theta=1000.0)
EXPERTS = dict(COMMON, num_experts_per_tok=2, output_router_logits=True, router_aux_loss_coef=0.1)
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
    "gemma3": dict(image_token_index=VOCAB + 2, boi_token_index=VOCAB, eoi_token_index=VOCAB + 1, mm_tokens_per_image=4),
    "granite": dict(COMMON, hidden_size=40, attention_bias=True, mlp_bias=True, embedding_multiplier=12.0,
                    logits_scaling=8.0, residual_multiplier=0.22, attention_multiplier=0.15),
    "mixtral": dict(EXPERTS, num_local_experts=5, head_dim=10, **WINDOW),
    "qwen3_moe": dict(EXPERTS, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=20, head_dim=14,
                      attention_bias=True, norm_topk_prob=True, use_sliding_window=True, **WINDOW),
    "olmoe": dict(EXPERTS, hidden_size=40, num_experts=6, num_experts_per_tok=3, attention_bias=True),
    "granitemoe": dict(EXPERTS, hidden_size=40, num_local_experts=5, attention_bias=True, embedding_multiplier=12.0,
                       logits_scaling=8.0, residual_multiplier=0.22, attention_multiplier=0.15),
    "granitemoeshared": dict(EXPERTS, hidden_size=40, num_local_experts=5, shared_intermediate_size=28,
                             embedding_multiplier=12.0, logits_scaling=8.0, residual_multiplier=0.22,
                             attention_multiplier=0.15),
    "gpt_oss": dict(EXPERTS, num_local_experts=5, head_dim=10, rope_parameters=dict(YARN, truncate=False),
                    **WINDOW, **TYPES),
    "gpt2": dict(vocab_size=VOCAB, n_embd=36, n_layer=3, n_head=3, n_positions=48, n_inner=52, embd_pdrop=0,
                 attn_pdrop=0, resid_pdrop=0, initializer_range=0.2),
    "gpt_neox": dict(COMMON, hidden_size=40, num_attention_heads=5, rotary_pct=0.5, num_key_value_heads=None),
}
# A text model like gemma3_text's, but without its soft cap, which transformers has in gemma3_text alone; and a model of
# images, which no text meets.
TEXT = dict(MODELS["gemma3_text"], pad_token_id=None, final_logit_softcapping=None)
MODELS["gemma3"].update(text_config=TEXT, vision_config=dict(
    hidden_size=20, intermediate_size=28, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14))


def make(*families):
    torch.manual_seed(12)
    ids = torch.randint(0, VOCAB, (ROWS * SEQ_LEN + 1,), dtype=torch.int32)
    with open("tokens.bin", "wb") as f:
        f.write(ids.to(torch.uint16).numpy().tobytes())
    with open("documents.jsonl", "w") as f:
        for document in documents():
            print(json.dumps({"input_ids": document.tolist()}), file=f)
    for family in families:
        seed = 11
        while not make_one(family, seed):  # its router could choose otherwise in another precision
            seed += 1


def make_one(family, seed):
    torch.manual_seed(seed)
    keys = {k: v for k, v in MODELS[family].items() if v is not None}
    config = AutoConfig.for_model(family, bos_token_id=1, eos_token_id=2, pad_token_id=None, **keys)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():  # norms and biases begin as ones and zeros, which would hide mistakes
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 or name.endswith("bias"):
                # gpt_oss clamps at 7 what gate_up_proj gives: of a twentieth, then
                std = 4 if name.endswith("gate_up_proj_bias") else 0.1
                parameter.add_(std * torch.randn_like(parameter))
    model.save_pretrained(family)
    return not is_mixture(family) or router_margin(family) > 1e-4


def is_mixture(family):
    return "num_experts_per_tok" in MODELS[family]


def router_margin(family):
    """How far apart the last expert that is chosen and the first that is not are, in probability, anywhere."""
    model, k, margin = load(family, torch.float64), MODELS[family]["num_experts_per_tok"], 1.0
    with torch.no_grad():
        for ids in [rows()[:, :-1], torch.tensor([TOKENS])] + [d[None, :-1] for d in documents()]:
            for logits in model(ids, output_router_logits=True).router_logits:
                p = logits.softmax(-1).sort(-1, descending=True).values
                margin = min(margin, (p[..., k - 1] - p[..., k]).min().item())
    return margin


def rows():
    """The rows of every step: the file is one batch."""
    with open("tokens.bin", "rb") as f:
        ids = torch.frombuffer(bytearray(f.read()), dtype=torch.uint16).to(torch.int64)
    return torch.stack([ids[r * SEQ_LEN:][:SEQ_LEN + 1] for r in range(ROWS)])


def documents():
    """Token ids of the documents that fill four rows of 16."""
    torch.manual_seed(13)
    return [torch.randint(0, VOCAB, (n + 1,)) for n in (7, 9, 16, 5, 6, 5, 3, 13)]


def load(family, dtype):
    eager = dict(attn_implementation="eager", **({"experts_implementation": "eager"} if is_mixture(family) else {}))
    model = AutoModelForCausalLM.from_pretrained(family, dtype=dtype, **eager)
    # To train, gemma3 asks which tokens are images. Nothing in it depends on the mode besides.
    return model.train(family != "gemma3")


def is_carried(family, name):
    """Is it the name of a tensor that text does not meet?"""
    return family == "gemma3" and not name.startswith("language_model.")


def losses_of(model, batch):
    """The mean loss of a batch, the load-balance loss of its experts, and their router's logits."""
    mixture = {"output_router_logits": True} if hasattr(model, "router_aux_loss_coef") else {}
    out = model(batch[:, :-1], **mixture)
    loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), batch[:, 1:].flatten())
    return loss, out.aux_loss if mixture else 0, out.router_logits if mixture else ()


def step_of(family, path):
    """What a step of the run in FAMILY.RUN/... is: "packed", with the "router"'s z-loss, "whole", or "split". Experts are
    balanced among the rows that all ranks have at a time: rows apart are only for mixtures another step."""
    run = path.split("/")[0].split(".")[1]
    return "packed" if run == "packed" else "router" if run.startswith("router") else \
        "split" if run == "one" and is_mixture(family) else "whole"


def losses_of_step(model, step):
    if step == "packed":
        return packed_losses(model)
    if step == "router":
        loss, balance, logits = losses_of(model, rows())
        return loss, balance, Z_LOSS * torch.cat(logits).logsumexp(-1).square().mean()
    batches = rows().split(1 if step == "split" else ROWS)
    losses = [losses_of(model, batch)[:2] for batch in batches]
    return [sum(each) / len(batches) for each in zip(*losses)]


def whole_loss(model, losses):
    return losses[0] + getattr(model, "router_aux_loss_coef", 0) * losses[1] + sum(losses[2:])


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


@functools.cache
def gradients_of(family, step):
    """By the names that parameters have on disk; and the norm of all."""
    model = load(family, torch.float64)
    whole_loss(model, losses_of_step(model, step)).backward()
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    total = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    for parameter in model.parameters():
        parameter.data = parameter.grad
    model.save_pretrained(f"{family}-gradients-{step}")
    return load_file(f"{family}-gradients-{step}/model.safetensors"), total


def check_gradients(family, folder):
    gradients, total = gradients_of(family, step_of(family, folder))
    before, after = load_file(f"{family}/model.safetensors"), load_file(f"{folder}/model.safetensors")
    error = {}
    for name, value in before.items():
        want = gradients[name]
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
    changed = [k for k in before if is_carried(family, k) and not before[k].equal(after[k])]
    assert not changed, changed
    before, after = ({k: (v.shape, v.dtype) for k, v in x.items()} for x in (before, after))
    assert before == after, set(before.items()) ^ set(after.items())
    _, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    problems = {k: v for k, v in info.items() if v}
    assert not problems, problems
    return f"transformers loads the merged folder, whose {len(after)} tensors are those of save_pretrained"


def save_dcp(*families):
    for family in families:
        dcp.save({"model": load_file(f"{family}/model.safetensors")}, checkpoint_id=f"{family}.torch", no_dist=True)


def differing(one, other):
    return [k for k in one.keys() | other.keys() if k not in one or k not in other or not one[k].equal(other[k])]


def check_dcp(family, folder):
    """The weights that torch reads are the merged ones; a tied one has both of its names there."""
    want = load_file(f"{folder}/../sgd/model.safetensors")
    got = {name: torch.full_like(value, torch.nan) for name, value in want.items()}
    dcp.load({"model": got}, checkpoint_id=folder, no_dist=True)
    wrong = differing(got, want)
    assert not wrong, wrong
    return f"torch reads {len(got)} tensors of the checkpoint for torch, bit-equal"


def check_back(family, path):
    wrong = differing(load_file(path), load_file(f"{family}/model.safetensors"))
    assert not wrong, wrong
    return "torch's checkpoint comes back bit-equal"


def packed_losses(model):
    """The mean over the tokens of all documents, each of which runs alone."""
    all = [losses_of(model, ids[None]) for ids in documents()]
    lengths = [len(ids) - 1 for ids in documents()]
    loss = sum(one[0] * n for one, n in zip(all, lengths)) / sum(lengths)
    if not all[0][2]:
        return loss, 0
    balance = sys.modules[type(model).__module__].load_balancing_loss_func
    logits = tuple(torch.cat(layer) for layer in zip(*(one[2] for one in all)))
    return loss, balance(logits, model.num_experts, model.num_experts_per_tok)


@functools.cache
def expert_load(family, packed):
    """How often the expert of a layer that is chosen least and most is in a step, over the mean: of all layers."""
    model = load(family, torch.float64)
    batches = [ids[None] for ids in documents()] if packed else [rows()]
    logits = [losses_of(model, batch)[2] for batch in batches]
    loads = []
    for layer in zip(*logits):
        chosen = torch.cat(layer).topk(model.num_experts_per_tok).indices
        counts = chosen.flatten().bincount(minlength=model.num_experts).double()
        loads += [counts.min() / counts.mean(), counts.max() / counts.mean()]
    return [min(loads).item(), max(loads).item()]


def check_load(family, path):
    if not is_mixture(family) or ".bf16/" in path:
        return None
    want = expert_load(family, step_of(family, path) == "packed")
    with open(path) as f:
        first = json.loads(f.readline())
    got = [first["expert_load_min"], first["expert_load_max"]]
    assert max(abs(g - w) for g, w in zip(got, want)) < 1e-6, (got, want)
    return f"the load of experts is {got[0]:.3f} to {got[1]:.3f} of the mean"


@functools.cache
def trained_losses(family, step):
    """Of ten steps of AdamW; and the factor of the load-balance loss."""
    model = load(family, torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    want = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = whole_loss(model, losses_of_step(model, step))
        loss.backward()
        optimizer.step()
        want.append(loss.item())
    return want, getattr(model, "router_aux_loss_coef", 0)


def check_losses(family, path):
    # AdamW makes a step of full size of a gradient that is nearly zero: phi3 has one here, whose rounding decides.
    bound = 4e-6 if family == "phi3" else 2e-6
    if ".bf16/" in path:  # a router whose logits are rounded chooses another expert now and then
        bound = 4e-2 if is_mixture(family) else 5e-3
    want, coef = trained_losses(family, step_of(family, path))
    with open(path) as f:
        steps = [row for row in map(json.loads, f) if "loss" in row]
    got = [row["loss"] + coef * row.get("router_loss", 0) for row in steps]
    if ".router" in path:
        got = [loss + Z_LOSS * row["router_z_loss"] for loss, row in zip(got, steps)]
    assert len(got) == STEPS and want[-1] < want[0], (got, want)
    worst = max(abs(g - w) / w for g, w in zip(got, want))
    assert worst <= bound, f"{worst}: {list(zip(got, want))}"
    return f"ten losses from {want[0]:.4f} to {want[-1]:.4f} differ by up to {worst:.1g}"


def check(run, *families):
    checks = [("logits", check_logits), ("tokens", check_tokens), ("sgd", check_gradients), ("sgd", check_folder),
              ("dcp", check_dcp), ("back.safetensors", check_back),
              ("metrics.jsonl", check_losses), ("metrics.jsonl", check_load)]
    for family in families:
        for name, function in checks:
            path = f"{family}.{run}/{name}"
            if not os.path.exists(path):
                continue
            try:
                what = function(family, path)
                if what:
                    print(f"ok - {run}: {family}: {what}")
            except Exception as e:
                print(f"not ok - {run}: {family}: {function.__name__}\n# {str(e)[:900]}")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    each.run(list=lambda: print(*MODELS), mixtures=lambda: print(*filter(is_mixture, MODELS)), make=make, dcp=save_dcp,
             check=check)
