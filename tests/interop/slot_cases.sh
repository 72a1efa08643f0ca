#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# bitsandbytes and PyTorch still give what lies in tests/data/slot-cases. Needs TORCH_PYTHON. Prints TAP.
# run: timeout=300
. "$TOP/tests/lib/python.sh"
need_python 'torch, safetensors.torch, bitsandbytes, triton'
exec "$PYTHON" -W ignore "$TOP/tests/interop/slot_cases.py" check "$TOP/tests/data/slot-cases"
