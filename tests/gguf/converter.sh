#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# f16 files against those of llama.cpp's own converter: tensors to the bit, so that ours are off by no more than its.
# Not GPT-2 and GPT-NeoX, whose folders of transformers 5 the converter does not read, nor Qwen2, to whose tokenizer
# transformers adds a token.
# run: timeout=900
if [ -z "${LLAMA_CPP_LIB_PATH:-}" ]; then
    echo "1..0 # SKIP no llama.cpp (make check-gguf builds it)"
    exit 0
fi
. "$TOP/tests/lib/tap.sh"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 PATH=$BIN:$PATH
python() {
    "$TORCH_PYTHON" -W ignore "$TOP/tests/gguf/$@"
}
families=$(python models.py list | tr ' ' '\n' | grep -v -x -e gpt2 -e gpt_neox -e qwen2 -e qwen2-35)
python models.py make $families >log 2>&1
ok $? "transformers saves a tiny model of each family"
python converter.py convert $families >log 2>&1
ok $? "llama.cpp's converter runs"
for family in $families; do
    ckpt-merge $family -o $family.f16.gguf --type f16 >log 2>&1
    ok $? "$family: ckpt-merge writes it"
done
python converter.py check $families >checked 2>log || cat log
ok_lines checked
echo "1..$n"
exit $bad
