# SPDX-License-Identifier: Apache-2.0
"""reading.py TOP: tensors of every format and type are what PyTorch reads."""

import os
import sys

import numpy
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import fsdp_ckpt

top = sys.argv[1]
sys.path.insert(0, top + "/tests/wheel/lib")
from tap import ok, refused  # noqa: E402

torch.manual_seed(0)


def flat(tree, prefix=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, torch.Tensor):
            yield prefix + key, value


def same(a, b):
    """Bit for bit, NaN too."""
    a, b = a.contiguous(), b.contiguous()
    return a.dtype == b.dtype and a.shape == b.shape and bytes(a.reshape(-1).view(torch.uint8).numpy()) == bytes(
        b.reshape(-1).view(torch.uint8).numpy()) if a.numel() else a.dtype == b.dtype and a.shape == b.shape


# ---- formats --------------------------------------------------------------------------------------

folder = top + "/tests/data/dcp-fsdp2-2r/ckpt"
dcp_to_torch_save(folder, "all.pt")
want = dict(flat(torch.load("all.pt", weights_only=False)))
with fsdp_ckpt.open(folder) as ckpt:
    by_stored = {t.stored: name for name, t in ckpt.tensors.items()}
    ok(ckpt.format == "dcp" and len(want) > 20 and set(want) <= set(by_stored), f"DCP of 2 ranks: {len(want)} tensors")
    wrong = [key for key in want if not same(ckpt.read(by_stored[key], "torch"), want[key])]
    ok(not wrong, f"all are what PyTorch reads {wrong[:3]}")
    ok({t.role for t in ckpt.tensors.values()} >= {"model", "optim"}, "weights and the optimizer's")

for path in ("zip.pt", "legacy.pt"):
    file = f"{top}/tests/data/torch-save/{path}"
    want = dict(flat(torch.load(file, weights_only=False)))
    with fsdp_ckpt.open(file) as ckpt:
        by_stored = {t.stored: name for name, t in ckpt.tensors.items()}
        ok(want and all(same(ckpt.read(by_stored[key], "torch"), value) for key, value in want.items()),
           f"torch.save: {path}, {len(want)} tensors")

# ---- types ----------------------------------------------------------------------------------------

every = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
         torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.uint64, torch.uint32,
         torch.uint16, torch.complex64]
tensors = {}
for dtype in every:
    raw = torch.randint(0, 256, (6 * 5 * dtype.itemsize,), dtype=torch.uint8)
    raw = raw % 2 if dtype is torch.bool else raw
    tensors[str(dtype)] = raw.view(dtype).reshape(6, 5).clone()
tensors["scalar"] = torch.tensor(2.5)
tensors["empty"] = torch.empty(0, 4)
tensors["deep"] = torch.randn(2, 3, 4, 5)
try:
    save_file(tensors, "types.safetensors")
except Exception:  # an older safetensors has no complex numbers
    del tensors["torch.complex64"]
    save_file(tensors, "types.safetensors")
ok(len(tensors) >= 18, f"safetensors of {len(tensors)} types and shapes")
types = fsdp_ckpt.open("types.safetensors")
for name, tensor in tensors.items():
    got = types.read(name, "torch")
    ok(same(got, tensor), f"{name} into PyTorch")
    if tensor.numel():
        try:
            ok(same(types.map(name, "torch"), tensor), f"{name} mapped into PyTorch")
        except fsdp_ckpt.UnsupportedError as error:
            ok("not aligned" in str(error), f"{name}: {error}")
    try:
        array = tensor.numpy()
    except TypeError:
        array = None
    if array is not None:
        got = types.read(name)
        ok(got.dtype == array.dtype and got.shape == array.shape and got.tobytes() == array.tobytes(),
           f"{name} into NumPy as {got.dtype}")
    elif "ml_dtypes" not in sys.modules:
        with refused(fsdp_ckpt.UnsupportedError, f"{name} into NumPy", name, "ml_dtypes", "torch"):
            types.read(name)
with refused(fsdp_ckpt.UnsupportedError, "mapping what has no elements", "'empty'"):
    types.map("empty")


class Stub:
    bfloat16 = numpy.uint16


sys.modules["ml_dtypes"] = Stub
got = types.read("torch.bfloat16")
ok(got.tobytes() == tensors["torch.bfloat16"].view(torch.int16).numpy().tobytes(),
   "bfloat16 becomes what ml_dtypes has for it")
del sys.modules["ml_dtypes"]

# ---- conversion -----------------------------------------------------------------------------------

values = torch.randn(1000) * torch.logspace(-6, 6, 1000)
save_file({"x": values}, "values.safetensors")
values_ckpt = fsdp_ckpt.open("values.safetensors")
for dtype in (torch.bfloat16, torch.float16, torch.float64):
    ok(same(values_ckpt.read("x", "torch", dtype=dtype), values.to(dtype)), f"float32 becomes {dtype} as PyTorch has it")
for dtype in ("bf16", "BF16", "bfloat16", "torch.bfloat16", torch.bfloat16):
    ok(values_ckpt.read("x", "torch", dtype=dtype).dtype is torch.bfloat16, f"a type by name: {dtype!r}")
for dtype in (numpy.float64, numpy.dtype("float64"), "f64", torch.float64):
    ok(values_ckpt.read("x", dtype=dtype).dtype == numpy.float64, f"into NumPy: {dtype!r}")
with refused(fsdp_ckpt.ArgumentError, "integers are not converted", "'torch.int64'", "I64"):
    types.read("torch.int64", "torch", dtype="float32")
with refused(fsdp_ckpt.ArgumentError, "an unknown type", "float7"):
    types.read("deep", dtype="float7")

# ---- boxes: as PyTorch indexes --------------------------------------------------------------------

deep = tensors["deep"]
for box in (slice(1, 2), (0, slice(1, 3)), (slice(None), 1, slice(2, 4), slice(-2, None)), (1, 2, 3, 4), (-1, -1), 0,
            (slice(5, 9),), slice(None), ()):
    want = deep[box]
    ok(same(types.read("deep", "torch", box=box), want.contiguous()), f"box {box}")
with refused(fsdp_ckpt.ArgumentError, "steps", "'deep'", "steps of 2"):
    types.read("deep", box=slice(0, 2, 2))
with refused(fsdp_ckpt.ArgumentError, "outside", "'deep'", "2"):
    types.read("deep", box=2)
with refused(fsdp_ckpt.ArgumentError, "too many", "'deep'", "4 dimensions"):
    types.read("deep", box=(0, 0, 0, 0, 0))

# ---- ours: cut, compressed ------------------------------------------------------------------------

types.reshard("cut", 3, compress="zstd")
with fsdp_ckpt.open("cut") as cut:
    names = [name for name in tensors if name in cut]
    ok(cut.format == "native" and cut.mesh == (1, 3) and len(names) == len(tensors), "resharded to 3 ranks, compressed")
    wrong = [name for name in names if not same(cut.read(name, "torch"), tensors[name])]
    ok(not wrong, f"all are equal {wrong}")
    ok(all(t.fingerprint is not None for t in cut.tensors.values()), "with fingerprints")
    with refused(fsdp_ckpt.UnsupportedError, "not to be mapped", "'deep'", "read it instead"):
        cut.map("deep")
fsdp_ckpt.merge("cut", "merged.safetensors")
back = load_file("merged.safetensors")
ok(set(back) == set(tensors) and all(same(back[name], value) for name, value in tensors.items()),
   "merged again, PyTorch reads the same")
os.remove("merged.safetensors")
