#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Model folders that leave out keys, or use other names of weights, against transformers.
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, safetensors'
. "$TOP/tests/lib/tap.sh"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
python() { "$TORCH_PYTHON" -W ignore "$TOP/tests/interop/folders.py" "$@"; }

python make >log 2>&1
ok $? "transformers makes the folders"
for folder in */; do
    folder=${folder%/}
    "$BIN/fsdp-generate" --model "$folder" --tokens 0,1,66,17,42,42,9,5,30,3,61,7,8,2 --logits >"$folder.logits" 2>"$folder.err"
done
grep -q "'untied/model.safetensors': tensor 'lm_head.weight' differs from 'model.embed_tokens.weight'" untied.err
ok $? "two values for one weight are refused: $(head -n 1 untied.err)"
python check >checked 2>log || cat log
while IFS= read -r line; do
    case $line in
    'ok - '*) ok 0 "${line#ok - }" ;;
    'not ok - '*) ok 1 "${line#not ok - } $(tail -n 1 "$(cut -d: -f1 <<<"${line#not ok - }").err")" ;;
    *) echo "$line" ;;
    esac
done <checked
[ "$n" = 23 ]
ok $? "all folders are compared"
echo "1..$n"
exit $bad
