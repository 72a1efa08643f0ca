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
from ._fork import gate

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

    def __init__(self, source: Source, config: Optional[c.PathLike] = None) -> None:
        self._own = not isinstance(source, Checkpoint)
        if not self._own and config is not None:
            raise ArgumentError("config: this checkpoint is open; give it to `open`", "FSDP_EINVAL", "config")
        self._checkpoint = source if isinstance(source, Checkpoint) else open(source, config)

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


class _Average:
    """Checkpoints that are opened for a call that writes their average."""

    def __init__(self, paths: Any, npaths: int, config: Optional[c.PathLike]) -> None:
        self.opened = ctypes.c_void_p()
        with gate:
            c.call(c.lib.ckpt_average_open, ctypes.byref(self.opened), paths, npaths,
                   None if config is None else c.path_bytes(config))

    def __enter__(self) -> int:
        return int(c.lib.ckpt_average_member(self.opened, 0))

    def __exit__(self, *exc: Any) -> None:
        c.lib.ckpt_average_close(self.opened)


class Mismatch(NamedTuple):
    """What does not fit config.json: one sentence; tensor and file are None where it is of no single one."""

    text: str
    tensor: Optional[str]
    file: Optional[str]


class Checked(NamedTuple):
    """What check found. family: model_type of config.json, None where it has none. by_family: names and shapes were
    compared with those of the family; why says why not."""

    mismatches: List[Mismatch]
    ntensors: int
    family: Optional[str]
    by_family: bool
    why: Optional[str]


def check(checkpoint: Source) -> Checked:
    """Compares the headers with config.json, as ckpt-merge --check does: the model's tensors are all there in their
    shapes and types, and no others are. Reads no weights. checkpoint: one that is open, or a path.
    """
    found: List[Mismatch] = []

    def take(ctx: Any, raw: Any) -> None:
        m = raw.contents
        found.append(Mismatch(c.text(m.text), None if m.tensor is None else c.text(m.tensor),
                              None if m.file is None else c.text(m.file)))

    result, report = c.CheckResult(), c.MISMATCH(take)
    with _Opened(checkpoint) as handle, gate:
        c.call(c.lib.ckpt_check, ctypes.byref(result), handle, report, None)
    return Checked(found, result.ntensors, c.text(result.family) or None, result.by_family, c.text(result.why) or None)


def _listed(name: str, values: Sequence[c.PathLike]) -> List[bytes]:
    """Of an argument that takes a list, of which a single text would be one of letters."""
    if isinstance(values, (str, bytes)):
        raise ArgumentError(f"{name}: a list is wanted, not a text", "FSDP_EINVAL", name)
    return [c.path_bytes(value) for value in values]


class _Texts:
    """Arrays of texts of a call's arguments, kept alive with it."""

    def __init__(self) -> None:
        self.kept: List[Any] = []

    def array(self, values: Sequence[bytes]) -> Any:
        self.kept.append(c.texts(values))
        return self.kept[-1]

    def listed(self, name: str, values: Sequence[c.PathLike]) -> Any:
        return self.array(_listed(name, values))


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
        setattr(args.select, field, texts.listed(field, values))
        setattr(args.select, "n" + field, len(values))
    if options.heads is not None:
        args.select.nheads, args.select.nkv_heads = options.heads
    if options.mem is not None:
        args.mem_nbytes = c.nbytes(options.mem)
    args.nthreads, args.overwrite, args.dry_run = options.threads, options.overwrite, options.dry_run
    return args


def _write(opened: Union[_Opened, _Average], args: c.ReshardArgs, progress: Optional[Progress]) -> Written:
    watched, result = _Watched(progress), c.ReshardResult()
    args.progress = watched.callback
    with opened as handle:
        watched.run(c.lib.ckpt_reshard, ctypes.byref(result), handle, ctypes.byref(args))
    return Written(os.fsdecode(args.out), result.ntensors, result.nfiles, result.nbytes_read, result.nbytes_written,
                   result.nbytes_resumed, result.nbytes_memory, result.seconds)


_FORMAT_OF_END = {".gguf": "gguf", ".pt": "torch", ".pth": "torch", ".bin": "torch"}


def merge(checkpoint: Source, out: c.PathLike, *, format: Optional[str] = None, dtype: Any = None,
          include: Sequence[str] = (), exclude: Sequence[str] = (), maps: Sequence[c.PathLike] = (),
          heads: Optional[Tuple[int, int]] = None, adapters: Sequence[c.PathLike] = (), optim: bool = False,
          ema: bool = False, quantize: Optional[str] = None, quantize_ignore: Sequence[str] = (), card: bool = True,
          config: Optional[c.PathLike] = None, average: Sequence[c.PathLike] = (),
          max_shard_size: Union[int, str] = "5GB", mem: Union[int, str, None] = None, threads: int = 0,
          overwrite: bool = False, dry_run: bool = False, progress: Optional[Progress] = None) -> Written:
    """Writes the full weights: what ckpt-merge does, whose manual page explains the options. The program alone has
    --watch.

    out: a file if it ends in .safetensors, a GGUF file if in .gguf, a file of torch.save if in .pt, .pth or .bin, else
    a Hugging Face folder. It appears complete or not at all; a call that was stopped is resumed by the same call.
    format: "weights" (safetensors), "torch", "dcp" or "gguf"; default by the name of out.
    dtype: floating tensors are cast to it; of GGUF its type ("q4_k_m").
    quantize: linear layers of a Hugging Face folder are stored as compressed-tensors stores them: "fp8_dynamic",
    "w8a16", ...; quantize_ignore: globs of layers that are not.
    card: a Hugging Face folder gets a model card, README.md.
    config: as of `open`, where checkpoint is a path.
    average: other checkpoints; the average of all is written. checkpoint is then a path, and gives names, types and
    config.json. Each may be PATH=WEIGHT (1).
    include, exclude: globs of tensors' names. maps: files of rules, or names of built-in ones.
    adapters: folders of LoRA adapters that are added to the weights, each PATH or PATH=WEIGHT.
    optim: the optimizer's tensors too. ema: moving averages in place of weights.
    max_shard_size, mem: bytes, or texts such as "5GB"; mem bounds the buffers (256 MiB).
    progress: called with bytes done and in all. Ctrl-C stops it cleanly.
    Raises ExistsError where out exists and is not overwritten, DamagedError, NoSpaceError, ArgumentError, ...
    """
    if format is None:
        format = _FORMAT_OF_END.get(os.path.splitext(os.fsdecode(out))[1].lower(), "weights")
    texts = _Texts()
    args = _arguments(out, _Options(dtype, include, exclude, maps, heads, mem, threads, overwrite, dry_run), texts)
    args.output = _chosen("format", format, {name: c.OUTPUT[name] for name in ("weights", "torch", "dcp", "gguf")})
    if dtype is not None:
        args.dtype = c.name_bytes(dtype if format == "gguf" else _arrays.canonical(dtype))
    if quantize_ignore and quantize is None:
        raise ArgumentError("quantize_ignore: it is of quantize", "FSDP_EINVAL", "quantize_ignore")
    if quantize is not None:
        args.quantize = c.name_bytes(quantize)
        args.quantize_ignore = texts.listed("quantize_ignore", quantize_ignore)
        args.nquantize_ignore = len(quantize_ignore)
    args.all, args.ema, args.card, args.max_shard_nbytes = optim, ema, card, c.nbytes(max_shard_size)
    members = _listed("average", average)
    opened = ctypes.c_void_p()
    if adapters:
        paths = texts.listed("adapters", adapters)
        c.call(c.lib.ckpt_adapters_open, ctypes.byref(opened), paths, len(adapters))
    try:
        args.adapters = opened
        if not average:
            return _write(_Opened(checkpoint, config), args, progress)
        if isinstance(checkpoint, Checkpoint):
            raise ArgumentError("average: the first of its checkpoints is open; give its path", "FSDP_EINVAL",
                                "average")
        of = _Average(texts.array([c.path_bytes(checkpoint), *members]), len(members) + 1, config)
        args.average = of.opened
        return _write(of, args, progress)
    finally:
        c.lib.ckpt_adapters_close(opened)


def reshard(checkpoint: Source, out: c.PathLike, world: int, *, replicas: int = 1, format: str = "native",
            compress: str = "none", dtype: Any = None, include: Sequence[str] = (), exclude: Sequence[str] = (),
            maps: Sequence[c.PathLike] = (), heads: Optional[Tuple[int, int]] = None, optim: bool = True,
            config: Optional[c.PathLike] = None, mem: Union[int, str, None] = None, threads: int = 0,
            overwrite: bool = False, dry_run: bool = False, progress: Optional[Progress] = None) -> Written:
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
    return _write(_Opened(checkpoint, config), args, progress)
