#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Packed documents, prompts that do not count: losses and gradient norms of a few steps on two ranks are
# those of transformers and torch, with a mask between documents and with each document alone.
# run: timeout=300
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, safetensors'
. "$TOP/tests/lib/tap.sh"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
python() {
    "$TORCH_PYTHON" -W ignore "$TOP/tests/interop/transformers_train.py" "$@"
}

python make gpt2 llama >log 2>&1
ok $? "transformers saves models and documents"
for model in gpt2 llama; do
    cat >run.yaml <<END
model: {path: $model}
data: {path: $model/documents.jsonl, format: jsonl, layout: rows, seq_len: 24}
train: {steps: 3, global_batch_size: 4, micro_batch_size: 1}
optim: {lr: 1.0e-3, schedule: constant, weight_decay: 0}
log: {metrics: $model/metrics.jsonl}
END
    "$BIN/fsdp-launch" -n 2 run.yaml >log 2>&1
    ok $? "two ranks train $model"
done
python check gpt2 llama >log 2>&1
ok $? "as torch does, to 1e-5"
sed 's/^/# /' log
echo "1..$n"
exit $bad
