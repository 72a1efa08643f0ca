#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A mixture of sources of several formats: the same rows at every world size, resumed at the right row with more ranks
# and with fewer, and refused with other weights.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"

make_input
for i in $(seq 40); do
    echo "{\"body\": \"document $i says $((i * 37 % 101)) and no more\"}"
done >a.jsonl
seq 300 | tr -d '\n' >b.txt
perl -e 'print pack("v*", map { $_ * 7 % 250 } 1 .. 2000)' >c.u16
cat >run.yaml <<'END'
model: {path: model, init: random, seed: 1}
data:
  seq_len: 32
  text_key: body
  sources:
    - {path: 'a*.jsonl', weight: 0.5, format: jsonl}
    - path: [text, b.txt]
      weight: 0.3
    - {path: c.u16, weight: 0.2, format: u16}
train: {steps: 9, global_batch_size: 10, seed: 3}
optim: {lr: 3.0e-3, schedule: constant}
fsdp: {timeout: 60}
checkpoint: {interval: 3, fsync: false}
END

alike() { # step and loss of two files: nine lines, and the same but for the order of sums
    losses() { sed -E 's/.*"step": ([0-9]+), "loss": ([^,]*),.*/\1 \2/' "$1"; }
    paste <(losses "$1") <(losses "$2") | awk '
        { d = $2 - $4; if (d < 0) d = -d; if (NF != 4 || $1 != $3 || !(d < 1e-5)) bad = 1 }
        END { exit bad || NR != 9 }'
}

run -v run.yaml checkpoint.path=one log.metrics=one.jsonl
ok $? "a mixture of JSON Lines, text and tokens"
ok "$(holds log 'data.sources[0]' && holds log '50 %, ' && holds log 'passes over a*.jsonl' && holds log 'passes over text, ...'; echo $?)" \
    "shares and passes are shown"
ok "$(tail -n 1 one.jsonl | grep -q '"rows_by_source": \[45, 27, 18\]' && tail -n 2 one.jsonl | head -n 1 | grep -q '"rows_by_source": \[40, 24, 16\]'; echo $?)" \
    "the metrics have the rows of each source"
run -n 3 run.yaml log.metrics=three.jsonl && alike one.jsonl three.jsonl
ok $? "three ranks have the losses of one"
for part in "2 3 0" "5 6 3" "1 9 6"; do
    read -r ranks steps from <<<"$part"
    run -n "$ranks" run.yaml train.steps="$steps" checkpoint.path=parts log.metrics=parts.jsonl
    ok "$([ $? = 0 ] && { [ "$from" = 0 ] || holds log "resumes from parts/step-0000000$from"; }; echo $?)" \
        "$ranks ranks to step $steps"
done
alike one.jsonl parts.jsonl
ok $? "which are the losses of one run"
run -v run.yaml checkpoint.path=one train.steps=10 'data.sources[2].weight=0.4'
ok "$([ $? != 0 ] && holds err 'made with other data'; echo $?)" "other weights are refused on resume"
run run.yaml 'data.sources[0].path=nothere'
ok "$([ $? = 2 ] && holds err 'data.sources[0]: nothere: No such file'; echo $?)" "a source that is not there is named"
run run.yaml 'data.sources[2].path=text.u16' 'data.sources[0].path=[*.nothing]'
ok "$([ $? = 2 ] && holds err 'data.sources[0]: *.nothing: no file matches'; echo $?)" "and a pattern without a match"
echo 'no line' >>a.jsonl
run run.yaml
ok "$([ $? = 1 ] && holds err 'data.sources[0]: a.jsonl:41:2: not JSON'; echo $?)" "a bad line of a source stops"
run run.yaml 'data.sources[0].on_bad_line=skip' 'data.sources[0].too_long=truncate' data.seq_len=20
ok "$([ $? = 0 ] && holds err 'a.jsonl: 1 of 41 lines are left out' && holds err 'are truncated to it'; echo $?)" \
    "unless it may be left out"
sed -i '$d' a.jsonl
sed -e 's/weight: 0.5/passes: 2/; s/weight: 0.3/passes: 0.5/; s/, weight: 0.2//' run.yaml >passes.yaml
run passes.yaml data.eval_path=a.jsonl data.format=jsonl 'data.sources[1].format=text' log.metrics=p.jsonl
ok "$([ $? = 0 ] && holds p.jsonl eval_loss; echo $?)" "passes, and held-out data in another format"

echo "1..$n"
exit $bad
