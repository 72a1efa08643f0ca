#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# log.tensorboard, read by TensorBoard: a run that is killed and resumed, whose steps each come once. Needs a Python
# with tensorboard (WATCH_PYTHON, scripts/with_python.sh watch). Prints TAP.
# run: timeout=600
set -u
if ! "${WATCH_PYTHON:-python3}" -c 'import tensorboard' 2>/dev/null; then
    echo "1..0 # SKIP no Python with tensorboard: make check-watch fetches one"
    exit 0
fi
. "$TOP/tests/lib/train.sh"
make_input
cat >run.yaml <<END
model: {path: model, init: random}
data: {sources: [{path: text, weight: 3}, {path: text, weight: 1}], eval_path: text, seq_len: 32}
train: {steps: 23, global_batch_size: 8, eval_interval: 4}
checkpoint: {path: ck, interval: 10}
fsdp: {sharding_strategy: HYBRID_SHARD}
log: {metrics: m.jsonl, tensorboard: events/run, tensorboard_histograms: 5}
END
fail() {
    echo "not ok 1 - $1"
    sed 's/^/# /' err log
    echo "1..1"
    exit 1
}
# It is killed after step 13, of which there is no checkpoint: steps 11 to 13 are done again.
"$launch" -n 2 run.yaml train.steps=100000 >log 2>err &
job=$!
for _ in $(seq 600); do
    [ "$(cat m.jsonl 2>/dev/null | wc -l)" -ge 13 ] && break
    sleep 0.05
done
kill -9 "$(rank_pid 1)" $job
wait $job 2>/dev/null
last=$(tail -n 1 m.jsonl | sed -E 's/.*"step": ([0-9]+).*/\1/')
run -n 4 --nodes 2 run.yaml train.steps=$((last / 10 * 10 + 23)) || fail "the run resumes"
"${WATCH_PYTHON:-python3}" -W ignore "$TOP/tests/watch/read_tensorboard.py" events/run m.jsonl \
    "$("$launch" --print-metrics)"
