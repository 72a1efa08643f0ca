# SPDX-License-Identifier: Apache-2.0
"""memory.py TOP: whose memory is filled, what stays valid, what is refused."""

import gc
import os
import pickle
import sys

import numpy
import torch
from safetensors.torch import save_file

import fsdp_ckpt

sys.path.insert(0, sys.argv[1] + "/tests/wheel/lib")
from tap import ok, refused  # noqa: E402

want = torch.arange(24, dtype=torch.float32).reshape(4, 6) + 0.5
save_file({"a": want, "b": want * 2, "h": want.bfloat16()}, "x.safetensors")
ckpt = fsdp_ckpt.open("x.safetensors")

# ---- memory that is given -------------------------------------------------------------------------

array = numpy.zeros((4, 6), numpy.float32)
ok(ckpt.read("a", array) is array and (array == want.numpy()).all(), "an array is filled")
tensor = torch.zeros(4, 6)
ok(ckpt.read("a", tensor) is tensor and torch.equal(tensor, want), "a tensor is filled")
double = torch.zeros(4, 6, dtype=torch.float64)
ckpt.read("a", double)
ok(torch.equal(double, want.double()), "one of another type is filled and converted")
parameter = torch.nn.Parameter(torch.zeros(4, 6))
ckpt.read("b", parameter)
ok(torch.equal(parameter.detach(), want * 2), "a parameter is filled")
rows = torch.zeros(10, 6)
ckpt.read("a", rows[3:5], box=slice(1, 3))
ok(torch.equal(rows[3:5], want[1:3]) and not rows[:3].any() and not rows[5:].any(), "a part of one, and nothing around it")
shared = torch.zeros(4, 6).share_memory_()
ckpt.read("a", shared)
ok(torch.equal(shared, want), "shared memory is filled")
raw = bytearray(want.numel() * 2)
ckpt.read("h", raw)
ok(bytes(raw) == want.bfloat16().view(torch.int16).numpy().tobytes(), "a bytearray gets the bytes as stored")
with refused(fsdp_ckpt.ArgumentError, "another shape", "'a'", "[4, 6]", "[6, 4]"):
    ckpt.read("a", numpy.zeros((6, 4), numpy.float32))
with refused(fsdp_ckpt.ArgumentError, "a transposed array", "'a'", "contiguous"):
    ckpt.read("a", numpy.zeros((6, 4), numpy.float32).T)
with refused(fsdp_ckpt.ArgumentError, "a transposed tensor", "'a'", "contiguous"):
    ckpt.read("a", torch.zeros(6, 4).T)
fixed = numpy.zeros((4, 6), numpy.float32)
fixed.flags.writeable = False
with refused(fsdp_ckpt.ArgumentError, "an array that is read-only", "'a'", "writable"):
    ckpt.read("a", fixed)
with refused(fsdp_ckpt.ArgumentError, "one of another byte order", "'a'", "byte order"):
    ckpt.read("a", numpy.zeros((4, 6), ">f4"))
with refused(fsdp_ckpt.ArgumentError, "a type of another kind", "'a'", "I64"):
    ckpt.read("a", numpy.zeros((4, 6), numpy.int64), dtype="float32")
with refused(fsdp_ckpt.ArgumentError, "a tensor elsewhere", "'a'", "CPU"):
    ckpt.read("a", torch.zeros(4, 6, device="meta"))
with refused(fsdp_ckpt.ArgumentError, "a list", "'a'", "list"):
    ckpt.read("a", [1, 2])
with refused(fsdp_ckpt.ArgumentError, "an unknown kind", "jax"):
    ckpt.read("a", "jax")
with refused(fsdp_ckpt.ArgumentError, "an unknown kind to map", "jax"):
    ckpt.map("a", "jax")

# ---- mapped ---------------------------------------------------------------------------------------

stored = open("x.safetensors", "rb").read()
other = fsdp_ckpt.open("x.safetensors")
a, b = other.map("a", "torch"), other.map("b")
view = other.map("a", "buffer")
maps = sum("x.safetensors" in line for line in open("/proc/self/maps"))
ok(maps == 1, f"tensors of one file share a mapping: {maps}")
other.close()
del other
gc.collect()
os.rename("x.safetensors", "moved")
ok(torch.equal(a, want) and (b == (want * 2).numpy()).all() and len(view) == 96,
   "mapped tensors outlive the checkpoint, and the file's name")
a[0, 0] = 77
ok(open("moved", "rb").read() == stored, "writing to one changes no file")
del a, b, view
gc.collect()
ok(not any("moved" in line for line in open("/proc/self/maps")), "the mapping goes with the last of them")

save_file({"a": want + 1, "b": want, "h": want.bfloat16()}, "x.safetensors")
with refused(fsdp_ckpt.DamagedError, "a file that was replaced since it was opened", "x.safetensors"):
    ckpt.map("a")
again = fsdp_ckpt.open("x.safetensors")
os.truncate("x.safetensors", os.path.getsize("x.safetensors") - 200)
with refused(fsdp_ckpt.DamagedError, "a file that was cut", "x.safetensors"):
    for name in again:
        again.map(name)

# ---- an object's life -----------------------------------------------------------------------------

os.rename("moved", "y.safetensors")
with fsdp_ckpt.open("y.safetensors") as inside:
    listed = inside.tensors
    text = repr(inside)
with refused(fsdp_ckpt.ArgumentError, "a closed checkpoint", "y.safetensors", "closed"):
    inside.read("a")
inside.close()
ok(listed["a"].shape == (4, 6) and inside.tensors is listed and "y.safetensors" in text and "closed" in repr(inside),
   "what it held is known after close, which may be called again")
ckpt = fsdp_ckpt.open("y.safetensors")
try:
    listed["a"] = None
    ok(False, "the tensors are read-only")
except TypeError:
    ok(True, "the tensors are read-only")
ok(list(ckpt) == list(listed) and len(ckpt) == 3 and "a" in ckpt and "z" not in ckpt, "it iterates over names")
ok(torch.equal(pickle.loads(pickle.dumps(ckpt)).read("a", "torch"), want), "it is pickled by its path")
with refused(fsdp_ckpt.NotFoundError, "an absent tensor", "'z'", "y.safetensors"):
    ckpt.read("z")
with refused(fsdp_ckpt.NotFoundError, "an absent tensor to map", "'z'"):
    ckpt.map("z")
with refused(fsdp_ckpt.NotFoundError, "an absent checkpoint", "absent"):
    fsdp_ckpt.open("absent")
with refused(fsdp_ckpt.DamagedError, "a file that is none", "bad.safetensors"):
    open("bad.safetensors", "wb").write(b"\xff" * 64)
    fsdp_ckpt.open("bad.safetensors")
try:
    fsdp_ckpt.open("absent")
except fsdp_ckpt.CheckpointError as error:
    copy = pickle.loads(pickle.dumps(error))
    ok(type(copy) is type(error) and str(copy) == str(error) and copy.status == "FSDP_ENOTFOUND",
       "exceptions are pickled, as a pool of processes needs")
    ok(isinstance(error, LookupError) and error.setting is None, "and are Python's kinds, too")
for _ in range(300):
    fsdp_ckpt.open("y.safetensors").read("a", "torch")
ok(len(os.listdir("/proc/self/fd")) < 100, "checkpoints that nobody closes are closed")
