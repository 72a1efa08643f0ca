# SPDX-License-Identifier: Apache-2.0
"""bare.py CHECKPOINT: the module in an environment that has neither NumPy nor PyTorch."""

import hashlib
import sys

import fsdp_ckpt


def ok(passed, text):
    print("ok - " + text if passed else "not ok - " + text)


for package in ("numpy", "torch"):
    try:
        __import__(package)
        ok(False, package + " is not here")
    except ImportError:
        ok(True, package + " is not here")
with fsdp_ckpt.open(sys.argv[1]) as ckpt:
    name, tensor = next(iter(ckpt.tensors.items()))
    memory = bytearray(tensor.nbytes)
    ok(ckpt.read(name, memory) is memory and any(memory), "a tensor is read into a bytearray")
    mapped = ckpt.map(name, "buffer")
    ok(mapped == memory, "and mapped as a memoryview")
    half = bytearray(tensor.nbytes // 2)
    ok(any(ckpt.read(name, half, dtype="bf16")), "and converted")
    for wrong in (bytearray(3), bytes(tensor.nbytes), 7):
        try:
            ckpt.read(name, wrong)
            ok(False, f"{type(wrong).__name__}: refused")
        except fsdp_ckpt.ArgumentError as error:
            ok(name in str(error), f"{type(wrong).__name__}: {error}")
    try:
        ckpt.read(name)
        ok(False, "NumPy is wanted")
    except ImportError as error:
        ok("numpy" in str(error), f"NumPy is wanted: {error}")
    fsdp_ckpt.merge(ckpt, "merged.safetensors")
ok(hashlib.sha256(mapped).digest() == hashlib.sha256(memory).digest(), "the mapping outlives the checkpoint")
fsdp_ckpt.verify("merged.safetensors")
ok(fsdp_ckpt.__version__ in ("0.2.0",) or fsdp_ckpt.__version__.count(".") == 2, "version " + fsdp_ckpt.__version__)
ok("+zstd +curl" in fsdp_ckpt.build(), "built with zstd and curl: " + fsdp_ckpt.build())
