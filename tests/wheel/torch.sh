#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The module of the wheel against PyTorch: what it reads of DCP, safetensors and ours, in every type; memory that stays
# valid; threads, forks, Ctrl-C; damage by name.
# run: timeout=600
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/wheel/lib/wheel.sh"
need_wheel
need_torch
make_env env "$TORCH_PYTHON" && "$TORCH_PYTHON" "$TOP/tests/wheel/lib/borrow.py" env/bin/python
ok $? "a fresh environment, which sees PyTorch"
for part in reading memory operations processes; do
    mkdir $part
    (cd $part && ../env/bin/python -B "$TOP/tests/wheel/$part.py" "$TOP") >lines 2>err </dev/null
    status=$?
    ok_lines lines
    ok $status "$part.py comes to its end"
done
echo "1..$n"
exit $bad
