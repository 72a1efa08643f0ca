#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# scripts/metrics_to_wandb.py in W&B's offline mode, on the metrics of a run. Needs a Python with wandb (WATCH_PYTHON,
# scripts/with_python.sh watch). Prints TAP.
# run: timeout=600
set -u
python=${WATCH_PYTHON:-python3}
if ! "$python" -c 'import wandb' 2>/dev/null; then
    echo "1..0 # SKIP no Python with wandb: make check-watch fetches one"
    exit 0
fi
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
export WANDB_MODE=offline WANDB_SILENT=true WANDB_DIR=$PWD WANDB_CACHE_DIR=$PWD/cache WANDB_CONFIG_DIR=$PWD/config
make_input
cat >run.yaml <<END
model: {path: model, init: random}
data: {sources: [{path: text, weight: 3}, {path: text, weight: 1}], eval_path: text, seq_len: 32}
train: {steps: 9, global_batch_size: 8, eval_interval: 3}
log: {metrics: m.jsonl}
END
run -n 2 run.yaml
ok $? "a run writes metrics"
# A value that is no number, a line that is none, and one that is not finished yet.
sed -i -E '4s/"loss": [0-9.]+/"loss": null/' m.jsonl
printf 'rubbish\n{"step": 10, "lo' >>m.jsonl
"$python" -W ignore "$TOP/scripts/metrics_to_wandb.py" m.jsonl --project proj --name 'my run' --config run.yaml >log 2>err
ok $? "it is sent"
ok "$(holds log '9 steps'; echo $?)" "and says how many steps: $(tail -n 1 log)"
"$python" -W ignore "$TOP/tests/watch/read_wandb.py" . m.jsonl >read 2>err
ok $? "the file is read by W&B's own messages"
while read -r verdict _ _ text; do
    ok "$([ "$verdict" = ok ]; echo $?)" "$text"
done < <(grep -E '^(ok|not ok)' read | sed 's/^not ok/not_ok/')
grep '^#' read
ok "$([ "$(grep -c -E '^(ok|not ok)' read)" = 4 ]; echo $?)" "all was compared"
"$python" "$TOP/scripts/metrics_to_wandb.py" nothing.jsonl >log 2>err
ok "$([ $? = 1 ] && holds err 'nothing.jsonl: no such file (set log.metrics=nothing.jsonl'; echo $?)" "no file: $(cat err)"
"$python" "$TOP/scripts/metrics_to_wandb.py" text >log 2>err
ok "$([ $? = 1 ] && holds err 'text has no line of a step'; echo $?)" "another file: $(tail -n 1 err)"
echo "1..$n"
exit $bad
