#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command with DeepSpeed (PyPI), for the CPU: fetched once into build/venv-deepspeed, next to the PyTorch of
# TORCH_PYTHON. The command finds its Python in DEEPSPEED_PYTHON.
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
venv=$top/build/venv-deepspeed
log=$venv.log
python=${TORCH_PYTHON:-python3}

make_venv() {
    local site
    site=$("$python" -c 'import torch, os; print(os.path.dirname(os.path.dirname(torch.__file__)))') &&
        "$python" -m venv --clear "$venv" && echo "$site" >"$(echo "$venv"/lib/python3*/site-packages)/torch.pth" &&
        "$venv/bin/pip" install -q deepspeed
}

export DS_ACCELERATOR=cpu
if ! "$venv/bin/python" -c 'import deepspeed' >"$log" 2>&1; then
    if ! make_venv >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "could not install DeepSpeed; the log is $log" >&2
        exit 1
    fi
fi
rm -f "$log"
export DEEPSPEED_PYTHON=$venv/bin/python
exec "$@"
