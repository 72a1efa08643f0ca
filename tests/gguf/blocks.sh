#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every type of GGUF file: which type each tensor has and how far it is from the weights, against llama_model_quantize
# and gguf-py.
# run: timeout=900
if [ -z "${LLAMA_CPP_LIB_PATH:-}" ]; then
    echo "1..0 # SKIP no llama.cpp (make check-gguf builds it)"
    exit 0
fi
. "$TOP/tests/lib/tap.sh"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 PATH=$BIN:$PATH
python() {
    "$TORCH_PYTHON" -W ignore "$TOP/tests/gguf/blocks.py" "$@"
}
folders=$(python list)
python make $folders >log 2>&1
ok $? "transformers saves models with rows of many lengths"
for folder in $folders; do
    for type in f32 f16 bf16 q8_0 q4_0 q4_k_m q6_k; do
        ckpt-merge $folder -o $folder.$type.gguf --type $type >>log 2>&1 || break
    done
    ok $? "$folder: ckpt-merge writes all types"
done
python check $folders >checked 2>log || cat log
ok_lines checked
echo "1..$n"
exit $bad
