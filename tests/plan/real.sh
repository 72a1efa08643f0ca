#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A plan next to a real run of two ranks: lined up, put into one trace, calibrated. How fast the
# machine is plays no part; make bench-plan judges times.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
real=$BIN/tests/plan/bench_real
refused() { # text that the error must hold, then arguments of bench_real
    local want=$1
    shift
    "$real" "$@" >log 2>err
    ok "$([ $? = 1 ] && grep -q -F -- "$want" err; echo $?)" "refused: $want"
}

make_input 400
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 64}
train: {steps: 8, global_batch_size: 8, micro_batch_size: 2, seed: 2}
fsdp: {timeout: 60}
log: {trace_steps: 5}
END
run -n 2 --trace=run.json run.yaml
ok $? "a run is traced"
run -n 2 --dump-schedule=plan.json run.yaml
ok $? "and planned"

# ---- against -------------------------------------------------------------------------------------
"$real" against plan.json run.json 0 both.json >table 2>err
ok $? "they line up: $(cat err)"
ok "$(grep -q -E '^forward model\.layers\.\*\.mlp +[0-9]+ +[0-9.]+ +[0-9.]+ ' table; echo $?)" "modules of all layers are one row"
ok "$(grep -q -E '^gather model\.layers\.\*' table && grep -q -E '^update' table; echo $?)" "so are operations of lanes"
ok "$(tail -n 5 table | grep -q -E '^step +[0-9.]+ +[0-9.]+'; echo $?)" "the step comes last"
ok "$(grep -q '"name":"plan"' both.json && grep -q '"name":"run, rank [01]"' both.json; echo $?)" "one trace has both"
ok "$([ "$(grep -c '"cat":"gather"' both.json)" = $((2 * $(grep -c '"pid": 0,.*"cat": "gather"' run.json) / 5)) ]; echo $?)" \
    "of one step each"

refused 'is a trace of a run, where one of a plan is wanted' against run.json run.json 0
refused 'is a trace of a plan, where one of a run is wanted' against plan.json plan.json 0
refused 'is a trace that was put together of others' against both.json run.json 0
refused 'cannot read no.json' against no.json run.json 0
echo '{"traceEvents": []}' >other.json
refused 'other.json is not a trace of libfsdp; fsdp-launch --trace=FILE' against other.json run.json 0
head -c 3000 run.json >cut.json
refused 'cut.json: line ' against plan.json cut.json 0
run -n 2 --dump-schedule=wide.json run.yaml train.global_batch_size=16
refused 'these are not the same run: operation ' against wide.json run.json 0
run -n 4 --dump-schedule=more.json run.yaml
refused 'these are not the same run' against more.json run.json 0
sed 's/"entering us": [0-9.]*, "leaving us": [0-9.]*, //; s/"entering us": [0-9.]*, "leaving us": [0-9.]*}/"micro": 0}/' run.json >old.json
refused 'trace the run again with this version' against plan.json old.json 0
grep -v '"name": "gather (root)"' run.json | sed '1,3b' >fewer.json
grep -q gather fewer.json && refused 'these are not the same run' against plan.json fewer.json 0

# ---- calibrate -----------------------------------------------------------------------------------
"$real" calibrate run.yaml 2 - fitted.json run.json >log 2>err
ok $? "factors are fitted: $(cat err)"
ok "$(grep -q -E '^product [0-9.]+ of' log && grep -q -E '^node [0-9.]+ of' log; echo $?)" "of products and of the node's link"
ok "$(awk '/^step_s/ {e = $2 / $6 - 1; bad = e > .05 || e < -.05; seen = 1} END {exit !seen || bad}' log; echo $?)" \
    "the plan of the same run is within 5 %: $(tail -n 1 log)"
ok "$(awk '$1 == "product" {f = $2} END {exit !(f > .6 && f < 1.6)}' log; echo $?)" "a second round finds little left"
refused 'these are not the same run' calibrate run.yaml 4 - fitted.json run.json

echo "1..$n"
exit $bad
