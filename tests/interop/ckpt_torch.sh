#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# torch and safetensors read our checkpoints and merges. Needs a Python with torch and safetensors:
# TORCH_PYTHON, default python3. BIN (default build/bin) holds the programs. Prints TAP.
BIN=${BIN:-build/bin}
. "$TOP/tests/lib/python.sh"
need_python 'torch, safetensors.torch'
dir=$(mktemp -d "${TMPDIR:-/tmp}/ckpt-interop-XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
if ! "$BIN/tests/interop/test_ckpt_export" "$dir" >"$dir/log"; then
    sed 's/^/# /' "$dir/log"
    echo "not ok 1 - nothing to read"
    echo "1..1"
    exit 1
fi
"$PYTHON" -W ignore "$(dirname "$0")/ckpt_torch.py" "$dir/step-00000007" "$dir/want" \
    "$dir/merged.safetensors" "$dir/bf16.safetensors" "$dir/hf"
