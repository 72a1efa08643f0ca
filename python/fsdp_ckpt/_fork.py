# SPDX-License-Identifier: Apache-2.0
"""os.fork while other threads read.

A child has only the thread that forked. What another one held in the library would stay locked in the child for ever,
so a fork waits for reads under way, and reads that begin meanwhile wait for the fork. Merges, which take long, are not
waited for. A child opens its checkpoints anew (Checkpoint._after_fork).
"""

import os
import threading
from typing import Any


class _Gate:
    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._closed = False
        self._own = threading.local()

    def __enter__(self) -> None:
        depth = getattr(self._own, "depth", 0)
        with self._changed:
            while self._closed and not depth:
                self._changed.wait()
            self._inside += 1
        self._own.depth = depth + 1

    def __exit__(self, *exc: Any) -> None:
        self._own.depth -= 1
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    # A thread that forks from within a call of its own, in a handler of messages, does not wait for itself.
    def close(self) -> None:
        with self._changed:
            while self._closed or self._inside > getattr(self._own, "depth", 0):
                self._changed.wait()
            self._closed = True

    def open(self) -> None:
        with self._changed:
            self._closed = False
            self._changed.notify_all()


gate = _Gate()
os.register_at_fork(before=gate.close, after_in_parent=gate.open, after_in_child=gate._reset)
