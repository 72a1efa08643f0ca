#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch still gives what lies in tests/data/torch-cases. Needs TORCH_PYTHON. Prints TAP.
# run: timeout=300
. "$TOP/tests/lib/python.sh"
need_python 'torch, safetensors.torch, lion_pytorch, schedulefree'
exec "$PYTHON" -W ignore "$TOP/tests/interop/torch_cases.py" check "$TOP/tests/data/torch-cases"
