# SPDX-License-Identifier: Apache-2.0
"""Failures of the library as exceptions. Their text is the library's: it names the object and says what to do."""

from typing import Dict, Optional, Sequence, Type


class CheckpointError(Exception):
    """Any failure.

    status: its code, such as "FSDP_EIO".
    setting: the argument at fault, as the C structures name it; None where it is none's.
    """

    def __init__(self, text: str, status: str = "FSDP_EINTERNAL", setting: Optional[str] = None) -> None:
        super().__init__(text)
        self.status = status
        self.setting = setting

    def __reduce__(self):  # type: ignore[no-untyped-def]
        return type(self)._restored, (self.args[0], self.__dict__)

    @classmethod
    def _restored(cls, text: str, fields: Dict[str, object]) -> "CheckpointError":
        error = cls(text)
        error.__dict__.update(fields)
        return error


class ArgumentError(CheckpointError, ValueError):
    """An argument, a configuration or an input file is wrong."""


class NotFoundError(CheckpointError, LookupError):
    """A file, tensor or checkpoint is not there."""


class ExistsError(CheckpointError):
    """The output exists, and is not overwritten."""


class DamagedError(CheckpointError):
    """Data contradict themselves: a checksum, a size, what must cover a tensor.

    faults: of `verify`, a line for each; each names file or tensor. Else empty.
    """

    def __init__(self, text: str, status: str = "FSDP_ECORRUPT", setting: Optional[str] = None,
                 faults: Sequence[str] = ()) -> None:
        super().__init__(text, status, setting)
        self.faults = list(faults)


class UnsupportedError(CheckpointError):
    """Well formed, but not something that this version, or NumPy, can do."""


class NoSpaceError(CheckpointError):
    """A disk or a quota is full."""


class StoreError(CheckpointError):
    """The operating system or a store refused."""


class OutOfMemoryError(CheckpointError, MemoryError):
    """Memory is missing."""


class CanceledError(CheckpointError):
    """The call was stopped. The same call of merge or reshard resumes."""


OF_STATUS: Dict[str, Type[CheckpointError]] = {
    "FSDP_EINVAL": ArgumentError,
    "FSDP_ENOMEM": OutOfMemoryError,
    "FSDP_EIO": StoreError,
    "FSDP_ENOTFOUND": NotFoundError,
    "FSDP_EEXIST": ExistsError,
    "FSDP_ECORRUPT": DamagedError,
    "FSDP_EUNSUPPORTED": UnsupportedError,
    "FSDP_ENOSPC": NoSpaceError,
    "FSDP_EMISMATCH": ArgumentError,
    "FSDP_ECANCELED": CanceledError,
}
