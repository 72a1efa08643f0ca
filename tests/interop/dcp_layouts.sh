#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checkpoints that torch writes in many layouts (worlds, threads, files, nesting, dtypes, strides)
# merge to what was saved; what the tools write in three formats torch reads on 1, 2 and 3 ranks.
# run: long
# run: timeout=600
. "$TOP/tests/lib/python.sh"
need_python 'torch, safetensors.torch'
cd "$TEST_TMP" || exit 1
export OMP_NUM_THREADS=1
. "$TOP/tests/lib/tap.sh"
layouts() { "$TORCH_PYTHON" -W ignore "$TOP/tests/interop/dcp_layouts.py" "$@" >log 2>err; }
reshard() { "$BIN/ckpt-reshard" "$@" -q >log 2>err; }

layouts make saved
ok $? "torch saves"
for dir in saved/*; do
    "$BIN/ckpt-merge" -q --all "$dir/ckpt" -o "$dir/all.safetensors" 2>err &&
        "$BIN/ckpt-verify" "$dir/ckpt" >log 2>>err
    ok $? "${dir#saved/} merges and verifies"
done
layouts same saved all.safetensors
ok $? "every tensor of every layout is equal, under its stored name"

from=saved/3r-nested/ckpt
"$BIN/ckpt-merge" -q $from -o weights.safetensors 2>err
ok $? "the weights alone"
reshard $from -o dcp --format dcp --world 4 && reshard saved/4r-items/ckpt -o dtypes --format dcp --world 2 &&
    reshard saved/1r-odd/ckpt -o odd --format dcp --world 3 &&
    reshard $from -o hf --format hf-dcp --world 3 && reshard $from -o native --world 2
ok $? "resharded to DCP, to its Hugging Face layout and to our own"
reshard saved/3r-app/ckpt -o app --world 2 && "$BIN/ckpt-info" app >log &&
    grep -q '^layers.0.weight ' log && ! grep -q app.model log
ok $? "containers around the model are not in what a job resumes from"
"$BIN/ckpt-diff" saved/3r-app/ckpt app >log 2>err
ok $? "nor are they a difference"
"$BIN/ckpt-merge" saved/3r-app/ckpt -o unpacked >log 2>err && "$BIN/ckpt-diff" unpacked weights.safetensors >log 2>err
ok $? "nor in the names of merged weights"
from=saved/3r-objects/ckpt
reshard $from -o objects --world 2 && reshard $from -o objects-dcp --world 2 --format dcp &&
    reshard $from -o objects-hf --world 2 --format hf-dcp && "$BIN/ckpt-verify" objects >log &&
    "$BIN/ckpt-info" --json objects | grep -q '"bytes": *{"bytes": *"00ff"}' &&
    "$BIN/ckpt-info" --json objects-dcp 2>err | grep -q '"epoch": *3' &&
    "$BIN/ckpt-diff" $from objects >log && "$BIN/ckpt-diff" $from objects-hf >log
ok $? "Python values of all kinds go along, and tensors without elements"
"$BIN/ckpt-reshard" $from -o left --world 1 --format dcp >log 2>err && grep -q "'big' is left out: an integer has more" err &&
    grep -q "value 'bytes' cannot be written back" err
ok $? "and what does not is named"
model=hf
[ -d hf/model ] && model=hf/model
for world in 1 2 3; do
    layouts load $world dcp dcp saved/3r-nested/expected.safetensors \
        dcp dtypes saved/4r-items/expected.safetensors dcp odd saved/1r-odd/expected.safetensors \
        dcp objects-dcp saved/3r-objects/expected.safetensors \
        hf $model weights.safetensors hf native/model weights.safetensors
    ok $? "torch reads them on $world ranks"
done
echo "1..$n"
exit $bad
