#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every family that ckpt-merge writes as GGUF, loaded by llama.cpp: its logits and best tokens against transformers in
# double precision, and its tokens of texts against the tokenizer. FAMILIES="llama gemma2" chooses some.
# run: timeout=1800
if [ -z "${LLAMA_CPP_LIB_PATH:-}" ]; then
    echo "1..0 # SKIP no llama.cpp (make check-gguf builds it)"
    exit 0
fi
. "$TOP/tests/lib/tap.sh"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 PATH=$BIN:$PATH
python() {
    "$TORCH_PYTHON" -W ignore "$TOP/tests/gguf/models.py" "$@"
}
families=${FAMILIES:-$(python list)}
python make $families >log 2>&1
ok $? "transformers saves a tiny model of each family"
for family in $families; do
    ckpt-merge $family -o $family.f32.gguf --type f32 >log 2>&1
    ok $? "$family: ckpt-merge writes it"
done
python check $families >checked 2>log || cat log
ok_lines checked
echo "1..$n"
exit $bad
