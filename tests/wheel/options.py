# SPDX-License-Identifier: Apache-2.0
"""options.py TOP BIN: what merge, reshard and check write and say by their options is what the programs in BIN write
and say. Needs neither NumPy nor PyTorch."""

import json
import os
import pickle
import shutil
import subprocess
import sys

import fsdp_ckpt

top, programs = sys.argv[1:]
sys.path.insert(0, top + "/tests/wheel/lib")
from tap import ok, refused  # noqa: E402

model, flat = top + "/tests/data/llama-tiny", top + "/tests/data/fsdp1"


def contents(path):
    """Bytes of a file, or of all files of a folder by their names."""
    if os.path.isfile(path):
        with open(path, "rb") as file:
            return file.read()
    return {os.path.relpath(os.path.join(at, name), path): contents(os.path.join(at, name))
            for at, _, names in os.walk(path) for name in names}


def ours(name, *args):
    """What a program writes to an output that is called the same, in another folder."""
    os.makedirs("ours", exist_ok=True)
    subprocess.run([f"{programs}/{args[0]}", *args[1:], "-o", "ours/" + name, "--quiet"], check=True)
    return contents("ours/" + name)


def same(name, text, *args):
    have, want = contents(name), ours(name, *args)
    ok(have == want, text + ("" if have == want else f": {[f for f in want if have.get(f) != want[f]]}"
                             if isinstance(want, dict) and isinstance(have, dict) else ": bytes"))


# ---- merge ----------------------------------------------------------------------------------------

fsdp_ckpt.merge(model, "hf")
same("hf", "a folder, with its card", "ckpt-merge", model)
ok(os.path.getsize("hf/README.md") > 100, "the card is there")
fsdp_ckpt.merge(model, "bare", card=False)
same("bare", "a folder without a card", "ckpt-merge", "--no-card", model)
ok(not os.path.exists("bare/README.md"), "it is not there")
fsdp_ckpt.merge(model, "codes", dtype="bfloat16", quantize="fp8_dynamic", quantize_ignore=["*.down_proj", "*.q_proj"])
same("codes", "a quantized folder", "ckpt-merge", model, "--dtype", "bfloat16", "--quantize", "fp8_dynamic",
     "--quantize-ignore", "*.down_proj", "--quantize-ignore", "*.q_proj")
with open("codes/config.json", encoding="utf-8") as file:
    ignored = json.load(file)["quantization_config"]["ignore"]
ok(sum(name.endswith(("down_proj", "q_proj")) for name in ignored) >= 2, f"layers that are ignored: {ignored[:3]}")
for end in ("pt", "pth", "bin"):
    fsdp_ckpt.merge(model, "whole." + end)
    same("whole." + end, f"a file of torch.save: .{end}", "ckpt-merge", model)
    ok(fsdp_ckpt.open("whole." + end).format == "torch.save", "it is one")
fsdp_ckpt.merge(model, "pickled", format="torch")
same("pickled", "a folder of pytorch_model.bin", "ckpt-merge", "--torch", model)
ok(os.path.exists("pickled/pytorch_model.bin"), "it has one")
with refused(fsdp_ckpt.ArgumentError, "a quantized file", "Hugging Face folder"):
    fsdp_ckpt.merge(model, "x.safetensors", quantize="fp8_dynamic")
with refused(fsdp_ckpt.ArgumentError, "an unknown scheme", "int3"):
    fsdp_ckpt.merge(model, "x", quantize="int3")
with refused(fsdp_ckpt.ArgumentError, "ignored layers of nothing", "quantize_ignore"):
    fsdp_ckpt.merge(model, "x", quantize_ignore=["*"])
with refused(fsdp_ckpt.ArgumentError, "a text in place of their list", "quantize_ignore", "list"):
    fsdp_ckpt.merge(model, "x", quantize="fp8_dynamic", quantize_ignore="lm_head")
with refused(fsdp_ckpt.ArgumentError, "a text in place of adapters", "adapters", "list"):
    fsdp_ckpt.merge(model, "x", adapters="adapter")
with refused(fsdp_ckpt.ArgumentError, "another format", "torch", "pickle"):
    fsdp_ckpt.merge(model, "x", format="pickle")

# ---- average --------------------------------------------------------------------------------------

fsdp_ckpt.merge(model, "rounded", dtype="float16")
fsdp_ckpt.merge(model + "=2", "mean", average=["rounded", "hf=3"])
same("mean", "an average of three", "ckpt-merge", "--average", model + "=2", "rounded", "hf=3")
fsdp_ckpt.merge(model, "far.safetensors", average=["rounded=0.5"])
ok(contents("far.safetensors") != ours("one.safetensors", "ckpt-merge", model), "it is not the first one")
with refused(fsdp_ckpt.NotFoundError, "an absent checkpoint of an average", "absent"):
    fsdp_ckpt.merge(model, "x", average=["absent"])
with refused(fsdp_ckpt.ArgumentError, "an average with an optimizer's tensors", "average"):
    fsdp_ckpt.merge(model, "x", average=["rounded"], optim=True)
with refused(fsdp_ckpt.ArgumentError, "a text in place of its list", "average", "list"):
    fsdp_ckpt.merge(model, "x", average="rounded")
with fsdp_ckpt.open(model) as first, refused(fsdp_ckpt.ArgumentError, "an average from one that is open", "average"):
    first.merge("x", average=["rounded"])
same_flat = [flat + "/local", flat + "/local=3"]
fsdp_ckpt.merge(same_flat[0], "flats.safetensors", average=same_flat[1:], config=flat + "/model")
same("flats.safetensors", "config of an average", "ckpt-merge", "--average", *same_flat, "--config", flat + "/model")

# ---- config ---------------------------------------------------------------------------------------

with refused(fsdp_ckpt.NotFoundError, "flat parameters without config.json", "config"):
    fsdp_ckpt.open(flat + "/local")
with fsdp_ckpt.open(flat + "/local", flat + "/model") as local:
    ok(local.format == "fsdp1" and len(local) > 5, f"opened with one: {len(local)} tensors")
    local.merge("flat.safetensors")
    again = pickle.loads(pickle.dumps(local))
    ok(list(again) == list(local), "a copy in another process has it, too")
    child = os.fork()
    if not child:
        name = next(iter(local))
        read = local.read(name, bytearray(local.tensors[name].nbytes))
        os._exit(0 if any(read) else 1)
    ok(os.waitpid(child, 0)[1] == 0, "and one after a fork")
    with refused(fsdp_ckpt.ArgumentError, "config of one that is open", "config", "open"):
        local.merge("x.safetensors", config=flat + "/model")
same("flat.safetensors", "merged", "ckpt-merge", flat + "/local", "--config", flat + "/model")
fsdp_ckpt.merge(flat + "/local", "merged", config=flat + "/model/config.json")
same("merged", "merged from its path; config.json goes along", "ckpt-merge", flat + "/local", "--config",
     flat + "/model")
fsdp_ckpt.reshard(flat + "/local", "three", 3, config=flat + "/model")
ok(fsdp_ckpt.open("three").mesh == (1, 3), "and resharded")

# ---- check ----------------------------------------------------------------------------------------

found = fsdp_ckpt.check(model)
ok(found.mismatches == [] and found.by_family and found.family == "llama" and found.why is None and found.ntensors > 5,
   f"a whole model is as its config.json says: {found}")
shutil.copytree(model, "odd")
with open("odd/config.json", encoding="utf-8") as file:
    config = json.load(file)
config["intermediate_size"] += 1
os.chmod("odd/config.json", 0o644)
with open("odd/config.json", "w", encoding="utf-8") as file:
    json.dump(config, file)
with fsdp_ckpt.open("odd") as odd:
    found = odd.check()
said = subprocess.run([programs + "/ckpt-merge", "--check", "--json", "odd"], stdout=subprocess.PIPE).stdout
ok(found.mismatches and [m._asdict() for m in found.mismatches] ==
   [{key: m[key] for key in ("text", "tensor", "file")} for m in json.loads(said)["mismatches"]],
   f"another width: what the program says: {found.mismatches[:1]}")
ok(all(m.tensor and m.tensor in m.text and m.tensor.endswith(".weight") for m in found.mismatches), "by the tensors")
del config["model_type"]
with open("odd/config.json", "w", encoding="utf-8") as file:
    json.dump(config, file)
found = fsdp_ckpt.check("odd")
ok(not found.by_family and found.family is None and found.why, f"without a family it says why: {found.why}")
