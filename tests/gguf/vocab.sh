#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Real vocabularies, which llama.cpp publishes for its own tests: tokenizer.json of them becomes the same tokens, merges
# and pre-tokenizer in GGUF, and llama.cpp gives the ids that it publishes.
# run: timeout=900
if [ -z "${LLAMA_CPP_LIB_PATH:-}" ]; then
    echo "1..0 # SKIP no llama.cpp (make check-gguf builds it)"
    exit 0
fi
. "$TOP/tests/lib/tap.sh"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 PATH=$BIN:$PATH
python() {
    "$TORCH_PYTHON" -W ignore "$TOP/tests/gguf/vocab.py" "$@"
}
names='gpt-2 llama-bpe qwen2 refact starcoder'
python make $names >log 2>&1
ok $? "models with these vocabularies: $names"
for name in $names; do
    ckpt-merge $name -o $name.gguf --type f32 >log 2>&1
    ok $? "$name: ckpt-merge writes it"
done
python check $names >checked 2>log || cat log
ok_lines checked
echo "1..$n"
exit $bad
