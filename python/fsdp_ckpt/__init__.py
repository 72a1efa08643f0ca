# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of sharded training: read, merged, resharded, verified.

    import fsdp_ckpt

    with fsdp_ckpt.open("checkpoints") as ckpt:
        for name, tensor in ckpt.tensors.items():
            print(name, tensor.dtype, tensor.shape)
        weight = ckpt.read("model.norm.weight", "torch")
        ckpt.merge("merged", dtype="bfloat16")

A checkpoint is a folder of libfsdp (or a folder of such, of which the newest is taken), of
torch.distributed.checkpoint, DeepSpeed, Megatron or Hugging Face, a .safetensors file, a file of torch.save, or an
address such as s3://bucket/run. Failures are exceptions below CheckpointError; their text names file and tensor.

The programs ckpt-info, ckpt-merge, ... are installed with the module; `python -m fsdp_ckpt info ...` starts them, too.
"""

from ._checkpoint import Checkpoint, Tensor, open
from ._errors import (
    ArgumentError,
    CanceledError,
    CheckpointError,
    DamagedError,
    ExistsError,
    NoSpaceError,
    NotFoundError,
    OutOfMemoryError,
    StoreError,
    UnsupportedError,
)
from ._library import build, version
from ._operations import Checked, Mismatch, Written, check, merge, reshard, verify

__version__ = version()
__all__ = [
    "ArgumentError",
    "CanceledError",
    "Checked",
    "Checkpoint",
    "CheckpointError",
    "DamagedError",
    "ExistsError",
    "Mismatch",
    "NoSpaceError",
    "NotFoundError",
    "OutOfMemoryError",
    "StoreError",
    "Tensor",
    "UnsupportedError",
    "Written",
    "build",
    "check",
    "merge",
    "open",
    "reshard",
    "verify",
    "version",
]
