#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Folders of ckpt-merge --quantize against those of compressed-tensors' own compressor: scales, codes and config.json to
# the bit, and logits after transformers has loaded them, on the CPU.
# run: long
# run: timeout=900
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, peft, compressed_tensors'
. "$TOP/tests/lib/tap.sh"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
python() {
    "$TORCH_PYTHON" -W ignore "$TOP/tests/interop/ctensors.py" "$@"
}

python make >log 2>&1
ok $? "compressed-tensors quantizes models of transformers"

status=0 npairs=0
while read -r folder scheme; do
    source=("$folder") ignore=()
    case $folder in
    merged) source=(--adapter adapter MODEL.bf16) ;;
    qwen3_moe | gpt_oss) ignore=(--quantize-ignore '*.experts*') ;;
    granitemoe) ignore=(--quantize-ignore '*.block_sparse_moe.*') ;;
    esac
    "$BIN/ckpt-merge" -q "${source[@]}" -o "$folder.$scheme.ours" --quantize "$scheme" "${ignore[@]}" >log 2>&1 ||
        { status=1; break; }
    npairs=$((npairs + 1))
done <pairs
ok "$([ $status = 0 ] && [ $npairs -ge 37 ]; echo $?)" "ckpt-merge quantizes them"

status=0 ncodes=0
while read -r folder scheme; do
    "$BIN/ckpt-merge" -q "$folder.$scheme.own" -o "$folder.$scheme.back" >log 2>&1 || { status=1; break; }
    ncodes=$((ncodes + 1))
done <codes
ok "$([ $status = 0 ] && [ $ncodes -ge 29 ]; echo $?)" "and decodes folders of compressed-tensors"

python check >checked 2>log || cat log
ok_lines checked
ok "$([ "$(grep -c '^ok' checked)" = $((3 * npairs + ncodes)) ]; echo $?)" "all of them were checked"

echo "1..$n"
exit $bad
