# SPDX-License-Identifier: Apache-2.0
"""Starts the programs of the package: what pip installs as ckpt-merge, ...; `python -m fsdp_ckpt merge ...`."""

import os
import sys
from typing import List, NoReturn

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")


def _become(name: str, arguments: List[str]) -> NoReturn:
    os.execv(os.path.join(_FOLDER, name), [name, *arguments])


def program() -> NoReturn:
    """Becomes the program whose name this process was started under."""
    _become(os.path.basename(sys.argv[0]), sys.argv[1:])


def main() -> NoReturn:
    names = sorted(os.listdir(_FOLDER)) if os.path.isdir(_FOLDER) else []
    name = "ckpt-" + sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in names:
        known = ", ".join(known[len("ckpt-"):] for known in names)
        sys.exit(f"usage: python -m fsdp_ckpt PROGRAM ...; PROGRAM is one of: {known or '(this is no wheel: none)'}")
    _become(name, sys.argv[2:])


if __name__ == "__main__":
    main()
