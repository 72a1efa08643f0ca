#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# bitsandbytes and PyTorch still give what lies in tests/data/slot-cases. Needs TORCH_PYTHON. Prints TAP.
# run: timeout=300
PYTHON=${TORCH_PYTHON:-python3}
if ! "$PYTHON" -c 'import torch, safetensors.torch, bitsandbytes, triton' 2>/dev/null; then
    echo "ok 1 # SKIP '$PYTHON' has no torch, safetensors, bitsandbytes and triton (set TORCH_PYTHON)"
    echo "1..1"
    exit 0
fi
exec "$PYTHON" -W ignore "$TOP/tests/interop/slot_cases.py" check "$TOP/tests/data/slot-cases"
