# SPDX-License-Identifier: Apache-2.0
"""QLoRA, and DoRA on such a model, against bitsandbytes, PEFT, transformers and torch in fp64.

make FAMILY...        the tiny model of each (families.py) in bf16, in folder FAMILY; the same as transformers saves it
                      when bitsandbytes quantizes it, in FAMILY.nf4; and an adapter of it, in FAMILY.lora.start, and one
                      with magnitudes, in FAMILY.dora.start
new FAMILY FOLDER     the magnitudes of a run without a step are those that PEFT begins with on the Linear4bit of
                      bitsandbytes, whose weights it decodes
check KIND RUN,... FAMILY...
                      the checks of adapters.py of each run, where the reference is the model with the values that
                      bitsandbytes decodes, in fp64; the losses of the first run are those of PEFT on the Linear4bit of
                      bitsandbytes in fp32, within 1e-5; the tensors that FAMILY.linears names are those that
                      transformers has quantized; and FAMILY.full has the values that bitsandbytes decodes
"""
import json

import bitsandbytes.functional as bnb
import peft
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file

import adapters
import each
import families

load_as_stored = families.load


def quantized_names(folder):
    with safe_open(f"{folder}/model.safetensors", "pt") as f:
        return {name.removesuffix(".absmax") for name in f.keys() if name.endswith("weight.absmax")}


def load(family, dtype):
    """The model with what 4 bits leave of its linear maps."""
    model = load_as_stored(family, torch.float32)
    state = model.state_dict()
    for name in quantized_names(f"{family}.nf4"):
        packed, how = bnb.quantize_4bit(state[name].bfloat16().float(), blocksize=64, compress_statistics=True,
                                        quant_type="nf4")
        state[name].copy_(bnb.dequantize_4bit(packed, how))
    return model.to(dtype)


def make(*names):
    families.make(*names)
    for family in names:
        load_as_stored(family, torch.bfloat16).save_pretrained(family)
        how = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                                              bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.float32)
        transformers.AutoModelForCausalLM.from_pretrained(
            family, quantization_config=how, dtype=torch.float32, device_map="cpu").save_pretrained(f"{family}.nf4")
    adapters.make("lora,dora", *names)


def load_packed(family):
    base = transformers.AutoModelForCausalLM.from_pretrained(f"{family}.nf4", attn_implementation="eager",
                                                             device_map="cpu")
    assert any(type(module).__name__ == "Linear4bit" for module in base.modules())
    return base


def train(kind, family):
    """Ten steps as users of PEFT take them."""
    model = peft.PeftModel.from_pretrained(load_packed(family), f"{family}.{kind}.start", is_trainable=True).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, betas=(0.9, 0.95),
                                  weight_decay=0)
    losses = []
    for _ in range(adapters.STEPS):
        optimizer.zero_grad()
        loss = families.losses_of(model, families.rows())[0]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def new(family, folder):
    base = load_packed(family)
    want = adapters.trained(peft.get_peft_model(base, adapters.config_of("dora", load_as_stored(family, torch.float32))))
    got = load_file(f"{folder}/adapter_model.safetensors")
    magnitudes = [name for name in got if name.endswith(adapters.MAGNITUDE)]
    worst = max(((got[name] - want[name]).abs() / want[name]).max().item() for name in magnitudes)
    assert len(magnitudes) > 5 and worst <= 1e-6, worst


def check_peft(kind, family, run):
    want = train(kind, family)
    with open(f"{family}.{kind}.{run}/metrics.jsonl") as f:
        got = [row["loss"] for row in map(json.loads, f) if "loss" in row]
    worst = max(abs(g - w) / w for g, w in zip(got, want))
    good = len(got) == len(want) and worst <= 1e-5
    print(f"{'ok' if good else 'not ok'} - {family}: PEFT's losses on Linear4bit differ by up to {worst:.1g}")


def check_linears(family):
    with open(f"{family}.linears") as f:
        good = set(f.read().split()) == quantized_names(f"{family}.nf4")
    print(f"{'ok' if good else 'not ok'} - {family}: what is read quantized is what transformers quantized")


def check_full(family):
    """FAMILY.full: what transformers dequantizes, to the bit."""
    got, info = transformers.AutoModelForCausalLM.from_pretrained(f"{family}.full", dtype="auto",
                                                                  output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    want, state = load(family, torch.float32).state_dict(), got.state_dict()
    wrong = [name for name in want if not torch.equal(state[name].float(), want[name])]
    print(f"{'not ok' if wrong else 'ok'} - {family}: the decoded folder has bitsandbytes' values {wrong}")


def check(kind, runs, *names):
    families.load = load
    for run in runs.split(","):
        adapters.check(kind, run, *names)
    for family in names:
        check_peft(kind, family, runs.split(",")[0])
        if kind == "lora":
            check_linears(family)
            check_full(family)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    each.run(make=make, new=new, check=check)
