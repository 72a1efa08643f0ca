# SPDX-License-Identifier: Apache-2.0
"""Data types by the names of safetensors, and memory of NumPy, PyTorch and others that the library reads into."""

import ctypes
import sys
from typing import Any, NamedTuple, Optional, Sequence, Tuple

from . import _library as c
from ._errors import ArgumentError, UnsupportedError


class _Names(NamedTuple):
    numpy: Optional[str]  # None: NumPy has none; the package ml_dtypes has it under `other`
    other: str  # PyTorch's, and ml_dtypes'


_TYPES = {
    "F64": _Names("<f8", "float64"),
    "F32": _Names("<f4", "float32"),
    "F16": _Names("<f2", "float16"),
    "BF16": _Names(None, "bfloat16"),
    "F8_E4M3": _Names(None, "float8_e4m3fn"),
    "F8_E5M2": _Names(None, "float8_e5m2"),
    "F8_E8M0": _Names(None, "float8_e8m0fnu"),
    "I64": _Names("<i8", "int64"),
    "I32": _Names("<i4", "int32"),
    "I16": _Names("<i2", "int16"),
    "I8": _Names("|i1", "int8"),
    "U64": _Names("<u8", "uint64"),
    "U32": _Names("<u4", "uint32"),
    "U16": _Names("<u2", "uint16"),
    "U8": _Names("|u1", "uint8"),
    "BOOL": _Names("|b1", "bool"),
    "C64": _Names("<c8", "complex64"),
}
_OF_OTHER = {names.other: name for name, names in _TYPES.items()}

# ---- data types ---------------------------------------------------------------------------------


def dtype_id(name: str) -> int:
    out = ctypes.c_int()
    c.call(c.lib.fsdp_dtype_parse, ctypes.byref(out), c.name_bytes(name))
    return out.value


def dtype_name(number: int) -> str:
    return c.text(c.lib.fsdp_dtype_name(number))


def element_nbytes(name: str) -> int:
    return int(c.lib.fsdp_dtype_nbytes(dtype_id(name)))


def canonical(dtype: Any) -> str:
    """A safetensors name of a text ("BF16", "bfloat16", "fp16"), a torch.dtype, or what numpy.dtype takes."""
    if isinstance(dtype, str):
        name = dtype.split(".")[-1]
    elif type(dtype).__module__ == "torch":
        name = str(dtype).split(".")[-1]
    else:
        import numpy

        name = numpy.dtype(dtype).name
    return dtype_name(dtype_id(_OF_OTHER.get(name, name)))


def numpy_dtype(name: str, tensor: str) -> Any:
    """tensor: whom an error is about."""
    import numpy

    names = _TYPES[name]
    if names.numpy:
        return numpy.dtype(names.numpy)
    try:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, names.other))
    except (ImportError, AttributeError):
        raise UnsupportedError(
            f"tensor '{tensor}' is {name}, which NumPy has not: read it into \"torch\", give dtype=\"float32\", or "
            "install ml_dtypes", "FSDP_EUNSUPPORTED", "dtype") from None


def torch_dtype(name: str, tensor: str) -> Any:
    import torch

    out = getattr(torch, _TYPES[name].other, None)
    if out is None:
        raise UnsupportedError(f"tensor '{tensor}' is {name}, which PyTorch {torch.__version__} has not",
                               "FSDP_EUNSUPPORTED", "dtype")
    return out


# ---- memory to read into ------------------------------------------------------------------------


class Memory(NamedTuple):
    """owner keeps the bytes alive; dtype: a safetensors name; shape None: as many bytes as fit."""

    owner: Any
    address: int
    nbytes: int
    dtype: str
    shape: Optional[Tuple[int, ...]]


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def new(kind: str, name: str, dtype: str, shape: Sequence[int]) -> Memory:
    """Not initialized: a numpy.ndarray or a torch.Tensor on the CPU."""
    if kind == "numpy":
        import numpy

        return given(numpy.empty(tuple(shape), numpy_dtype(dtype, name)), name, dtype)._replace(dtype=dtype)
    if kind == "torch":
        import torch

        return given(torch.empty(tuple(shape), dtype=torch_dtype(dtype, name)), name, dtype)
    raise ArgumentError(f"into: '{kind}' is neither \"numpy\" nor \"torch\"", "FSDP_EINVAL", "into")


def given(value: Any, name: str, dtype: str) -> Memory:
    """The caller's memory. dtype counts where it has none of its own, as a bytearray."""
    if _is_torch(value):
        if value.device.type != "cpu" or not value.is_contiguous() or value.is_conj() or value.is_neg():
            raise ArgumentError(f"tensor '{name}': what it is read into must be a contiguous torch.Tensor on the CPU",
                                "FSDP_EINVAL", "into")
        return Memory(value, value.data_ptr(), value.numel() * value.element_size(), canonical(value.dtype),
                      tuple(value.shape))
    if hasattr(value, "__array_interface__"):
        if not value.flags["C_CONTIGUOUS"] or not value.flags["WRITEABLE"] or not value.flags["ALIGNED"]:
            raise ArgumentError(f"tensor '{name}': what it is read into must be a contiguous, aligned and writable "
                                "numpy.ndarray", "FSDP_EINVAL", "into")
        if not value.dtype.isnative:
            raise ArgumentError(f"tensor '{name}': {value.dtype} has another byte order", "FSDP_EINVAL", "into")
        return Memory(value, value.ctypes.data, value.nbytes, canonical(value.dtype), value.shape)
    try:
        view = memoryview(value)
        if not view.nbytes:
            return Memory(view, 0, 0, dtype, None)
        owner = (ctypes.c_char * view.nbytes).from_buffer(view)
    except (TypeError, ValueError):
        raise ArgumentError(f"tensor '{name}': it is read into \"numpy\", \"torch\", an array, a tensor or writable, "
                            f"contiguous memory; this is {type(value).__name__}", "FSDP_EINVAL", "into") from None
    return Memory(owner, ctypes.addressof(owner), view.nbytes, dtype, None)


def viewed(kind: str, name: str, dtype: str, shape: Sequence[int], bytes_: memoryview) -> Any:
    """An array or tensor of these bytes, which it keeps alive."""
    if kind == "buffer":
        return bytes_
    if kind == "numpy":
        import numpy

        return numpy.frombuffer(bytes_, numpy_dtype(dtype, name)).reshape(tuple(shape))
    if kind == "torch":
        import torch

        return torch.frombuffer(bytes_, dtype=torch_dtype(dtype, name)).reshape(tuple(shape))
    raise ArgumentError(f"into: '{kind}' is neither \"numpy\" nor \"torch\" nor \"buffer\"", "FSDP_EINVAL", "into")
