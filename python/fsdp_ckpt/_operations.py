# SPDX-License-Identifier: Apache-2.0
"""Merging, resharding, verifying: calls that take long, which can be watched and stopped."""

import ctypes
import os
import threading
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _arrays
from . import _library as c
from ._checkpoint import Checkpoint, open
from ._errors import ArgumentError, DamagedError

Progress = Callable[[int, int], Any]
Source = Union[Checkpoint, c.PathLike]


class Written(NamedTuple):
    """What merge and reshard did. Of bytes: read of tensors; written to files, and of these found from an earlier run
    that was stopped; of memory for buffers."""

    path: str
    ntensors: int
    nfiles: int
    nbytes_read: int
    nbytes_written: int
    nbytes_resumed: int
    nbytes_memory: int
    seconds: float


class _Watched:
    """Runs a call on a thread of its own while this one waits, so that signals reach Python: Ctrl-C then asks the
    call to end, waits for that, and is raised. progress is called on this thread, and may raise, too."""

    def __init__(self, progress: Optional[Progress]) -> None:
        self._progress = progress
        self._stop = False
        self._at: Optional[Tuple[int, int]] = None
        self._said: Optional[Tuple[int, int]] = None
        self._ended = threading.Event()
        self.callback = c.PROGRESS(self._on_progress)

    def _on_progress(self, ctx: Any, done: int, total: int) -> int:
        self._at = (done, total)
        return int(self._stop)

    def _say(self) -> None:
        at = self._at
        if self._progress is not None and at is not None and at != self._said:
            self._said = at
            self._progress(*at)

    def run(self, function: Any, *args: Any) -> None:
        failures: List[BaseException] = []

        def work() -> None:
            try:
                c.call(function, *args)
            except BaseException as error:  # handed to the thread that waits
                failures.append(error)
            finally:
                self._ended.set()

        thread = threading.Thread(target=work, name="fsdp_ckpt")
        thread.start()
        try:
            while not self._ended.wait(0.05):
                self._say()
        except BaseException:
            self._stop = True
            thread.join()
            raise
        thread.join()
        if failures:
            raise failures[0]
        self._say()


class _Opened:
    """A checkpoint that is the caller's, or one that is opened for a call."""

    def __init__(self, source: Source) -> None:
        self._own = not isinstance(source, Checkpoint)
        self._checkpoint = source if isinstance(source, Checkpoint) else open(source)

    def __enter__(self) -> int:
        try:
            return self._checkpoint._take()
        except BaseException:
            self._close()
            raise

    def __exit__(self, *exc: Any) -> None:
        self._checkpoint._give()
        self._close()

    def _close(self) -> None:
        if self._own:
            self._checkpoint.close()


def verify(checkpoint: Source, progress: Optional[Progress] = None) -> None:
    """Proves that a checkpoint is as it was saved: every checksum and fingerprint is right.

    checkpoint: one that is open, or a path. progress: called with bytes done and in all.
    Raises DamagedError, whose text and `faults` name files and tensors; UnsupportedError where all is sound but for
    tensors that cannot be read. Ctrl-C stops it.
    """
    watched, faults = _Watched(progress), []
    report = c.FAULT(lambda ctx, line: faults.append(c.text(line)))
    args = c.VerifyArgs(version=c.VERIFY_ARGS_VERSION, report=report, progress=watched.callback)
    with _Opened(checkpoint) as handle:
        try:
            watched.run(c.lib.ckpt_verify_watched, handle, ctypes.byref(args))
        except DamagedError as error:
            if not faults:
                raise
            raise DamagedError("; ".join([str(error), *faults]), error.status, None, faults) from None


class _Texts:
    """Arrays of texts of a call's arguments, kept alive with it."""

    def __init__(self) -> None:
        self.kept: List[Any] = []

    def array(self, values: Sequence[bytes]) -> Any:
        self.kept.append(c.texts(values))
        return self.kept[-1]


class _Options(NamedTuple):
    dtype: Any
    include: Sequence[str]
    exclude: Sequence[str]
    maps: Sequence[c.PathLike]
    heads: Optional[Tuple[int, int]]
    mem: Union[int, str, None]
    threads: int
    overwrite: bool
    dry_run: bool


def _chosen(name: str, value: str, table: Any) -> int:
    if value not in table:
        raise ArgumentError(f"{name}: '{value}' is none of {', '.join(table)}", "FSDP_EINVAL", name)
    return int(table[value])


def _arguments(out: c.PathLike, options: _Options, texts: _Texts) -> c.ReshardArgs:
    args = c.ReshardArgs()
    c.lib.ckpt_reshard_args_init(ctypes.byref(args))
    args.out = c.path_bytes(out)
    for field, values in (("include", options.include), ("exclude", options.exclude), ("maps", options.maps)):
        if isinstance(values, (str, bytes)):
            raise ArgumentError(f"{field}: a list is wanted, not a text", "FSDP_EINVAL", field)
        setattr(args.select, field, texts.array([c.path_bytes(value) for value in values]))
        setattr(args.select, "n" + field, len(values))
    if options.heads is not None:
        args.select.nheads, args.select.nkv_heads = options.heads
    if options.mem is not None:
        args.mem_nbytes = c.nbytes(options.mem)
    args.nthreads, args.overwrite, args.dry_run = options.threads, options.overwrite, options.dry_run
    return args


def _write(source: Source, args: c.ReshardArgs, progress: Optional[Progress]) -> Written:
    watched, result = _Watched(progress), c.ReshardResult()
    args.progress = watched.callback
    with _Opened(source) as handle:
        watched.run(c.lib.ckpt_reshard, ctypes.byref(result), handle, ctypes.byref(args))
    return Written(os.fsdecode(args.out), result.ntensors, result.nfiles, result.nbytes_read, result.nbytes_written,
                   result.nbytes_resumed, result.nbytes_memory, result.seconds)


def merge(checkpoint: Source, out: c.PathLike, *, format: Optional[str] = None, dtype: Any = None,
          include: Sequence[str] = (), exclude: Sequence[str] = (), maps: Sequence[c.PathLike] = (),
          heads: Optional[Tuple[int, int]] = None, adapters: Sequence[c.PathLike] = (), optim: bool = False,
          ema: bool = False, max_shard_size: Union[int, str] = "5GB", mem: Union[int, str, None] = None,
          threads: int = 0, overwrite: bool = False, dry_run: bool = False,
          progress: Optional[Progress] = None) -> Written:
    """Writes the full weights: what ckpt-merge does, whose manual page explains the options.

    out: a file if it ends in .safetensors, a GGUF file if in .gguf, else a Hugging Face folder. It appears complete or
    not at all; a call that was stopped is resumed by the same call.
    format: "weights", "dcp" or "gguf"; default by the name of out.
    dtype: floating tensors are cast to it; of GGUF its type ("q4_k_m").
    include, exclude: globs of tensors' names. maps: files of rules, or names of built-in ones.
    adapters: folders of LoRA adapters that are added to the weights, each PATH or PATH=WEIGHT.
    optim: the optimizer's tensors too. ema: moving averages in place of weights.
    max_shard_size, mem: bytes, or texts such as "5GB"; mem bounds the buffers (256 MiB).
    progress: called with bytes done and in all. Ctrl-C stops it cleanly.
    Raises ExistsError where out exists and is not overwritten, DamagedError, NoSpaceError, ArgumentError, ...
    """
    if format is None:
        format = "gguf" if os.fsdecode(out).lower().endswith(".gguf") else "weights"
    texts = _Texts()
    args = _arguments(out, _Options(dtype, include, exclude, maps, heads, mem, threads, overwrite, dry_run), texts)
    args.output = _chosen("format", format, {name: c.OUTPUT[name] for name in ("weights", "dcp", "gguf")})
    if dtype is not None:
        args.dtype = c.name_bytes(dtype if format == "gguf" else _arrays.canonical(dtype))
    args.all, args.ema, args.max_shard_nbytes = optim, ema, c.nbytes(max_shard_size)
    opened = ctypes.c_void_p()
    if adapters:
        paths = texts.array([c.path_bytes(path) for path in adapters])
        c.call(c.lib.ckpt_adapters_open, ctypes.byref(opened), paths, len(adapters))
    try:
        args.adapters = opened
        return _write(checkpoint, args, progress)
    finally:
        c.lib.ckpt_adapters_close(opened)


def reshard(checkpoint: Source, out: c.PathLike, world: int, *, replicas: int = 1, format: str = "native",
            compress: str = "none", dtype: Any = None, include: Sequence[str] = (), exclude: Sequence[str] = (),
            maps: Sequence[c.PathLike] = (), heads: Optional[Tuple[int, int]] = None, optim: bool = True,
            mem: Union[int, str, None] = None, threads: int = 0, overwrite: bool = False, dry_run: bool = False,
            progress: Optional[Progress] = None) -> Written:
    """Writes a checkpoint for `world` ranks, of which `replicas` groups hold the same: what ckpt-reshard does.

    out: a folder or an address. format: "native", "dcp" (torch.distributed.checkpoint) or "hf-dcp" (its Hugging Face
    layout). compress: "none" or "zstd", native alone. optim: the optimizer's tensors too. The others as of `merge`.
    """
    if world < 1 or replicas < 1 or world % replicas:
        raise ArgumentError(f"world: {world} ranks are not {replicas} equal groups of at least one", "FSDP_EINVAL",
                            "world")
    texts = _Texts()
    args = _arguments(out, _Options(dtype, include, exclude, maps, heads, mem, threads, overwrite, dry_run), texts)
    args.output = _chosen("format", format, {name: c.OUTPUT[name] for name in ("native", "dcp", "hf-dcp")})
    args.compress = _chosen("compress", compress, c.COMPRESS)
    if dtype is not None:
        args.dtype = c.name_bytes(_arrays.canonical(dtype))
    args.shard_size, args.replicate_size, args.all = world // replicas, replicas, optim
    return _write(checkpoint, args, progress)
