# SPDX-License-Identifier: Apache-2.0
"""An opened checkpoint: what it holds, reading tensors into memory, mapping them."""

import builtins
import ctypes
import json
import mmap
import os
import threading
import types
import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _arrays
from . import _library as c
from ._errors import ArgumentError, CheckpointError, DamagedError
from ._fork import gate

if TYPE_CHECKING:
    from ._operations import Checked, Progress, Written


class Tensor(NamedTuple):
    """A tensor of a checkpoint.

    dtype: as safetensors calls it ("BF16"). role: "model", "optim" or "other". fingerprint: the CRC-64/XZ over its
    row-major bytes, None where the format has none. stored: its name in the files, where a format has containers.
    """

    name: str
    dtype: str
    shape: Tuple[int, ...]
    nbytes: int
    role: str
    fingerprint: Optional[int]
    stored: str


_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
Box = Union[slice, int, Sequence[Union[slice, int]]]


def _tensor(raw: c.CkptTensor) -> Tensor:
    t = raw.tensor
    dtype = _arrays.dtype_name(t.dtype)
    shape = tuple(t.shape[: t.ndim])
    nbytes = int(c.lib.fsdp_dtype_nbytes(t.dtype))
    for length in shape:
        nbytes *= length
    return Tensor(c.text(t.name), dtype, shape, nbytes, c.ROLES[raw.role],
                  raw.fingerprint if raw.has_fingerprint else None, c.text(raw.stored))


class Checkpoint:
    """An opened checkpoint. Made by `open`; a context manager. All methods may be called by several threads."""

    def __init__(self, path: c.PathLike, config: Optional[c.PathLike] = None) -> None:
        """As `open`."""
        self._handle: Optional[int] = None
        self._config = None if config is None else c.path_bytes(config)
        self._fresh()
        self._closed = False
        # Filled in when first asked for; the texts are copies.
        self._tensors: Optional[Mapping[str, Tensor]] = None
        self._maps: "weakref.WeakValueDictionary[str, mmap.mmap]" = weakref.WeakValueDictionary()
        self._handle = self._opened(c.path_bytes(path))
        # A folder of checkpoints may have a newer one tomorrow: this one is meant.
        self.path: str = os.fsdecode(c.lib.ckpt_path(self._handle))
        _living.add(self)

    # ---- the handle ----

    def _fresh(self) -> None:
        self._lock = threading.Lock()
        self._users = 0

    def _opened(self, path: bytes) -> int:
        out = ctypes.c_void_p()
        with gate:
            c.call(c.lib.ckpt_open_with, ctypes.byref(out), path, self._config)
        assert out.value is not None
        return out.value

    def _after_fork(self) -> None:
        # The parent's handle may be locked by a thread that the child has not. It is left as it is.
        self._fresh()
        self._handle = None

    def _take(self) -> int:
        with self._lock:
            if self._closed:
                raise ArgumentError(f"'{self.path}' is closed", "FSDP_EINVAL")
            if self._handle is None:
                handle = self._opened(os.fsencode(self.path))
                if self._tensors is not None and self._tensors != self._listed(handle):
                    c.lib.ckpt_close(handle)
                    raise DamagedError(f"'{self.path}' is another checkpoint than before the fork")
                self._handle = handle
            self._users += 1
            return self._handle

    def _give(self) -> None:
        with self._lock:
            self._users -= 1
            self._close_if_unused()

    # While Python ends, modules are gone before objects are.
    def _close_if_unused(self, close_handle: Any = c.lib.ckpt_close) -> None:
        if self._closed and not self._users and self._handle is not None:
            close_handle(self._handle)
            self._handle = None

    def _use(self) -> "_Use":
        return _Use(self)

    def close(self) -> None:
        """Closes it; calls under way end first. Arrays that were read or mapped stay valid. May be called again."""
        with self._lock:
            self._closed = True
            self._close_if_unused()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    def __reduce__(self) -> Tuple[Any, ...]:
        # Another process, such as a worker that is spawned, opens it anew.
        return Checkpoint, (self.path, self._config)

    def __repr__(self) -> str:
        return f"<fsdp_ckpt.Checkpoint '{self.path}'{', closed' if self._closed else ''}>"

    # ---- what it holds ----

    @staticmethod
    def _listed(handle: int) -> Mapping[str, Tensor]:
        all_ = (_tensor(c.lib.ckpt_tensor_at(handle, i).contents) for i in range(c.lib.ckpt_ntensors(handle)))
        return types.MappingProxyType({tensor.name: tensor for tensor in all_})

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """All tensors by name, in the order of the checkpoint. Stays usable after close."""
        if self._tensors is None:
            with self._use() as handle:
                self._tensors = self._listed(handle)
        return self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.tensors or name in self.aliases

    @property
    def format(self) -> str:
        """"native", "safetensors", "dcp", "torch.save", "deepspeed", "megatron" or "fsdp1" (LOCAL_STATE_DICT)."""
        with self._use() as handle:
            return c.text(c.lib.ckpt_format_name(c.lib.ckpt_format(handle)))

    @property
    def step(self) -> Optional[int]:
        """Optimizer steps done; None where it is not known."""
        with self._use() as handle:
            step = int(c.lib.ckpt_step(handle))
        return step if step >= 0 else None

    @property
    def mesh(self) -> Tuple[int, int]:
        """(replicas, shards) of the ranks that saved it; (1, 1) where it is not known."""
        shard, replicate = ctypes.c_int(), ctypes.c_int()
        with self._use() as handle:
            c.lib.ckpt_mesh(handle, ctypes.byref(shard), ctypes.byref(replicate))
        return replicate.value, shard.value

    @property
    def state(self) -> Optional[Dict[str, Any]]:
        """Training state that is not tensors; None where there is none."""
        with self._use() as handle:
            raw = c.lib.ckpt_state_json(handle)
        return None if raw is None else json.loads(raw)

    @property
    def aliases(self) -> Dict[str, str]:
        """Tied tensors: other names of tensors, each with the stored name. `read` takes both."""
        with self._use() as handle:
            all_ = [c.lib.ckpt_alias_at(handle, i) for i in range(c.lib.ckpt_naliases(handle))]
            return {c.text(alias.name): c.text(alias.target) for alias in all_}

    @property
    def files(self) -> List[str]:
        """Its data files, relative to the checkpoint."""
        with self._use() as handle:
            return [os.fsdecode(c.lib.ckpt_file_at(handle, i).path) for i in range(c.lib.ckpt_nfiles(handle))]

    def _find(self, handle: int, name: str) -> Tensor:
        tensor = self.tensors.get(name)
        if tensor is None:
            found = c.lib.ckpt_tensor_find(handle, c.name_bytes(name))
            if not found:  # the library says why
                c.call(c.lib.ckpt_tensor_range, ctypes.byref(c.FileRange()), handle, c.name_bytes(name))
            tensor = _tensor(found.contents)
        return tensor

    # ---- reading ----

    def read(self, name: str, into: Any = "numpy", *, dtype: Any = None, box: Optional[Box] = None) -> Any:
        """Reads a tensor, or a box of it, and compares it with its fingerprint where it is whole.

        into: "numpy" or "torch" for a new array or tensor (on the CPU), or memory to fill: a contiguous
        numpy.ndarray or torch.Tensor of the box's shape, or any writable buffer of its bytes. The bytes go from the
        file to it without another copy, unless they are converted.
        dtype: one of NumPy's or PyTorch's, or its name; floating types are converted to another, others must be as
        stored. Default: as stored, or that of `into`.
        box: as an index of an array: an integer or a slice of step 1 for each dimension; those left out are whole.
        Returns what was filled. Raises NotFoundError, DamagedError, ArgumentError, UnsupportedError (NumPy has no
        bfloat16 or float8 without ml_dtypes); after a failure given memory is undefined.
        """
        with self._use() as handle:
            tensor = self._find(handle, name)
            raw, shape = _box_of(tensor, box)
            wanted = tensor.dtype if dtype is None else _arrays.canonical(dtype)
            if isinstance(into, str):
                to = _arrays.new(into, name, wanted, shape)
            else:
                to = _arrays.given(into, name, wanted)
            if dtype is not None and to.dtype != wanted:
                raise ArgumentError(f"tensor '{name}': dtype is {wanted}, and it is read into {to.dtype}",
                                    "FSDP_EINVAL", "dtype")
            if to.shape is not None and to.shape != shape:
                raise ArgumentError(f"tensor '{name}': its box is {list(shape)}, and it is read into {list(to.shape)}",
                                    "FSDP_EINVAL", "into")
            piece = c.Slice(box=raw, nreplica=1)
            piece.tensor.name = c.name_bytes(name)
            piece.tensor.dtype = _arrays.dtype_id(to.dtype)
            piece.tensor.ndim = len(tensor.shape)
            piece.tensor.shape[: len(tensor.shape)] = tensor.shape
            with gate:
                c.call(c.lib.ckpt_read_into, to.address, to.nbytes, handle, ctypes.byref(piece))
        return to.owner if isinstance(into, str) else into

    def map(self, name: str, into: str = "numpy") -> Any:
        """A whole tensor as it lies in its file, without reading it first: pages come when they are touched.

        into: "numpy", "torch", or "buffer" for a memoryview of its bytes. Writing to it changes this process's memory
        alone. No fingerprint is compared (`verify` does that), and the file must stay as it is: one that is cut
        meanwhile ends the process with SIGBUS. The mapping lives as long as what was returned.
        Raises UnsupportedError for a tensor that does not lie so: compressed, cut among files, in a torch archive, in a
        store; `read` reads those.
        """
        with self._use() as handle:
            tensor = self._find(handle, name)
            at = c.FileRange()
            with gate:
                c.call(c.lib.ckpt_tensor_range, ctypes.byref(at), handle, c.name_bytes(name))
            whole = self._mapped(handle, os.fsdecode(at.path), at.pos + at.nbytes, name)
        part = memoryview(whole)[at.pos : at.pos + at.nbytes]
        return _arrays.viewed(into, name, tensor.dtype, tensor.shape, part)

    def _mapped(self, handle: int, path: str, end: int, name: str) -> mmap.mmap:
        with self._lock:
            found = self._maps.get(path)
            if found is not None:
                return found
            try:
                with builtins.open(path, "rb", buffering=0) as file:
                    if os.fstat(file.fileno()).st_size < end:
                        raise DamagedError(f"'{path}' ends before tensor '{name}' does: it was cut")
                    made = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE | _MAP_NORESERVE,
                                     prot=mmap.PROT_READ | mmap.PROT_WRITE)
            except OSError as error:
                raise CheckpointError(f"'{path}': tensor '{name}' cannot be mapped: {error.strerror}",
                                      "FSDP_EIO") from error
            c.call(c.lib.ckpt_unchanged, handle)
            self._maps[path] = made
            return made

    # ---- operations ----

    def verify(self, progress: "Optional[Progress]" = None) -> None:
        """As fsdp_ckpt.verify."""
        from ._operations import verify

        verify(self, progress)

    def check(self) -> "Checked":
        """As fsdp_ckpt.check."""
        from ._operations import check

        return check(self)

    def merge(self, out: c.PathLike, **options: Any) -> "Written":
        """As fsdp_ckpt.merge."""
        from ._operations import merge

        return merge(self, out, **options)

    def reshard(self, out: c.PathLike, world: int, **options: Any) -> "Written":
        """As fsdp_ckpt.reshard."""
        from ._operations import reshard

        return reshard(self, out, world, **options)


class _Use:
    """The handle, which stays open during a call."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def __enter__(self) -> int:
        return self._checkpoint._take()

    def __exit__(self, *exc: Any) -> None:
        self._checkpoint._give()


def _box_of(tensor: Tensor, box: Optional[Box]) -> Tuple[c.Box, Tuple[int, ...]]:
    """The library's box, and the shape of what is read: integers take a dimension away."""
    parts = () if box is None else (box,) if isinstance(box, (slice, int)) else tuple(box)
    out, shape = c.Box(), []
    if len(parts) > len(tensor.shape):
        raise ArgumentError(f"tensor '{tensor.name}' has {len(tensor.shape)} dimensions, box has {len(parts)}",
                            "FSDP_EINVAL", "box")
    for d, length in enumerate(tensor.shape):
        part = parts[d] if d < len(parts) else slice(None)
        if isinstance(part, slice):
            start, stop, step = part.indices(length)
            if step != 1:
                raise ArgumentError(f"tensor '{tensor.name}': box has steps of {step}; only 1 can be read",
                                    "FSDP_EINVAL", "box")
            out.offset[d], out.length[d] = start, max(stop - start, 0)
            shape.append(out.length[d])
        else:
            index = part + length if part < 0 else part
            if not 0 <= index < length:
                raise ArgumentError(f"tensor '{tensor.name}': box: {part} is not in a dimension of {length}",
                                    "FSDP_EINVAL", "box")
            out.offset[d], out.length[d] = index, 1
    return out, tuple(shape)


def open(path: c.PathLike, config: Optional[c.PathLike] = None) -> Checkpoint:
    """Opens a checkpoint: reads what describes it, and proves that what is stored covers every tensor.

    path: see the module. config: the model's config.json, or the folder that it lies in; default: next to the
    checkpoint. It goes along with what is written, and gives the flat parameters of FSDP1 their names. Raises
    NotFoundError, DamagedError (missing, truncated, stray or overlapping files, by name), UnsupportedError.
    """
    return Checkpoint(path, config)


# ---- fork ---------------------------------------------------------------------------------------

_living: "weakref.WeakSet[Checkpoint]" = weakref.WeakSet()


def _all_after_fork() -> None:
    for checkpoint in list(_living):
        checkpoint._after_fork()


os.register_at_fork(after_in_child=_all_after_fork)
