# SPDX-License-Identifier: Apache-2.0
"""structures.py TOP CC: the structures, constants and enumerations of fsdp_ckpt._library are those of the headers, member
by member, and all of each; the module's and the page's names of formats are the library's."""

import ctypes
import re
import subprocess
import sys

import fsdp_ckpt
from fsdp_ckpt import _library as c

CONSTANTS = {
    "FSDP_MAX_DIMS": c.MAX_DIMS, "CKPT_RESHARD_ARGS_VERSION": c.RESHARD_ARGS_VERSION,
    "CKPT_VERIFY_ARGS_VERSION": c.VERIFY_ARGS_VERSION,
}
ENUMERATIONS = {
    "ckpt_role": {"CKPT_ROLE_" + name.upper(): i for i, name in enumerate(c.ROLES)},
    "ckpt_output": {"CKPT_OUTPUT_" + name.upper().replace("-", "_"): i for name, i in c.OUTPUT.items()},
    # AUTO is for jobs that save.
    "ckpt_compress": {"CKPT_COMPRESS_AUTO": 2, **{"CKPT_COMPRESS_" + name.upper(): i for name, i in c.COMPRESS.items()}},
}
top, cc = sys.argv[1:]
with open(top + "/ckpt/include/ckpt/ckpt.h", encoding="utf-8") as file:
    HEADER = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
with open(top + "/docs/python.md", encoding="utf-8") as file:
    PAGE = file.read()


def members(enumeration):
    return re.findall(r"\bCKPT_\w+", re.search(r"\benum " + enumeration + r" \{(.*?)\}", HEADER, re.S)[1])


missing = [f"fsdp_ckpt._library lacks {member}" for name, known in ENUMERATIONS.items() for member in members(name)
           if member not in known]
for number in range(len(members("ckpt_format"))):
    name = c.text(c.lib.ckpt_format_name(number))
    missing += [f"{where} lacks the format {name}"
                for where, text, quote in (("Checkpoint.format", fsdp_ckpt.Checkpoint.format.__doc__, '"'),
                                           ("docs/python.md", PAGE, "`")) if quote + name + quote not in text]
lines, want = [], []
for name, kind in c.STRUCTURES.items():
    lines.append(f'    printf("{name} %zu\\n", sizeof(struct {name}));')
    want.append(f"{name} {ctypes.sizeof(kind)}")
    for field, *_ in kind._fields_:
        at = getattr(kind, field)
        lines.append(f'    printf("{name}.{field} %zu %zu\\n", offsetof(struct {name}, {field}), '
                     f"sizeof ((struct {name} *)0)->{field});")
        want.append(f"{name}.{field} {at.offset} {at.size}")
for name, value in [*CONSTANTS.items(), *(row for known in ENUMERATIONS.values() for row in known.items())]:
    lines.append(f'    printf("{name} %d\\n", (int){name});')
    want.append(f"{name} {value}")
with open("structures.c", "w") as file:
    print("#include <stddef.h>\n#include <stdio.h>\n#include <ckpt/ckpt.h>\nint main(void)\n{", *lines, "    return 0;\n}",
          sep="\n", file=file)
subprocess.run([*cc.split(), f"-I{top}/ckpt/include", f"-I{top}/libfsdp/include", "-o", "structures", "structures.c"],
               check=True)
have = subprocess.run(["./structures"], check=True, capture_output=True, text=True).stdout.splitlines()
wrong = missing + [f"the header has {a}, fsdp_ckpt._library {b}" for a, b in zip(have, want) if a != b]
if len(have) != len(want) or len(have) <= 60:
    wrong.append(f"{len(have)} members of {len(want)} were compared")
print("; ".join(wrong) or f"{len(have)} compared")
sys.exit(bool(wrong))
