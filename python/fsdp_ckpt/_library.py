# SPDX-License-Identifier: Apache-2.0
"""libckpt.so by ctypes: structures and functions of ckpt/{ckpt,adapter,average}.h and fsdp/base.h, nothing added.

The library is the one next to this file, or the one that FSDP_CKPT_LIBRARY names.
"""

import ctypes
import logging
import os
from ctypes import (CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_int, c_int64, c_size_t,
                    c_uint32, c_uint64, c_void_p)
from typing import Any, List, NoReturn, Optional, Sequence, Union

from ._errors import OF_STATUS, CheckpointError

MAX_DIMS = 8
PathLike = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]

# ---- structures, in the headers' order of members ----------------------------------------------


class Err(Structure):
    _fields_ = [("status", c_int), ("text", c_char * 1024), ("setting", c_char * 40), ("of_other", c_bool),
                ("kind", c_int), ("rank", c_int), ("culprit", c_int), ("cause", c_int), ("ncause", c_int)]


class FsdpTensor(Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_int), ("ndim", c_int), ("shape", c_uint64 * MAX_DIMS)]


class Box(Structure):
    _fields_ = [("offset", c_uint64 * MAX_DIMS), ("length", c_uint64 * MAX_DIMS)]


class Slice(Structure):
    _fields_ = [("tensor", FsdpTensor), ("box", Box), ("replica", c_int), ("nreplica", c_int)]


class CkptTensor(Structure):
    _fields_ = [("tensor", FsdpTensor), ("kind", c_int), ("role", c_int), ("stored", c_char_p),
                ("outer_nbytes", c_size_t), ("fingerprint", c_uint64), ("has_fingerprint", c_bool)]


class Alias(Structure):
    _fields_ = [("name", c_char_p), ("target", c_char_p)]


class FileInfo(Structure):
    _fields_ = [("path", c_char_p), ("nbytes", c_uint64), ("crc32c", c_uint32), ("has_crc", c_bool)]


class FileRange(Structure):
    _fields_ = [("path", c_char * 4096), ("pos", c_uint64), ("nbytes", c_uint64)]


class Select(Structure):
    _fields_ = [("ninclude", c_int), ("nexclude", c_int), ("nmaps", c_int), ("include", POINTER(c_char_p)),
                ("exclude", POINTER(c_char_p)), ("maps", POINTER(c_char_p)), ("nheads", c_int), ("nkv_heads", c_int)]


PROGRESS = CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint64)
FAULT = CFUNCTYPE(None, c_void_p, c_char_p)
LOG = CFUNCTYPE(None, c_void_p, c_int, c_char_p)


class ReshardArgs(Structure):
    _fields_ = [("version", c_uint32), ("out", c_char_p), ("output", c_int), ("shard_size", c_int),
                ("replicate_size", c_int), ("all", c_bool), ("ema", c_bool), ("select", Select), ("compress", c_int),
                ("dtype", c_char_p), ("quantize", c_char_p), ("quantize_ignore", POINTER(c_char_p)),
                ("nquantize_ignore", c_int), ("max_shard_nbytes", c_uint64), ("mem_nbytes", c_uint64),
                ("nthreads", c_int), ("overwrite", c_bool), ("card", c_bool), ("dry_run", c_bool),
                ("adapters", c_void_p), ("average", c_void_p), ("progress", PROGRESS), ("progress_ctx", c_void_p)]


class ReshardResult(Structure):
    _fields_ = [("nbytes_read", c_uint64), ("nbytes_written", c_uint64), ("nbytes_resumed", c_uint64),
                ("nbytes_memory", c_uint64), ("ntensors", c_int), ("nfiles", c_int), ("nthreads", c_int),
                ("seconds", c_double), ("nbytes_within", c_uint64)]


class VerifyArgs(Structure):
    _fields_ = [("version", c_uint32), ("report", FAULT), ("report_ctx", c_void_p), ("progress", PROGRESS),
                ("progress_ctx", c_void_p)]


class Mismatch(Structure):
    _fields_ = [("tensor", c_char_p), ("file", c_char_p), ("text", c_char_p)]


MISMATCH = CFUNCTYPE(None, c_void_p, POINTER(Mismatch))


class CheckResult(Structure):
    _fields_ = [("nmismatches", c_int), ("ntensors", c_int), ("by_family", c_bool), ("family", c_char * 64),
                ("why", c_char * 512), ("ndecoded", c_int)]


STRUCTURES = {
    "fsdp_err": Err, "fsdp_tensor": FsdpTensor, "fsdp_box": Box, "fsdp_slice": Slice, "ckpt_tensor": CkptTensor,
    "ckpt_alias": Alias, "ckpt_file_info": FileInfo, "ckpt_file_range": FileRange, "ckpt_select": Select,
    "ckpt_reshard_args": ReshardArgs, "ckpt_reshard_result": ReshardResult, "ckpt_verify_args": VerifyArgs,
    "ckpt_mismatch": Mismatch, "ckpt_check_result": CheckResult,
}
RESHARD_ARGS_VERSION, VERIFY_ARGS_VERSION = 3, 1
ROLES = ("model", "optim", "other")
OUTPUT = {"weights": 0, "native": 1, "dcp": 2, "hf-dcp": 3, "gguf": 4, "torch": 5}
COMPRESS = {"none": 0, "zstd": 1}

# ---- the library --------------------------------------------------------------------------------


def _find() -> str:
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libckpt.so.0")
    return os.environ.get("FSDP_CKPT_LIBRARY") or own


_path = _find()
lib = ctypes.CDLL(_path)
_CKPT, _ERR = c_void_p, POINTER(Err)


def _refuse(why: str) -> NoReturn:
    raise ImportError(f"'{_path}' is not the library of this module: {why}; take both from one wheel, or from one "
                      "source tree (make)", name=__name__, path=_path)


def _declare(name: str, result: Any, *args: Any) -> None:
    function = getattr(lib, name, None)
    if function is None:
        _refuse(f"it has no function {name}")
    function.restype, function.argtypes = result, list(args)


for _row in (
    ("ckpt_struct_nbytes", c_size_t, c_char_p),
    ("fsdp_version", c_char_p),
    ("fsdp_build_text", c_char_p),
    ("fsdp_status_name", c_char_p, c_int),
    ("fsdp_log_set", None, LOG, c_void_p, c_int),
    ("fsdp_dtype_nbytes", c_size_t, c_int),
    ("fsdp_dtype_name", c_char_p, c_int),
    ("fsdp_dtype_parse", c_int, POINTER(c_int), c_char_p, _ERR),
    ("ckpt_open_with", c_int, POINTER(c_void_p), c_char_p, c_char_p, _ERR),
    ("ckpt_close", None, _CKPT),
    ("ckpt_path", c_char_p, _CKPT),
    ("ckpt_format", c_int, _CKPT),
    ("ckpt_format_name", c_char_p, c_int),
    ("ckpt_step", c_int64, _CKPT),
    ("ckpt_state_json", c_char_p, _CKPT),
    ("ckpt_mesh", None, _CKPT, POINTER(c_int), POINTER(c_int)),
    ("ckpt_ntensors", c_int, _CKPT),
    ("ckpt_tensor_at", POINTER(CkptTensor), _CKPT, c_int),
    ("ckpt_tensor_find", POINTER(CkptTensor), _CKPT, c_char_p),
    ("ckpt_naliases", c_int, _CKPT),
    ("ckpt_alias_at", Alias, _CKPT, c_int),
    ("ckpt_nfiles", c_int, _CKPT),
    ("ckpt_file_at", FileInfo, _CKPT, c_int),
    ("ckpt_unchanged", c_int, _CKPT, _ERR),
    ("ckpt_read_into", c_int, c_void_p, c_size_t, _CKPT, POINTER(Slice), _ERR),
    ("ckpt_tensor_range", c_int, POINTER(FileRange), _CKPT, c_char_p, _ERR),
    ("ckpt_nbytes_parse", c_int, POINTER(c_uint64), c_char_p, _ERR),
    ("ckpt_reshard_args_init", None, POINTER(ReshardArgs)),
    ("ckpt_reshard", c_int, POINTER(ReshardResult), _CKPT, POINTER(ReshardArgs), _ERR),
    ("ckpt_verify_watched", c_int, _CKPT, POINTER(VerifyArgs), _ERR),
    ("ckpt_check", c_int, POINTER(CheckResult), _CKPT, MISMATCH, c_void_p, _ERR),
    ("ckpt_average_open", c_int, POINTER(c_void_p), POINTER(c_char_p), c_int, c_char_p, _ERR),
    ("ckpt_average_close", None, c_void_p),
    ("ckpt_average_member", c_void_p, c_void_p, c_int),
    ("ckpt_adapters_open", c_int, POINTER(c_void_p), POINTER(c_char_p), c_int, _ERR),
    ("ckpt_adapters_close", None, c_void_p),
):
    _declare(*_row)


def _check_structures() -> None:
    """Another layout than the library's would let it write beyond the end of what it gets."""
    for name, kind in STRUCTURES.items():
        have = lib.ckpt_struct_nbytes(name.encode())
        if have != ctypes.sizeof(kind):
            _refuse(f"its struct {name} has {have} bytes, the module's {ctypes.sizeof(kind)}")
    args = ReshardArgs()
    lib.ckpt_reshard_args_init(ctypes.byref(args))
    if args.version != RESHARD_ARGS_VERSION:
        _refuse(f"its struct ckpt_reshard_args has version {args.version}, the module's {RESHARD_ARGS_VERSION}")


_check_structures()

# ---- calls --------------------------------------------------------------------------------------


def text(raw: Optional[bytes]) -> str:
    """Names and messages: UTF-8, of which wrong bytes are kept apart (surrogateescape)."""
    return (raw or b"").decode("utf-8", "surrogateescape")


def name_bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def path_bytes(path: PathLike) -> bytes:
    return os.fsencode(path)


def texts(values: Sequence[bytes]) -> Any:
    """An array for `const char *const *`; the caller keeps it while C uses it."""
    return (c_char_p * max(len(values), 1))(*values)


def failure(err: Err) -> CheckpointError:
    status = text(lib.fsdp_status_name(err.status))
    return OF_STATUS.get(status, CheckpointError)(text(err.text), status, text(err.setting) or None)


def call(function: Any, *args: Any) -> None:
    """Calls function(*args, &err); a failure is an exception."""
    err = Err(rank=-1, culprit=-1)
    if function(*args, ctypes.byref(err)) != 0:
        raise failure(err)


def version() -> str:
    """Version of the library, such as "0.2.0"."""
    return text(lib.fsdp_version())


def build() -> str:
    """What the library was built with, on one line: for reports."""
    return text(lib.fsdp_build_text())


def nbytes(value: Union[int, str]) -> int:
    """A number of bytes, or a text: "5GB" is 5 * 1000**3, "5G" is 5 * 1024**3."""
    if isinstance(value, int):
        return value
    out = c_uint64()
    call(lib.ckpt_nbytes_parse, ctypes.byref(out), name_bytes(value))
    return out.value


# ---- messages -----------------------------------------------------------------------------------

_logger = logging.getLogger("fsdp_ckpt")
_LEVELS: List[int] = [logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG]


@LOG
def _on_log(ctx: Any, level: int, line: bytes) -> None:
    _logger.log(_LEVELS[level], "%s", text(line))


lib.fsdp_log_set(_on_log, None, 2)
