#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch still gives what lies in tests/data/torch-cases. Needs TORCH_PYTHON. Prints TAP.
# run: timeout=300
PYTHON=${TORCH_PYTHON:-python3}
if ! "$PYTHON" -c 'import torch, safetensors.torch, lion_pytorch, schedulefree' 2>/dev/null; then
    echo "ok 1 # SKIP '$PYTHON' has no torch, safetensors, lion-pytorch and schedulefree (set TORCH_PYTHON)"
    echo "1..1"
    exit 0
fi
exec "$PYTHON" -W ignore "$TOP/tests/interop/torch_cases.py" check "$TOP/tests/data/torch-cases"
