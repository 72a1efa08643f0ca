#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs whose rows do not divide among the ranks: the losses are those of one rank, also where the
# number of ranks changes on the way, and the waste is logged.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"

make_input
cat >run.yaml <<END
model: {path: model, init: random, seed: 1, dropout: 0.1}
data: {path: text, eval_path: text, eval_rows: 7, seq_len: 32}
train: {steps: 6, global_batch_size: 12, seed: 2, eval_interval: 3}
optim: {lr: 3.0e-3, schedule: constant, warmup_steps: 2}
fsdp: {timeout: 60}
checkpoint: {interval: 2, fsync: false}
END

# Step, loss and held-out loss of two files of metrics: as many lines, and the same but for the order
# of sums.
alike() {
    losses() { sed -E 's/.*"step": ([0-9]+), "loss": ([^,]*),.*/\1 \2/' "$1"; sed -nE 's/.*"eval_loss": ([^,}]*).*/0 \1/p' "$1"; }
    paste <(losses "$1") <(losses "$2") | awk '
        { d = $2 - $4; if (d < 0) d = -d; if (NF != 4 || $1 != $3 || !(d < 1e-5)) bad = 1 }
        END { exit bad || NR != 8 }'
}

run -v -n 1 run.yaml checkpoint.path=one log.metrics=one.jsonl
ok "$([ $? = 0 ] && ! holds err waste && holds log '12 rows = 1 rank x'; echo $?)" "one rank"
for ranks in 5 7; do
    run -v -n $ranks run.yaml checkpoint.path=all$ranks log.metrics=all$ranks.jsonl
    ok $? "12 rows on $ranks ranks"
    ok "$(alike one.jsonl all$ranks.jsonl; echo $?)" "have the losses of one rank"
    [ $ranks = 5 ] && share="12 rows in 5 ranks x 1 micro-step x 3 rows, 20.0 % padding" better="12 rows on 5 ranks waste 20.0 % of the computation on padding; train.global_batch_size=10 wastes nothing" ||
        share="12 rows in 7 ranks x 1 micro-step x 2 rows, 14.3 % padding" better="train.global_batch_size=14 wastes nothing"
    ok "$(holds log "$share" && holds err "$better"; echo $?)" "the waste is logged, and a better batch"
    ok "$(grep -q '"tokens": 2304,' all$ranks.jsonl; echo $?)" "and is no token of the run"
done
run -v -n 4 run.yaml train.micro_batch_size=2 train.global_batch_size=15 checkpoint.path=some
ok "$([ $? = 0 ] && holds log '15 rows in 4 ranks x 2 micro-steps x 2 rows, 6.2 % padding' && ! holds err waste; echo $?)" \
    "a small waste is no warning"

# ---- another number of ranks, twice -------------------------------------------------------------------

for part in "4 2 0" "5 4 2" "4 6 4"; do
    read -r ranks steps from <<<"$part"
    run -n "$ranks" run.yaml train.steps="$steps" checkpoint.path=parts log.metrics=parts.jsonl
    ok "$([ $? = 0 ] && { [ "$from" = 0 ] || holds log "resumes from parts/step-0000000$from"; }; echo $?)" \
        "$ranks ranks to step $steps"
done
sed -i -E '/"step": [24],/s/, "eval_loss": [^,}]*//' parts.jsonl # the parts ended there
ok "$(alike one.jsonl parts.jsonl; echo $?)" "have the losses of one rank"

# ---- fp8 ----------------------------------------------------------------------------------------------

fp8="fsdp.gather_dtype=float8_e4m3 model.dropout=0 train.steps=1"
run -n 1 run.yaml $fp8 log.metrics=fp8-1.jsonl && run -n 5 run.yaml $fp8 log.metrics=fp8-5.jsonl
ok $? "matrices gathered in fp8 on 1 and 5 ranks"
far=$(sed 's/.*"loss": \([^,]*\),.*/\1/' fp8-1.jsonl fp8-5.jsonl | paste -sd ' ' | awk '{d = $1 - $2; print (d < 0 ? -d : d)}')
ok "$(awk -v d="$far" 'BEGIN {exit !(d < 2e-6)}'; echo $?)" "give the same first loss: off by $far"

echo "1..$n"
exit $bad
