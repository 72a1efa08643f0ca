#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# How long a run is, what its loss is made of, and which checkpoint is the best.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
value() { sed -n "$2s/.*\"$3\": \([^,}]*\).*/\1/p" "$1"; } # file, line, key
refused() { # text, arguments...
    local says=$1
    shift
    run -n 1 run.yaml "$@"
    ok "$([ $? = 2 ] && holds err "$says"; echo $?)" "refused: $(tail -n 1 err)"
}

make_input 40
head -c 700 text >held-out
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 8, global_batch_size: 12, seed: 2}
optim: {lr: 3.0e-3, schedule: constant}
fsdp: {timeout: 60}
checkpoint: {fsync: false}
log: {metrics: m.jsonl}
END

# ---- passes over the data ------------------------------------------------------------------------

rows=$((($(wc -c <text) - 1) / 32))
sed 's/steps: 8, //' run.yaml >epochs.yaml
run -n 2 epochs.yaml train.epochs=1.5 optim.schedule=linear
ok $? "1.5 passes over $rows rows"
steps=$(((rows * 3 + 23) / 24))
ok "$([ "$(wc -l <m.jsonl)" = $steps ] && holds log "step $steps/$steps"; echo $?)" "are $steps steps"
cp m.jsonl epochs.jsonl
run -n 2 run.yaml train.steps=$steps optim.schedule=linear
ok "$(cmp -s <(numbers m.jsonl) <(numbers epochs.jsonl); echo $?)" "the same as with train.steps"
refused "train.epochs: is given, and train.steps, too" train.epochs=2 train.steps=3
run -n 2 run.yaml train.epochs=1.5 optim.schedule=linear
ok "$([ $? = 0 ] && cmp -s <(numbers m.jsonl) <(numbers epochs.jsonl); echo $?)" "epochs on the command line win over steps in the file"
sed 's/steps: 8/epochs: 7/' run.yaml >both.yaml
run -n 2 both.yaml train.steps=$steps optim.schedule=linear
ok "$([ $? = 0 ] && cmp -s <(numbers m.jsonl) <(numbers epochs.jsonl); echo $?)" "and steps there over epochs in the file"
sed -i 's/epochs: 7/epochs: 7, steps: 8/' both.yaml
run -n 1 both.yaml
ok "$([ $? = 2 ] && holds err "train.epochs: is given, and train.steps, too"; echo $?)" "a file has one of them"
run -n 1 epochs.yaml
ok "$([ $? = 2 ] && holds err "train.steps: must be given, or train.epochs"; echo $?)" "$(tail -n 1 err)"
run -n 1 epochs.yaml train.epochs=1 optim.schedule=wsd optim.decay_steps=1000
ok "$([ $? = 2 ] && holds err "optim.decay_steps: 1000 steps of decay"; echo $?)" "$(tail -n 1 err)"

# ---- from another folder -------------------------------------------------------------------------

mkdir elsewhere && ln -s "$PWD/model" elsewhere/other && cp run.yaml elsewhere/run.yaml
sed -i 's/path: model/path: other/' elsewhere/run.yaml
run -n 1 elsewhere/run.yaml
ok "$([ $? = 2 ] && holds err "other: No such file or directory; paths are relative to the folder" && holds err "elsewhere/other is there: change to elsewhere first"; echo $?)" \
    "a model next to the configuration is pointed out"

# ---- the loss ------------------------------------------------------------------------------------

run -n 1 run.yaml data.eval_path=held-out && mv m.jsonl plain.jsonl
ok "$(awk -v l="$(value plain.jsonl 8 loss)" -v p="$(value plain.jsonl 8 perplexity)" -v e="$(value plain.jsonl 8 eval_loss)" \
    -v q="$(value plain.jsonl 8 eval_perplexity)" 'BEGIN { exit !((exp(l) / p - 1) ^ 2 < 1e-10 && (exp(e) / q - 1) ^ 2 < 1e-10) }'; echo $?)" \
    "perplexities are the exponentials of losses"
run -n 3 run.yaml data.eval_path=held-out train.steps=1 train.label_smoothing=0.1 train.z_loss=1e-2 && mv m.jsonl more.jsonl
ok "$(awk -v a="$(value plain.jsonl 1 loss)" -v b="$(value more.jsonl 1 loss)" 'BEGIN { exit !(b > a + 0.1) }'; echo $?)" \
    "label smoothing and z-loss add to the loss"
ok "$(! grep -q '"perplexity"' more.jsonl && grep -q eval_perplexity more.jsonl; echo $?)" "which then is no perplexity"

# ---- weights of documents ------------------------------------------------------------------------

for i in 1 2 3 4 5 6; do
    echo "{\"text\": \"document $i of those that count\", \"w\": 2}"
    echo "{\"text\": \"another one\", \"w\": 0}"
done >weighted.jsonl
lines=(data.path=weighted.jsonl data.format=jsonl data.layout=rows data.pack=none train.global_batch_size=12 train.steps=2)
run -n 2 run.yaml "${lines[@]}" data.weight_key=w && mv m.jsonl weighted.jsonl.m
ok $? "documents with weights"
grep -v '"w": 0' weighted.jsonl | sed 's/, "w": 2//' >counted.jsonl
run -n 1 run.yaml "${lines[@]}" data.path=counted.jsonl train.global_batch_size=6
ok "$(awk -v a="$(value weighted.jsonl.m 2 loss)" -v b="$(value m.jsonl 2 loss)" 'BEGIN { d = a / b - 1; exit !(a > 0 && d * d < 1e-10) }'; echo $?)" \
    "a weight of 0 leaves a document out"
ok "$([ "$(value weighted.jsonl.m 1 counted_tokens)" -gt "$(value m.jsonl 1 counted_tokens)" ] && ! grep -q '"perplexity"' weighted.jsonl.m; echo $?)" \
    "whose tokens are counted all the same"
for w in -1 1e300 '"2"' NaN; do
    { echo '{"text": "good"}'; echo "{\"text\": \"bad\", \"w\": $w}"; } >bad.jsonl
    run -n 1 run.yaml "${lines[@]}" data.path=bad.jsonl data.weight_key=w
    ok "$([ $? != 0 ] && { holds err "bad.jsonl:2:22: a weight is a number of at least 0, up to 1e30" ||
        { [ $w = NaN ] && holds err "bad.jsonl:2:24: not JSON"; }; }; echo $?)" "refused: $(head -n 1 err)"
done

# ---- pairs ---------------------------------------------------------------------------------------

run -n 1 run.yaml train.steps=2 checkpoint.path=ck && "$BIN/ckpt-merge" -q ck -o begun >log 2>err
ok $? "a model to begin with"
for i in $(seq 9); do
    echo "{\"prompt\": \"$i and $i is \", \"chosen\": \"$((2 * i))\", \"rejected\": \"$((i * i + 1)), I think\"}"
done >pairs.jsonl
pairs=(model.path=begun model.init=pretrained data.path=pairs.jsonl data.format=jsonl train.objective=dpo train.global_batch_size=4
    train.steps=6 optim.lr=1e-3)
run -n 1 run.yaml "${pairs[@]}" && mv m.jsonl one.jsonl
ok $? "DPO on pairs of texts"
ok "$(awk -v a="$(value one.jsonl 1 loss)" -v b="$(value one.jsonl 6 loss)" -v m="$(value one.jsonl 6 reward_margin)" \
    'BEGIN { d = a - log(2); exit !(d * d < 1e-12 && b < a && m > 0) }'; echo $?)" "begins with log 2, and makes the chosen ones likelier"
run -n 3 run.yaml "${pairs[@]}"
close=$(paste <(grep -o '"loss": [^,]*' one.jsonl) <(grep -o '"loss": [^,]*' m.jsonl) | awk '{ d = $2 - $4; if (d * d > 1e-10) bad = 1 } END { print NR bad }')
ok "$([ "$close" = 6 ]; echo $?)" "3 ranks, with padding, have the same losses"
run -n 2 run.yaml "${pairs[@]}" train.epochs=2 train.steps=auto
ok "$([ "$(wc -l <m.jsonl)" = 5 ] && [ "$(value m.jsonl 5 examples)" = 20 ]; echo $?)" "epochs and examples count pairs"
adapters=("${pairs[@]}" lora.r=4 optim.lr=1e-2)
run -n 1 run.yaml "${adapters[@]}" && mv m.jsonl whole.jsonl && run -n 2 run.yaml "${adapters[@]}" checkpoint.path=dpo train.steps=3 &&
    run -n 3 run.yaml "${adapters[@]}" checkpoint.path=dpo
close=$(paste <(grep -o '"reward_margin": [^,]*' whole.jsonl) <(grep -o '"reward_margin": [^,]*' m.jsonl) |
    awk '{ d = $2 - $4; if (d * d > 1e-8) bad = 1; last = $2 } END { print NR bad (last > 0.01) }')
ok "$([ "$close" = 61 ]; echo $?)" "adapters are trained on pairs, and resume on other ranks with the same reference"
fresh=("${pairs[@]}" checkpoint.path=dpo3 optim.lr=1e-9)
run -n 1 run.yaml "${fresh[@]}" train.global_batch_size=6 train.steps=1 && run -n 2 run.yaml "${fresh[@]}" train.global_batch_size=2 train.steps=2
ok "$(awk -v a="$(value m.jsonl 2 loss)" 'BEGIN { d = a - log(2); exit !(a && d * d < 1e-10) }'; echo $?)" \
    "a short run continues with a smaller batch, whose pairs have the reference, too: a loss of $(value m.jsonl 2 loss)"
run -n 1 run.yaml "${pairs[@]}" checkpoint.path=dpo2 train.steps=3
"$BIN/ckpt-merge" -q dpo2 -o other >log 2>err
run -n 2 run.yaml "${pairs[@]}" checkpoint.path=dpo2 model.path=other
ok "$([ $? != 0 ] && holds err "was made with another reference"; echo $?)" "refused: $(head -n 1 err | cut -c1-160)"
refused "lora.dropout: does not fit train.objective dpo" "${adapters[@]}" lora.dropout=0.1
refused "model.init: does not fit train.objective dpo" "${pairs[@]}" model.init=random
refused "data.format: does not fit train.objective dpo" "${pairs[@]}" data.format=text
sed '2s/rejected/declined/' pairs.jsonl >bad.jsonl
run -n 1 run.yaml "${pairs[@]}" data.path=bad.jsonl
ok "$([ $? != 0 ] && holds err "bad.jsonl:2:1: a pair has prompt, chosen and rejected"; echo $?)" "refused: $(head -n 1 err)"
run -n 1 run.yaml "${pairs[@]}" data.path=bad.jsonl data.on_bad_line=skip
ok $? "or left out, both answers of it"
run -n 1 run.yaml "${pairs[@]}" data.seq_len=16
ok "$([ $? != 0 ] && holds err "data.too_long can truncate it; pairs are neither split nor dropped"; echo $?)" "refused: $(head -n 1 err)"
run -n 1 run.yaml "${pairs[@]}" data.seq_len=16 data.too_long=truncate
ok $? "truncated"
sed '3s/3 and 3/A long prompt that leaves no room: 3/' pairs.jsonl >long.jsonl
run -n 1 run.yaml "${pairs[@]}" data.path=long.jsonl data.seq_len=28 data.too_long=truncate
ok "$([ $? != 0 ] && holds err "long.jsonl:3:1: truncated to a row of 29 tokens (data.seq_len + 1), chosen has no token left"; echo $?)" \
    "an answer of which nothing is left is refused: $(head -n 1 err)"
run -n 1 run.yaml "${pairs[@]}" data.path=long.jsonl data.seq_len=28 data.too_long=truncate data.on_bad_line=skip
ok "$([ $? = 0 ] && holds err "long.jsonl: 1 of 9 lines are left out (data.on_bad_line); the first:"; echo $?)" "or counted: $(head -n 1 err)"
echo '{"prompt_ids": [1, 2], "chosen_ids": [3], "rejected_ids": []}' >empty.jsonl
run -n 1 run.yaml "${pairs[@]}" data.path=empty.jsonl
ok "$([ $? != 0 ] && holds err "empty.jsonl:1:1: rejected has no token to learn"; echo $?)" "an empty answer is refused: $(head -n 1 err)"

# ---- the best checkpoint -------------------------------------------------------------------------

# A rate that grows until the model diverges: the held-out loss has a lowest point.
grows=(data.eval_path=held-out train.eval_interval=2 train.steps=40 optim.lr=1.5 optim.warmup_steps=40 optim.clip_grad_norm=0
    checkpoint.keep_best=true checkpoint.keep=1 checkpoint.interval=5)
run -n 2 run.yaml "${grows[@]}" checkpoint.path=whole
ok $? "a run that diverges"
best=$(sed -n 's/.*"step": \([0-9]*\),.*"eval_loss": \([^,]*\),.*/\2 \1/p' m.jsonl | sort -g | head -n 1 | cut -d' ' -f2)
ok "$([ "$(ls -d whole/step-*)" = "$(printf 'whole/step-%08d\n' "$best" 40)" ] && [ "$best" -lt 40 ]; echo $?)" \
    "keeps the best checkpoint, of step $best, besides the newest"
ok "$([ "$(readlink whole/best)" = "$(printf step-%08d "$best")" ] && "$BIN/ckpt-merge" -q whole/best -o merged; echo $?)" "best is a link to it"
ln -sfn step-00000001 whole/best
run -n 1 run.yaml "${grows[@]}" checkpoint.path=whole
ok "$([ "$(readlink whole/best)" = "$(printf step-%08d "$best")" ]; echo $?)" "also after a run that ended before it made the link"
rm whole/best && echo mine >whole/best
run -n 1 run.yaml "${grows[@]}" checkpoint.path=whole
ok "$([ "$(cat whole/best)" = mine ] && holds err 'whole/best: is not a link to a checkpoint, and stays as it is'; echo $?)" "a file of the user's stays"
run -n 3 run.yaml "${grows[@]}" checkpoint.path=parts train.steps=$((best + 1)) &&
    run -n 3 run.yaml "${grows[@]}" checkpoint.path=parts checkpoint.async=true checkpoint.async_busy=skip
ok "$([ "$(ls -d parts/step-*)" = "$(printf 'parts/step-%08d\n' "$best" 40)" ]; echo $?)" "so does a run that resumes, in the background"

run -n 2 run.yaml "${grows[@]}" checkpoint.path=early train.early_stop=3
ok $? "a run with train.early_stop"
ok "$([ "$(tail -n 1 m.jsonl | sed 's/.*"step": \([0-9]*\),.*/\1/')" = $((best + 6)) ] &&
    [ "$(ls -d early/step-*)" = "$(printf 'early/step-%08d\n' "$best" $((best + 6)))" ] && holds log "ended early: no better held-out loss in 3 evaluations"; echo $?)" \
    "ends after 3 evaluations that are no better, and is saved"
run -n 1 run.yaml "${grows[@]}" checkpoint.path=early train.early_stop=3
ok "$([ $? = 0 ] && holds log "nothing to do: no better held-out loss"; echo $?)" "it has ended for good"
run -n 2 run.yaml "${grows[@]}" train.early_stop=2 train.early_stop_delta=100
ok "$([ "$(wc -l <m.jsonl)" = 6 ]; echo $?)" "train.early_stop_delta says what is better"
run -n 1 run.yaml "${grows[@]}" checkpoint.path=early train.steps=44 checkpoint.keep_best=false
ok "$([ $? = 0 ] && [ "$(ls early/)" = "$(ls early/ | grep -v best)" ] && [ -d early/step-00000044 ]; echo $?)" \
    "where keep_best is switched off, the link goes with its checkpoint"
run -n 2 run.yaml "${grows[@]}" checkpoint.path=lost optim.lr=1e30 optim.warmup_steps=0 train.early_stop=3
ok "$([ $? = 0 ] && [ "$(wc -l <m.jsonl)" = 6 ] && holds log "no better held-out loss in 3 evaluations; none was a finite number" &&
    holds err "the held-out loss is nan: it is not the best one" && [ ! -e lost/best ] && [ -d lost/step-00000006 ]; echo $?)" \
    "evaluations that are all NaN end a run, which has no best checkpoint"
for key in checkpoint.path log.metrics log.html data.cache; do
    refused "$key: '~/here' begins with ~" "$key=~/here"
done
ok "$([ ! -e '~' ]; echo $?)" "no folder is called ~"
refused "train.early_stop: needs evaluations" train.early_stop=1
refused "checkpoint.keep_best: needs data.eval_path" checkpoint.keep_best=true

echo "1..$n"
exit $bad
