# SPDX-License-Identifier: Apache-2.0
"""operations.py TOP: merge, reshard, verify; watched, stopped, resumed; damage by name."""

import glob
import logging
import os
import signal
import sys
import time

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

import fsdp_ckpt
from fsdp_ckpt import _operations

sys.path.insert(0, sys.argv[1] + "/tests/wheel/lib")
from tap import ok, refused  # noqa: E402

torch.manual_seed(1)
tensors = {f"layers.{i}.weight": torch.randn(512, 1024) for i in range(24)}
tensors["norm"] = torch.randn(512)
os.mkdir("model")
save_file(tensors, "model/model.safetensors")

# ---- what they write ------------------------------------------------------------------------------

seen = []
done = fsdp_ckpt.merge("model", "half.safetensors", dtype=torch.bfloat16, include=["layers.1?.*", "norm"],
                       exclude=["layers.11.*"], mem="64M", threads=2, progress=lambda *at: seen.append(at))
half = load_file("half.safetensors")
ok(set(half) == {f"layers.{i}.weight" for i in range(10, 20) if i != 11} | {"norm"} and
   all(torch.equal(half[name], tensors[name].bfloat16()) for name in half), "merged: chosen tensors, as bfloat16")
ok(done.ntensors == len(half) and done.nfiles == 1 and done.path == "half.safetensors" and done.nbytes_read > 0 and
   done.nbytes_memory <= 64 << 20, f"it says what it did: {done}")
ok(seen and seen == sorted(seen) and seen[-1][0] == seen[-1][1], f"progress comes to its end: {seen[-1:]}")
with refused(fsdp_ckpt.ExistsError, "an output that is there", "half.safetensors"):
    fsdp_ckpt.merge("model", "half.safetensors")
fsdp_ckpt.merge("model", "half.safetensors", dtype="float16", overwrite=True)
ok(load_file("half.safetensors")["norm"].dtype is torch.float16, "overwritten")
fsdp_ckpt.merge("model", "nothing", dry_run=True)
ok(not os.path.exists("nothing"), "a dry run writes nothing")
fsdp_ckpt.merge("model", "folder", max_shard_size="10MB")
ok(len(glob.glob("folder/*.safetensors")) > 3 and os.path.exists("folder/model.safetensors.index.json"),
   "a folder of several files, with an index")
with fsdp_ckpt.open("model") as model:
    model.reshard("dcp", 2, format="dcp")
    model.reshard("native", 4, replicas=2)
state = {name: torch.empty_like(value) for name, value in tensors.items()}
dcp.load({"model": state}, checkpoint_id="dcp", no_dist=True)
ok(all(torch.equal(state[name], value) for name, value in tensors.items()), "resharded to DCP: PyTorch loads it")
ok(fsdp_ckpt.open("native").mesh == (2, 2), "resharded to 2 replicas of 2 shards")
for text, call in (("format", lambda: fsdp_ckpt.reshard("model", "x", 2, format="pickle")),
                   ("compress", lambda: fsdp_ckpt.reshard("model", "x", 2, compress="gzip")),
                   ("world", lambda: fsdp_ckpt.reshard("model", "x", 3, replicas=2)),
                   ("include", lambda: fsdp_ckpt.merge("model", "x", include="norm")),
                   ("5 parsecs", lambda: fsdp_ckpt.merge("model", "x", mem="5 parsecs"))):
    with refused(fsdp_ckpt.ArgumentError, text, text):
        call()
with refused(fsdp_ckpt.NotFoundError, "an absent adapter", "adapter-42"):
    fsdp_ckpt.merge("model", "x", adapters=["adapter-42"])

# ---- stopped --------------------------------------------------------------------------------------

# The first report of the library waits until it was asked to end, so that there is something left to stop.
ordinary = _operations._Watched._on_progress


def slow(self, ctx, done, total):
    status = ordinary(self, ctx, done, total)
    end = time.monotonic() + 60
    while not self._stop and time.monotonic() < end:
        time.sleep(0.01)
    return status


class Enough(Exception):
    pass


def stop_by_exception(done, total):
    raise Enough


def stop_by_signal(done, total):
    os.kill(os.getpid(), signal.SIGINT)


small = {"mem": "8M", "threads": 1}
for name, stop, kind in (("an exception of progress", stop_by_exception, Enough),
                         ("Ctrl-C", stop_by_signal, KeyboardInterrupt)):
    _operations._Watched._on_progress = slow
    try:
        fsdp_ckpt.merge("model", "whole.safetensors", progress=stop, **small)
        ok(False, f"{name} stops a merge")
    except kind:
        ok(not os.path.exists("whole.safetensors") and len(glob.glob("whole.safetensors.tmp.*")) == 1,
           f"{name} stops a merge: no output, and what resumes it")
    try:
        fsdp_ckpt.verify("native", progress=stop)
        ok(False, f"{name} stops a verification")
    except kind:
        ok(True, f"{name} stops a verification")
    _operations._Watched._on_progress = ordinary
done = fsdp_ckpt.merge("model", "whole.safetensors", **small)
whole = load_file("whole.safetensors")
ok(done.nbytes_resumed > 0 and not glob.glob("whole.safetensors.tmp.*") and
   all(torch.equal(whole[name], value) for name, value in tensors.items()),
   f"the same call resumes it: {done.nbytes_resumed} bytes were there")

# ---- damage ---------------------------------------------------------------------------------------


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


fsdp_ckpt.verify("native")
fsdp_ckpt.verify("dcp")
fsdp_ckpt.verify("model", progress=lambda *at: seen.append(at))
ok(True, "whole ones are verified")
file = sorted(glob.glob("native/model/*"))[0]
with fsdp_ckpt.open("native") as native:
    flip(file, os.path.getsize(file) // 2)
    with refused(fsdp_ckpt.DamagedError, "ours", os.path.basename(file), "tensor 'layers."):
        native.verify()
    try:
        native.verify()
    except fsdp_ckpt.DamagedError as error:
        damaged = error.faults[-1].split("'")[1]
        ok(len(error.faults) == 2 and error.status == "FSDP_ECORRUPT", f"its faults: {error.faults}")
    with refused(fsdp_ckpt.DamagedError, "reading the tensor", os.path.basename(file), f"'{damaged}'"):
        native.read(damaged, "torch")
    ok(torch.equal(native.read("norm", "torch"), tensors["norm"]), "the others are read")
    with refused(fsdp_ckpt.DamagedError, "merging it", os.path.basename(file), f"'{damaged}'"):
        native.merge("broken.safetensors")
    ok(not glob.glob("broken*"), "leaves nothing")
file = sorted(glob.glob("dcp/*.distcp"))[0]
flip(file, os.path.getsize(file) // 2)
with refused(fsdp_ckpt.DamagedError, "DCP", os.path.basename(file), "'model.layers."):
    fsdp_ckpt.verify("dcp")
os.truncate(file, os.path.getsize(file) - 1)
with refused(fsdp_ckpt.DamagedError, "a cut file", os.path.basename(file)):
    fsdp_ckpt.open("dcp")
try:
    fsdp_ckpt.merge("model", "/dev/full/x.safetensors")
    ok(False, "an output that cannot be")
except fsdp_ckpt.CheckpointError as error:
    ok("/dev/full" in str(error), f"an output that cannot be: {error}")

# ---- messages -------------------------------------------------------------------------------------

heard = []


class Ear(logging.Handler):
    def emit(self, record):
        heard.append((record.levelno, record.getMessage()))


logging.getLogger("fsdp_ckpt").addHandler(Ear())
logging.getLogger("fsdp_ckpt").setLevel(logging.DEBUG)
torch.save({"w": torch.zeros(3), "c": torch.zeros(2, dtype=torch.complex128)}, "odd.pt")
with fsdp_ckpt.open("odd.pt") as odd:
    ok(list(odd) == ["w"] and any(level == logging.WARNING and "'c'" in line for level, line in heard),
       f"the library's warnings are logged: {heard}")
    with refused(fsdp_ckpt.UnsupportedError, "a type that is not known", "'c'"):
        odd.read("c")
