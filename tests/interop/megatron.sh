#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Indexed data sets that Megatron-LM's own writer made (megatron-core, fetched from PyPI where the Python has none) train
# as the same tokens do from a file of plain ids, whose documents end with a token.
# run: timeout=300
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
python=${TORCH_PYTHON:-python3}
imports='from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder'
if ! "$python" -W ignore -c "$imports" 2>/dev/null; then
    "$python" -m pip install --quiet --no-input --disable-pip-version-check --no-deps --target site megatron-core >/dev/null 2>&1
    export PYTHONPATH=$PWD/site
fi
if ! "$python" -W ignore -c "$imports" 2>/dev/null; then
    echo "1..0 # SKIP no Python with torch and megatron-core (set TORCH_PYTHON), and PyPI does not give it"
    exit 0
fi

make_input 10
cat >run.yaml <<'END'
model: {path: model, init: random}
data: {path: ids.u16, format: u16, seq_len: 32, document_end: 0, pack: documents}
train: {steps: 6, global_batch_size: 4}
optim: {lr: 1.0e-2}
log: {metrics: m.jsonl}
END
cat >make.py <<'END'
import numpy, random, torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
random.seed(3)
documents = [[random.randrange(1, 256) for _ in range(random.randrange(1, 90))] + [0] for _ in range(60)]
numpy.array(sum(documents, []), dtype="<u2").tofile("ids.u16")
for name, dtype in ("narrow", numpy.uint16), ("wide", numpy.int32):
    builder = IndexedDatasetBuilder(name + ".bin", dtype=dtype)
    for i, document in enumerate(documents):
        if i % 3:
            builder.add_document(torch.tensor(document), [len(document)])
        else: # of two sequences
            builder.add_item(torch.tensor(document[:1]))
            builder.add_item(torch.tensor(document[1:]))
            builder.end_document()
    builder.finalize(name + ".idx")
END
"$python" -W ignore make.py >log 2>&1
ok $? "Megatron-LM writes 16-bit and 32-bit ids"
run run.yaml
ok $? "a run on plain ids"
numbers m.jsonl >want
for name in narrow wide; do
    run run.yaml data.format=megatron data.path=$name data.document_end=none && cmp -s <(numbers m.jsonl) want
    ok $? "$name: the same losses, bit for bit"
done
run run.yaml data.format=megatron data.path=narrow data.pack=none data.document_end=auto && ! cmp -s <(numbers m.jsonl) want
ok $? "with documents that see each other, others"

echo "1..$n"
exit $bad
