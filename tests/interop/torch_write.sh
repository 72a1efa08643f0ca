#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# torch and transformers load the files of torch.save that ckpt-merge writes.
# run: timeout=300
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, safetensors'
. "$TOP/tests/lib/tap.sh"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TORCH_SERIALIZATION_DEBUG=1
python() { "$TORCH_PYTHON" -W ignore "$TOP/tests/interop/torch_write.py" "$@"; }
merge() { "$BIN/ckpt-merge" "$@" --quiet >>log 2>&1; }

python make >log 2>&1
ok $? "torch and transformers write the inputs"
merge state.pt -o state-again.pt && merge state.pt -o state-half.pt --dtype bfloat16
ok $? "a state dict of every dtype"
"$BIN/ckpt-reshard" tied -o tied-native --world 3 --quiet >>log 2>&1 && merge tied -o tied.pt &&
    merge tied -o tied-bin --torch --max-shard-size 20K && merge tied-native -o tied-native.bin
ok $? "a tied model"
merge model -o model.pth && merge model -o model-bin --torch && merge model -o model-split --torch --max-shard-size 20K
ok $? "a model of transformers"
python check >checked 2>log || cat log
ok_lines checked
echo "1..$n"
exit $bad
