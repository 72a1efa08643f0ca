#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# f16 files against those of llama.cpp's own converter: tensors to the bit, so that ours are off by no more than its.
# Of the families that it writes, too (models.py names the others). FAMILIES="llama gemma2" chooses some.
# run: timeout=1800
if [ -z "${LLAMA_CPP_LIB_PATH:-}" ]; then
    echo "1..0 # SKIP no llama.cpp (make check-gguf builds it)"
    exit 0
fi
. "$TOP/tests/lib/tap.sh"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 PATH=$BIN:$PATH
python() {
    "$TORCH_PYTHON" -W ignore "$TOP/tests/gguf/$@"
}
families=${FAMILIES:-$(python models.py peers)}
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
