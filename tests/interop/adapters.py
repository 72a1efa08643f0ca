# SPDX-License-Identifier: Apache-2.0
"""Adapters against PEFT, transformers and torch in fp64.

families                  the families whose models have adapters here
make KIND,... FAMILY...   an adapter of each kind of the tiny model of each (families.py), in folder FAMILY.KIND.start, made and
                          saved by PEFT, with a B that is not zero and magnitudes that are not the weights' lengths
check KIND RUN FAMILY...  prints a TAP line for each check of each family, where FAMILY.KIND.RUN holds, as far as it exists:
  sgd/                    the adapter after a step of SGD with learning rate RATE: its gradients are those of torch,
                          within 1e-5 of each tensor's
  metrics.jsonl           losses of ten steps of AdamW: those of torch, within 2e-6
  adamw/                  the adapter after them: PEFT loads it without missing or unexpected keys, and each tensor is
                          within 1e-5 of torch's
  merged/                 the merged folder: that of PEFT's merge_and_unload; transformers loads it without missing or
                          unexpected keys
two FAMILY FOLDER         the folder is the model with the adapter lora and -0.5 times the adapter rslora
tied                      PEFT's merge of an adapter of a tied head changes the embedding, too, and so what the model computes
change FOLDER TENSOR      changes an element of a tensor
losses FILE FILE          two files of metrics have the same losses; of a step that is there twice, the latter counts
same MODEL ADAPTER MERGED PEFT's greedy tokens with the adapter are transformers' with the merged folder
dropped FAMILY P KIND...  the run in row.KIND, of one row with lora.dropout P, is PEFT's with the same masks
new FAMILY FOLDER    the adapter of a run without a step: A has the values of kaiming_uniform_(a=sqrt(5)), B is 0, and
                     magnitudes are PEFT's
"""
import functools
import json
import os
import sys
import warnings

import numpy as np
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

import each
import families

warnings.filterwarnings("ignore")
R, ALPHA, RATE, STEPS = 3, 7, families.RATE, families.STEPS
HEAD = "lm_head"
MAGNITUDE = "lora_magnitude_vector"
KINDS = {
    "lora": dict(),
    "rslora": dict(use_rslora=True, head=True),
    "dora": dict(use_dora=True, head=True),
    "save": dict(save=True),
    "experts": dict(target_parameters=["experts.gate_up_proj", "experts.down_proj"]),
    "gate": dict(target_parameters=["gate_up_proj"]),
    "all": dict(mixture=True),  # to which PEFT adds the router, and twice the rank of gate_up_proj
    "router": dict(target_parameters=["gate.weight", "router.weight", "experts.down_proj"],
                   rank_pattern={r".*\.down_proj": 5, "mlp.gate.weight": 2}, alpha_pattern={"k_proj": 3, r"ro[tu]+er\.weight": 4}),
    "ranks": dict(head=True, rank_pattern={"self_attn.q_proj": 5, "(k|v)_proj": 1, "lm_head": 4},
                  alpha_pattern={r"layers\.\d+\.mlp\..*": 11, "lm_head": 3}),
    "down": dict(target_parameters=["experts.down_proj"], target_modules=[], use_rslora=True),
}
# One of each way in which linear maps are stored, and of each place of norms.
FAMILIES = ["llama", "qwen3", "olmo2", "phi3", "gemma2", "granite", "gpt2", "gpt_neox"]


def head_of(model):
    name = [name for name, module in model.named_modules() if module is model.get_output_embeddings()][0]
    return name


def config_of(kind, model):
    """all-linear; where the head is not tied, it may be trained whole or have an adapter, too."""
    keys = dict(KINDS[kind])
    save, head, keys_of_mixture = keys.pop("save", False), keys.pop("head", False), keys.pop("mixture", False)
    tied = model.config.tie_word_embeddings
    maps = sorted({name.split(".")[-1] for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)})
    if "target_parameters" in keys:  # with all-linear PEFT adds the routers of some families, and gives experts two ranks
        keys.setdefault("target_modules", [name for name in maps if name != HEAD])
        return peft.LoraConfig(task_type="CAUSAL_LM", r=R, lora_alpha=ALPHA, **keys)
    if keys_of_mixture:
        return peft.LoraConfig(task_type="CAUSAL_LM", r=R, lora_alpha=ALPHA, target_modules="all-linear")
    return peft.LoraConfig(task_type="CAUSAL_LM", r=R, lora_alpha=ALPHA,
                           target_modules=maps if head and not tied else "all-linear",
                           modules_to_save=[head_of(model)] if save and not tied else None, **keys)


def make(kinds, *names):
    for kind, family in ((kind, family) for kind in kinds.split(",") for family in names):
        torch.manual_seed(21)
        model = families.load(family, torch.float32)
        model = peft.get_peft_model(model, config_of(kind, model))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.1)
                if MAGNITUDE in name:
                    parameter.mul_(1 + 0.1 * torch.randn_like(parameter))
        model.save_pretrained(f"{family}.{kind}.start")


def adapted(family, folder):
    """The model with an adapter, in fp64."""
    base = families.load(family, torch.float64)
    model = peft.PeftModel.from_pretrained(base, folder, is_trainable=True, autocast_adapter_dtype=False)
    return model.to(torch.float64).train()


def trained(model):
    """Values and gradients of what is trained, under the names of PEFT's file."""
    state = {name.replace(".default", "").replace(".modules_to_save", "").replace(MAGNITUDE + ".weight", MAGNITUDE): parameter
             for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert state
    return state


def check_gradients(kind, family, folder):
    model = adapted(family, f"{family}.{kind}.start")
    families.whole_loss(model, families.losses_of(model, families.rows())[:2]).backward()
    before = load_file(f"{family}.{kind}.start/adapter_model.safetensors")
    before.pop(f"base_model.model.{HEAD}.base_layer.weight", None)  # PEFT saves a head that has an adapter, too
    after = load_file(f"{folder}/adapter_model.safetensors")
    want = trained(model)
    assert set(before) == set(after) == set(want), (set(before) ^ set(after), set(before) ^ set(want))
    error = {}
    for name, value in before.items():
        grad = want[name].grad
        error[name] = (((value.double() - after[name].double()) / RATE - grad).norm() / grad.norm()).item()
    wrong = {k: v for k, v in error.items() if not v <= 1e-5}
    assert not wrong, wrong
    return f"gradients of {len(error)} tensors differ by up to {max(error.values()):.1g}"


def adamw(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, betas=(0.9, 0.95),
                             weight_decay=0)


@functools.cache
def train(kind, family):
    model = adapted(family, f"{family}.{kind}.start")
    optimizer = adamw(model)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = families.losses_of(model, families.rows())[:2]
        families.whole_loss(model, loss).backward()
        optimizer.step()
        losses.append(loss[0].item())
    return model, losses


class Dropped(torch.nn.Module):
    """Dropout whose masks are the run's: element 8 w + j of block i of a row is word w of counter 8 i + j (Philox 4x32-10),
    keyed by seed, layer and place, and dropped where that is below p."""
    step = 0  # of the run, which is also the number of its row

    def __init__(self, p, layer, site):
        super().__init__()
        key = 0xcbf29ce484222325
        for byte in np.array([0, layer, site], dtype="<u8").tobytes():
            key = (key ^ byte) * 0x100000001b3 % 2**64
        self.p, self.key = p, key

    def words(self, counters, row):
        low = np.uint64(2**32 - 1)
        c = [counters & low, counters >> np.uint64(32), np.full_like(counters, row), np.zeros_like(counters)]
        k = [self.key % 2**32, self.key >> 32]
        for _ in range(10):
            a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
            c = [(b >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]), b & low,
                 (a >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]), a & low]
            k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
        return np.stack(c)

    def kept(self, nelem, row):
        at = np.arange(nelem, dtype=np.uint64)
        counters = at // np.uint64(32) * np.uint64(8) + at % np.uint64(8)
        words = self.words(counters, row)[at.astype(np.int64) % 32 // 8, np.arange(len(at))]
        return torch.from_numpy((words >= int(self.p * 2**32)).astype(np.float64))

    def forward(self, x):
        return x * self.kept(x[0].numel(), Dropped.step).reshape(x.shape) / (1 - self.p)


class DroppedHead(Dropped):
    """At the head each position has a number of its own."""

    def forward(self, x):
        T = x.shape[1]
        kept = [self.kept(x.shape[2], Dropped.step * T + t) for t in range(T)]
        return x * torch.stack(kept).reshape(x.shape) / (1 - self.p)


def drop(model, p):
    """Gives the adapters of a model with separate linear maps the run's dropout."""
    layers = model.base_model.model.model.layers
    maps = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
            "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    for number, layer in enumerate(layers):
        own = [name for name, _ in layer.named_parameters()]
        nbase = sum("lora_" not in name for name in own)
        parts = 2 + any(MAGNITUDE in name for name in own)
        for i, name in enumerate(maps):
            layer.get_submodule(name).lora_dropout["default"] = Dropped(p, number, 4 + nbase + parts * i)
    head = model.base_model.model.get_submodule(HEAD)
    if hasattr(head, "lora_dropout"):
        head.lora_dropout["default"] = DroppedHead(p, len(layers), 4)


def dropped(family, p, *kinds):
    for kind in kinds:
        check_dropped(family, kind, p, f"row.{kind}")


def check_dropped(family, kind, p, folder):
    model = adapted(family, f"{family}.{kind}.start")
    drop(model, float(np.float32(float(p))))
    losses = []
    optimizer = adamw(model)
    for Dropped.step in range(STEPS):
        optimizer.zero_grad()
        loss = families.losses_of(model, families.rows()[:1])[0]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    close_losses(losses, f"{folder}/metrics.jsonl")
    saved = load_file(f"{folder}/ck/step-{STEPS:08}/hf/adapter_model.safetensors")
    error = {k: ((saved[k] - v).norm() / v.norm()).item() for k, v in trained(model).items()}
    wrong = {k: v for k, v in error.items() if not v <= 1e-5}
    assert not wrong, wrong
    print(f"{family}, {kind}, dropout {p}: {len(error)} tensors differ by up to {max(error.values()):.1g}")


def check_losses(kind, family, path):
    return close_losses(train(kind, family)[1], path)


def close_losses(want, path):
    with open(path) as f:
        got = [row["loss"] for row in map(json.loads, f) if "loss" in row]
    assert len(got) == STEPS and want[-1] < want[0], (got, want)
    worst = max(abs(g - w) / w for g, w in zip(got, want))
    assert worst <= 2e-6, f"{worst}: {list(zip(got, want))}"
    return f"ten losses from {want[0]:.4f} to {want[-1]:.4f} differ by up to {worst:.1g}"


def check_adapter(kind, family, folder):
    want = trained(train(kind, family)[0])
    got = trained(adapted(family, folder))  # as PEFT reads it
    saved, config = load_file(f"{folder}/adapter_model.safetensors"), peft.PeftConfig.from_pretrained(folder)
    assert set(saved) == set(want) == set(got), (set(saved) ^ set(want), set(got) ^ set(want))
    start = peft.PeftConfig.from_pretrained(f"{family}.{kind}.start")
    for key in ("r", "lora_alpha", "use_rslora", "use_dora", "modules_to_save", "fan_in_fan_out", "task_type", "rank_pattern",
                "alpha_pattern"):
        assert getattr(config, key) == getattr(start, key), (key, getattr(config, key), getattr(start, key))
    error = {k: ((got[k] - v).norm() / v.norm()).item() for k, v in want.items()}
    bound = 3e-5 if "mixture" in KINDS[kind] else 1e-5  # AdamW enlarges what rounding leaves of small gradients
    wrong = {k: v for k, v in error.items() if not v <= bound}
    assert not wrong, wrong
    return f"{len(error)} tensors after ten steps differ by up to {max(error.values()):.1g}"


def merged_of(model, folder):
    """The folder has these values, within what a sum in another order makes."""
    got, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    got, worst = got.state_dict(), 0
    for name, want in model.state_dict().items():
        assert got[name].dtype == want.dtype, (name, got[name].dtype, want.dtype)
        bound = 1e-6 if want.dtype == torch.float32 else 2**-8
        worst = max(worst, ((got[name].double() - want.double()).abs().max() / want.abs().max() / bound).item())
    assert worst <= 1, worst
    return f"merged weights differ by {worst:.1g} of the bound"


def check_merged(kind, family, folder):
    base = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}.base", dtype="auto")
    stored = base.dtype
    if "target_parameters" in KINDS[kind] or "mixture" in KINDS[kind]:  # to which PEFT adds what it has rounded before
        base = base.float()
    merged = peft.PeftModel.from_pretrained(base, f"{family}.{kind}.start").merge_and_unload()
    return merged_of(merged.to(stored), folder)


def two(family, folder):
    model = peft.PeftModel.from_pretrained(families.load(family, torch.float32), f"{family}.lora.start", adapter_name="a")
    model.load_adapter(f"{family}.rslora.start", "b")
    model.add_weighted_adapter(["a", "b"], [1.0, -0.5], "both", combination_type="cat")
    model.set_adapter("both")
    print(merged_of(model.merge_and_unload(adapter_names=["both"]), folder))


def tied():
    config = transformers.LlamaConfig(vocab_size=67, hidden_size=40, intermediate_size=52, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)
    model = peft.get_peft_model(transformers.LlamaForCausalLM(config), peft.LoraConfig(r=R, target_modules=[HEAD]))
    torch.manual_seed(1)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
        want = model(ids).logits
        embedding = model.get_input_embeddings().weight.clone()
        merged = model.merge_and_unload()
        change = (merged(ids).logits - want).abs().max() / want.abs().max()
    assert not torch.equal(merged.get_input_embeddings().weight, embedding)
    assert change > 0.01, change
    print(f"logits change by {change:.2g} of the largest")


def change(folder, name):
    path = f"{folder}/model.safetensors"
    state = load_file(path)
    state[name].flatten()[0] += 1
    save_file(state, path, metadata={"format": "pt"})


def losses(first, second):
    rows = []
    for path in (first, second):
        with open(path) as f:
            rows.append({row["step"]: row["loss"] for row in map(json.loads, f) if "loss" in row})
    assert set(rows[0]) == set(rows[1]) and len(rows[0]) >= 30, rows
    worst = max(abs(rows[0][step] - rows[1][step]) / rows[0][step] for step in rows[0])
    assert worst <= 2e-4, worst
    assert rows[0][30] < 0.8 * rows[0][1], rows[0]
    print(f"{len(rows[0])} losses differ by up to {worst:.1g}")


def same(model, adapter, merged):
    load = transformers.AutoModelForCausalLM.from_pretrained
    apart = peft.PeftModel.from_pretrained(load(model), adapter).eval()
    got = []
    for m in (apart, load(merged).eval()):
        ids = torch.tensor([[5, 17, 42, 99, 180, 7]])
        with torch.no_grad():
            for _ in range(20):
                ids = torch.cat([ids, m(ids).logits[:, -1:].argmax(-1)], 1)
        got.append(ids[0].tolist())
    assert got[0] == got[1], got
    print(*got[0])


def check(kind, run, *names):
    checks = [("sgd", check_gradients), ("metrics.jsonl", check_losses), ("adamw", check_adapter),
              ("merged", check_merged)]
    for family in names:
        for name, function in checks:
            path = f"{family}.{kind}.{run}/{name}"
            if not os.path.exists(path):
                continue
            try:
                print(f"ok - {family}, {kind}, {run}: {function(kind, family, path)}")
            except Exception as e:
                print(f"not ok - {family}, {kind}, {run}: {function.__name__}\n# {str(e)[:900]}")


def new(family, folder):
    state = load_file(f"{folder}/adapter_model.safetensors")
    weights = {}
    if any(MAGNITUDE in name for name in state):
        model = families.load(family, torch.float32)
        weights = dict(peft.get_peft_model(model, config_of("dora", model)).named_parameters())
    for name, value in state.items():
        if "lora_B" in name:
            assert not value.any(), name
            continue
        if MAGNITUDE in name:
            want = weights[name + ".default.weight"]
            assert (value - want).norm() <= 1e-6 * want.norm(), name
            continue
        bound = value.shape[1] ** -0.5  # uniform in +-bound, as torch makes it
        assert value.abs().max() <= bound and value.abs().max() > 0.8 * bound, (name, value.abs().max(), bound)
        assert abs(value.mean()) < 0.35 * bound, (name, value.mean(), bound)
    print(f"{len(state)} tensors of {family} begin as PEFT's")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    each.run(families=lambda: print(*FAMILIES), make=make, check=check, new=new, two=two, dropped=dropped, tied=tied,
             change=change, losses=losses, same=same)
