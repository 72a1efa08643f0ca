#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ckpt-merge --check against transformers: a model of every family that it writes is right, tied and untied, and with one
# tensor less, one more or one of another shape it is not; also where config.json lacks keys for which transformers has
# values. The Hub's library reads the card of a merge.
# run: timeout=600
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, safetensors'
. "$TOP/tests/lib/tap.sh"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
python() { "$TORCH_PYTHON" -W ignore "$TOP/tests/interop/check.py" "$@"; }

python make >log 2>&1
ok $? "transformers writes the models"
while read -r model; do
    "$BIN/ckpt-merge" --check "right/$model" >log 2>err && grep -q "OK: .* of a model of type" log
    ok $? "$model: $(tail -n 1 log)"
done <models
# The keys that the second folder lacks give the same GGUF file, whose name is in it.
for family in right/*-absent; do
    family=${family#right/} family=${family%-absent}
    for folder in full absent; do
        mkdir -p "gguf/$folder" && mv "right/$family-$folder" "gguf/$folder/$family" &&
            cp "$TOP/examples/llama-tiny/tokenizer.json" "gguf/$folder/$family" &&
            "$BIN/ckpt-merge" "gguf/$folder/$family" -o "gguf/$family-$folder.gguf" --quiet >log 2>err || break
    done
    cmp "gguf/$family-full.gguf" "gguf/$family-absent.gguf" >>err 2>&1
    ok $? "$family: GGUF without keys that have values by themselves: $(tail -n 1 err)"
    rm -f "gguf/$family"-*.gguf
done
while read -r model kind tensor; do
    "$BIN/ckpt-merge" --check "wrong/$model-$kind" >log 2>err
    [ $? = 1 ] && [ "$(wc -l <err)" = 1 ] && grep -q -F "tensor '$tensor'" err
    ok $? "$model, $kind: $(tail -n 1 err)"
done <mistakes
"$BIN/ckpt-merge" right/llama -o card --dtype bfloat16 --quiet >log 2>&1 && python card card >>log 2>&1
ok $? "huggingface_hub reads the card, and transformers the dtype"
echo "1..$n"
exit $bad
