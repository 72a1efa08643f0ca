#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A run goes from PyTorch's FSDP2 to fsdp-launch and back in the middle, weights and AdamW's moments
# and step: the next losses are those of the run that was not moved.
# run: timeout=1200
if ! "${TORCH_PYTHON:-python3}" -c 'import torch, transformers, numpy' 2>/dev/null; then
    echo "1..0 # SKIP no Python with torch, transformers and numpy (set TORCH_PYTHON)"
    exit 0
fi
cd "$TEST_TMP" || exit 1
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
. "$TOP/tests/lib/tap.sh"
torch() { "$TORCH_PYTHON" -W ignore "$TOP/tests/interop/dcp_train.py" "$@" >log 2>err; }
launch() { "$BIN/fsdp-launch" "$1" "$2" run.yaml "${@:3}" >log 2>err; }
# Losses of metrics from step $2 on, against those of torch from its step $4 on: within 1e-5, or $5.
close() { # metrics.jsonl, first step, torch's losses, index of the first[, bound]
    "$TORCH_PYTHON" - "$@" >log 2>err <<'END'
import json, sys
ours = [m["loss"] for m in map(json.loads, open(sys.argv[1])) if m["step"] >= int(sys.argv[2])]
want = json.load(open(sys.argv[3]))[int(sys.argv[4]):]
print(ours, want)
assert len(want) == 4 and len(ours) == 4
assert max(abs(a - b) for a, b in zip(ours, want)) <= float((sys.argv + ["1e-5"])[5])
END
}

torch make model tokens || exit 1
cat >run.yaml <<'END'
model: {path: model}
data: {path: tokens, format: u16, layout: rows, seq_len: 32}
train: {steps: 8, global_batch_size: 4}
optim: {lr: 1.0e-3, schedule: constant, decay: all}
fsdp: {timeout: 60}
checkpoint: {path: ck, interval: 4, fsync: false}
log: {metrics: m.jsonl}
END

torch model tokens 2 0 4 first.json --save torch-ck && torch model tokens 2 4 8 want.json --load torch-ck
ok $? "torch trains four steps on 2 ranks, saves, and goes on"

launch -n 4 checkpoint.resume=torch-ck checkpoint.path=a log.metrics=a.jsonl
ok $? "fsdp-launch goes on from there on 4 ranks"
close a.jsonl 5 want.json 0
ok $? "its losses are torch's"

"$BIN/ckpt-reshard" torch-ck -o native --world 2 >log 2>err &&
    launch -n 2 checkpoint.resume=native checkpoint.path=b log.metrics=b.jsonl
ok $? "also through ckpt-reshard"
close b.jsonl 5 want.json 0
ok $? "with the same losses"

launch -n 4 checkpoint.path=c log.metrics=c.jsonl
ok $? "fsdp-launch trains eight steps"
close c.jsonl 5 want.json 0
ok $? "its losses are torch's all along"
"$BIN/ckpt-reshard" c/step-00000004 -o back --format dcp --world 3 >log 2>err &&
    torch model tokens 2 4 8 back.json --load back
ok $? "torch loads its fourth step, resharded to DCP, and goes on"
close c.jsonl 5 back.json 0
ok $? "with the same losses"

launch -n 4 optim.moment_dtype=bfloat16 checkpoint.path=d log.metrics=d.jsonl &&
    "$BIN/ckpt-reshard" d/step-00000004 -o narrow --format dcp --world 2 >log 2>err &&
    torch model tokens 2 4 8 narrow.json --load narrow
ok $? "torch loads moments that were kept in bfloat16, and goes on"
close d.jsonl 5 narrow.json 0 0.01
ok $? "with losses within 0.01"
echo "1..$n"
exit $bad
