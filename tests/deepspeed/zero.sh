#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# DeepSpeed trains on 2 and 3 CPU ranks under ZeRO 1 to 3 and saves. ckpt-merge makes the weights that zero_to_fp32.py
# makes, and the moments that ds_to_universal.py makes, to the bit; the universal checkpoints are read, too, and are the
# same. In fp16 DeepSpeed's check of the device is overridden.
# run: timeout=1500
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, safetensors'
. "$TOP/tests/lib/tap.sh"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PYTHONWARNINGS=ignore DS_ACCELERATOR=cpu

if [ -z "${DEEPSPEED_PYTHON:-}" ]; then
    echo "1..0 # SKIP no DeepSpeed (make check-deepspeed fetches it)"
    exit 0
fi
"$DEEPSPEED_PYTHON" -c 'import deepspeed; print(deepspeed.__version__)' >log 2>err
ok $? "DeepSpeed $(grep -a '^[0-9]' log | tail -n 1)"

two=(1-bf16-tied 1-fp32-frozen 2-bf16-frozen 2-fp16 3-bf16-small 3-fp32-tied 2-bf16-offload 3-bf16-offload)
three=(1-bf16 2-fp32-tied 3-bf16-frozen 3-bf16-tied)
"$DEEPSPEED_PYTHON" "$TOP/tests/deepspeed/make.py" made 2 "${two[@]}" >log 2>&1 &&
    "$DEEPSPEED_PYTHON" "$TOP/tests/deepspeed/make.py" made 3 "${three[@]}" >>log 2>&1
ok $? "it trains and saves"
cases=("${two[@]/%/-2r}" "${three[@]/%/-3r}")
cases=("${cases[@]/#/made/}")
"$DEEPSPEED_PYTHON" "$TOP/tests/deepspeed/compare.py" convert "${cases[@]}" >log 2>&1
ok $? "its tools convert"
for case in "${cases[@]}"; do
    "$BIN/ckpt-merge" "$case" -o "$case-merged" --quiet >log 2>&1 && "$BIN/ckpt-merge" "$case" -o "$case-all" --all --quiet >>log 2>&1
    ok $? "$case is merged"
    "$BIN/ckpt-diff" --exclude '*.step' --any-dtype "$case" "$case-universal" >log 2>&1
    ok $? "its universal checkpoint is the same: $(tail -n 1 log)"
done
"$DEEPSPEED_PYTHON" "$TOP/tests/deepspeed/compare.py" check "${cases[@]}" >log 2>err
ok $? "to the bit as its own conversions"
sed 's/^/# /' log

echo "1..$n"
exit $bad
