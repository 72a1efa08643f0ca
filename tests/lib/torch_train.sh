# SPDX-License-Identifier: Apache-2.0
# torch_train.sh: a model, data and run.yaml that PyTorch (tests/interop/dcp_train.py) and fsdp-launch train alike; `.` it
# first.
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, numpy'
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
