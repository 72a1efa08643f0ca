# SPDX-License-Identifier: Apache-2.0
"""tap.py: results as lines for ok_lines of tests/lib/tap.sh."""

import contextlib


def ok(passed, text):
    print(("ok - " if passed else "not ok - ") + text.replace("\n", " "), flush=True)


@contextlib.contextmanager
def refused(kind, text, *parts):
    """An exception of this kind, whose text has all parts."""
    try:
        yield
    except kind as error:
        ok(type(error) is kind and all(part in str(error) for part in parts), f"{text}: {error}")
    else:
        ok(False, f"{text}: it is not refused")
