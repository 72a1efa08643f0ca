#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# State dicts laid out in unusual ways, saved by torch, resharded to torch's format and loaded by torch
# again, with each tensor and value in its place. tests/data/dcp-names is what torch saves.
# run: timeout=300
. "$TOP/tests/lib/python.sh"
need_python 'torch, safetensors.torch'
cd "$TEST_TMP" || exit 1
export OMP_NUM_THREADS=1
. "$TOP/tests/lib/tap.sh"
cases() { "$TORCH_PYTHON" -W ignore "$TOP/tests/interop/dcp_names.py" "$@" >log 2>err && ! [ -s log ]; }

cases check "$TOP/tests/data/dcp-names"
ok $? "torch loads the samples in tests/data"
cases make saved && mkdir again
ok $? "torch saves them"
for dir in saved/*; do
    name=${dir#saved/}
    case $name in
    name-surrogate | name-2000 | name-empty | name-with-zero | nine-dimensions) continue ;;
    esac
    "$BIN/ckpt-reshard" -q $dir -o again/$name --world 2 --format dcp >log 2>err
    ok $? "$name is resharded"
done
cases check again
ok $? "torch finds every tensor and value again"
echo "1..$n"
exit $bad
