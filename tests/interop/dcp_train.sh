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
ok $? "torch trains four steps on 2 ranks, saves, and continues"

launch -n 4 checkpoint.resume=torch-ck checkpoint.path=a log.metrics=a.jsonl
ok $? "fsdp-launch resumes from there on 4 ranks"
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
ok $? "torch loads its fourth step, resharded to DCP, and continues"
close c.jsonl 5 back.json 0
ok $? "with the same losses"

launch -n 4 optim.moment_dtype=bfloat16 checkpoint.path=d log.metrics=d.jsonl &&
    "$BIN/ckpt-reshard" d/step-00000004 -o narrow --format dcp --world 2 >log 2>err &&
    torch model tokens 2 4 8 narrow.json --load narrow
ok $? "torch loads moments that were kept in bfloat16, and continues"
close d.jsonl 5 narrow.json 0 0.01
ok $? "with losses within 0.01"

# SGD, which has no counters, and without momentum no state at all.
names() { # of the optimizer's entries
    "$TORCH_PYTHON" -W ignore - "$1" <<'END'
import sys
from torch.distributed.checkpoint import FileSystemReader
paths = FileSystemReader(sys.argv[1]).read_metadata().planner_data
print("\n".join(sorted(str(p) for p in paths.values() if p[0] == "optim")))
END
}
for momentum in 0.9 0.0; do
    sgd="optim.name=sgd optim.momentum=$momentum optim.lr=0.05 optim.weight_decay=0.01"
    torch model tokens 2 0 4 sgd.json --sgd $momentum --save torch-$momentum --count &&
        torch model tokens 2 4 8 want.json --sgd $momentum --load torch-$momentum
    ok $? "SGD, momentum $momentum: torch saves and continues"
    rm -f e.jsonl
    launch -n 4 $sgd checkpoint.path=e-$momentum log.metrics=e.jsonl
    ok $? "fsdp-launch trains"
    close e.jsonl 5 want.json 0
    ok $? "with torch's losses"
    "$BIN/ckpt-reshard" e-$momentum/step-00000004 -o sgd-$momentum --format dcp --world 3 >log 2>err &&
        names torch-$momentum >want && names sgd-$momentum >got && diff want got >err
    ok $? "its checkpoint as DCP has the optimizer's names that torch's has, and no others"
    torch model tokens 2 4 8 back.json --sgd $momentum --load sgd-$momentum
    ok $? "torch loads it and continues"
    close e.jsonl 5 back.json 0
    ok $? "with the same losses"
    "$BIN/ckpt-reshard" sgd-$momentum -o again-$momentum --world 2 >log 2>err &&
        "$BIN/ckpt-info" --json again-$momentum >log && grep -q '^ "step": 4,$' log
    ok $? "and back from there, the step is known"
    rm -f f.jsonl g.jsonl
    launch -n 4 $sgd checkpoint.resume=torch-$momentum checkpoint.path=f-$momentum log.metrics=f.jsonl
    ok $? "fsdp-launch resumes from torch's fourth step, which a value tells"
    close f.jsonl 5 want.json 0
    ok $? "with torch's losses"

    # Without such a value nobody knows the step: the run says so, or counts one.
    torch model tokens 2 0 4 sgd.json --sgd $momentum --save uncounted-$momentum &&
        torch model tokens 2 0 4 anew.json --sgd $momentum --load uncounted-$momentum
    ok $? "torch saves as it does by itself, and continues with the first rows"
    launch -n 4 $sgd checkpoint.resume=uncounted-$momentum checkpoint.path=g-$momentum
    ok "$([ $? != 0 ] && grep -q "torch's SGD does not count: save it as 'step'" err; echo $?)" \
        "fsdp-launch asks for the step: $(tail -n 1 err)"
    launch -n 4 $sgd checkpoint.resume=uncounted-$momentum checkpoint.path=g-$momentum log.metrics=g.jsonl \
        checkpoint.data_position=restart train.steps=5
    ok $? "and continues without it where the data starts anew"
    close g.jsonl 2 anew.json 0
    ok $? "with torch's losses"
done
for from in torch-0.9 e-0.9/step-00000004; do
    "$BIN/ckpt-info" --json $from >log 2>err && grep -q 'lr":0.05,' log && grep -q 'weight_decay":0.01,' log
    ok $? "ckpt-info --json of $from: floats as short as they read back equal"
done
echo "1..$n"
exit $bad
