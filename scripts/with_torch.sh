#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command with TORCH_PYTHON set to a Python that has PyTorch, safetensors, transformers and
# numpy: the one in TORCH_PYTHON, python3, or a virtual environment in build/venv, made on first use
# from PyPI (a download of a few GB).
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
venv=$top/build/venv

has_torch() {
    "$1" -c 'import torch, safetensors.torch, transformers, numpy' >/dev/null 2>&1
}

if [ -n "${TORCH_PYTHON:-}" ] && ! has_torch "$TORCH_PYTHON"; then
    echo "TORCH_PYTHON=$TORCH_PYTHON cannot import torch, safetensors, transformers and numpy" >&2
    exit 1
fi
for python in "${TORCH_PYTHON:-}" "$venv/bin/python" "$(command -v python3)"; do
    [ -n "$python" ] && has_torch "$python" && break
    python=
done
if [ -z "$python" ]; then
    python=$venv/bin/python
    echo "Fetching PyTorch from PyPI into $venv" >&2
    log=$venv.log
    mkdir -p "$top/build"
    rm -rf "$venv"
    if ! { python3 -m venv "$venv" && "$python" -m pip install --quiet --no-input \
        --disable-pip-version-check torch safetensors transformers numpy; } </dev/null >"$log" 2>&1 ||
        ! has_torch "$python"; then
        tail -n 20 "$log" >&2
        echo "could not make $venv; set TORCH_PYTHON to a Python that has PyTorch" >&2
        exit 1
    fi
    rm -f "$log"
fi
export TORCH_PYTHON=$python
"$python" -c 'import torch, transformers as t; print("PyTorch", torch.__version__ + ", transformers", t.__version__)'
exec "$@"
