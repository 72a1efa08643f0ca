# SPDX-License-Identifier: Apache-2.0
"""structures.py TOP CC: the structures and constants of fsdp_ckpt._library are those of the headers, member by member."""

import ctypes
import subprocess
import sys

from fsdp_ckpt import _library as c

STRUCTURES = {
    "fsdp_err": c.Err, "fsdp_tensor": c.FsdpTensor, "fsdp_box": c.Box, "fsdp_slice": c.Slice,
    "ckpt_tensor": c.CkptTensor, "ckpt_alias": c.Alias, "ckpt_file_info": c.FileInfo, "ckpt_file_range": c.FileRange,
    "ckpt_select": c.Select, "ckpt_reshard_args": c.ReshardArgs, "ckpt_reshard_result": c.ReshardResult,
    "ckpt_verify_args": c.VerifyArgs,
}
CONSTANTS = {
    "FSDP_MAX_DIMS": c.MAX_DIMS, "CKPT_VERIFY_ARGS_VERSION": c.VERIFY_ARGS_VERSION, "CKPT_ROLE_MODEL": c.ROLE_MODEL,
    "CKPT_OUTPUT_WEIGHTS": c.OUTPUT["weights"], "CKPT_OUTPUT_NATIVE": c.OUTPUT["native"],
    "CKPT_OUTPUT_DCP": c.OUTPUT["dcp"], "CKPT_OUTPUT_HF_DCP": c.OUTPUT["hf-dcp"], "CKPT_OUTPUT_GGUF": c.OUTPUT["gguf"],
    "CKPT_COMPRESS_NONE": c.COMPRESS["none"], "CKPT_COMPRESS_ZSTD": c.COMPRESS["zstd"],
}

lines, want = [], []
for name, kind in STRUCTURES.items():
    lines.append(f'    printf("{name} %zu\\n", sizeof(struct {name}));')
    want.append(f"{name} {ctypes.sizeof(kind)}")
    for field, *_ in kind._fields_:
        at = getattr(kind, field)
        lines.append(f'    printf("{name}.{field} %zu %zu\\n", offsetof(struct {name}, {field}), '
                     f"sizeof ((struct {name} *)0)->{field});")
        want.append(f"{name}.{field} {at.offset} {at.size}")
for name, value in CONSTANTS.items():
    lines.append(f'    printf("{name} %d\\n", (int){name});')
    want.append(f"{name} {value}")
with open("structures.c", "w") as file:
    print("#include <stddef.h>\n#include <stdio.h>\n#include <ckpt/ckpt.h>\nint main(void)\n{", *lines, "    return 0;\n}",
          sep="\n", file=file)
top, cc = sys.argv[1:]
subprocess.run([*cc.split(), f"-I{top}/ckpt/include", f"-I{top}/libfsdp/include", "-o", "structures", "structures.c"],
               check=True)
have = subprocess.run(["./structures"], check=True, capture_output=True, text=True).stdout.splitlines()
for a, b in zip(have, want):
    if a != b:
        print(f"the header has {a}, fsdp_ckpt._library {b}")
print(f"{len(have)} compared" if have == want and len(have) > 60 else "they differ")
sys.exit(have != want or len(have) <= 60)
