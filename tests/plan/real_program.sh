#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fsdp-plan next to real runs of two ranks: --against, --calibrate, --measure, --foreign. How fast
# the machine is plays no part.
# run: timeout=1200
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
plan() { timeout -k 5 500 "$BIN/fsdp-plan" "$@" >log 2>err; }
holds() { grep -q -E -- "$2" "$1"; }
refused() { # text that the error must hold, then arguments
    local want=$1
    shift
    plan "$@"
    local rc=$?
    ok "$([ $rc = 2 ] && holds err "$want" && [ "$(wc -l <err)" = 1 ] && [ ! -s log ]; echo $?)" "refused: $want"
    [ "$rc" = 2 ] || sed 's/^/# /' err
}
step_of() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["time"]["step_s"]["value"])' "$1"; }

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
two=(run.yaml --gpu cpu --gpus 2)

# ---- against ---------------------------------------------------------------------------------------

plan "${two[@]}" --against run.json -o both.json
ok $? "the plan against the run: $(cat err)"
ok "$(holds log '^plan against 5 steps of 2 ranks' && holds log '^backward model\.layers\.\*\.mlp +4 ' && holds log '^step +[0-9.]+ +[0-9.]+'; echo $?)" \
    "is a table, with the step"
plan "${two[@]}" --json plan.json
plan "${two[@]}" --against run.json
ok "$(awk -v planned="$(step_of plan.json)" '$1 == "step" {e = $2 / 1e3 / planned - 1; seen = e < .001 && e > -.001} END {exit !seen}' log; echo $?)" \
    "whose planned step is that of the answer"
ok "$(python3 - <<'PY'
import json
e = json.load(open("both.json"))["traceEvents"]
names = {x["args"]["name"] for x in e if x["ph"] == "M" and x["name"] == "process_name"}
assert len(names) == 2 and "plan" in names, names
count = [sum(1 for x in e if x["ph"] == "X" and x["pid"] == p and x["cat"] == "gather") for p in (0, 1)]
assert count[0] == count[1] > 0, count
PY
echo $?)" "one trace has a step of both"
refused 'both.json exists' "${two[@]}" --against run.json -o both.json
refused 'is a trace that was put together of others' "${two[@]}" --against both.json
plan "${two[@]}" --trace planned.json
refused 'planned.json is a trace of a plan' "${two[@]}" --against planned.json
refused 'cannot read no.json' "${two[@]}" --against no.json
echo '{"traceEvents": []}' >other.json
refused 'other.json is not a trace of libfsdp; fsdp-launch --trace=FILE' "${two[@]}" --against other.json
head -c 3000 run.json >cut.json
refused 'cut.json: line ' "${two[@]}" --against cut.json
refused 'is of a run on 2 ranks, and the plan is for 4: add --gpus 2' run.yaml --gpu cpu --gpus 4 --against run.json
refused 'these are not the same run: operation ' "${two[@]}" train.global_batch_size=16 --against run.json
refused 'give one of them' "${two[@]}" --against run.json --search

# ---- calibrate -------------------------------------------------------------------------------------

plan "${two[@]}" --calibrate run.json
ok $? "the clock is corrected by a run: $(cat err)"
ok "$(holds log '^ +product +[0-9.]+ ' && holds log '^ +node +[0-9.]+ '; echo $?)" "its factors are shown"
ok "$(holds cluster.yaml '^  like: cpu' && holds cluster.yaml '^    product: ' && holds cluster.yaml '^  step_ms: '; echo $?)" \
    "and are in a cluster.yaml"
# The traced step: the median of each rank's steps, up to the next one's begin; of the slowest rank.
real=$(python3 - <<'PY'
import json, statistics
steps = {}
for e in json.load(open("run.json"))["traceEvents"]:
    if e["ph"] == "X" and e.get("cat") == "step" and "args" not in e:
        steps.setdefault(e["pid"], []).append(e["ts"])
print(1e-6 * max(statistics.median([b - a for a, b in zip(s, s[1:])]) for s in steps.values()))
PY
)
plan run.yaml --cluster cluster.yaml --gpus 2 --json again.json
ok "$(awk -v planned="$(step_of again.json)" -v real="$real" 'BEGIN {e = planned / real - 1; exit !(real > 0 && e < .05 && e > -.05)}'; echo $?)" \
    "planned again, the step is within 5 %: $(step_of again.json) of $real s"
ok "$(holds log 'the clock was calibrated by a run on this cluster'; echo $?)" "and says what it rests on"
refused 'cluster.yaml exists' "${two[@]}" --calibrate run.json
refused 'standard output has the table' "${two[@]}" --calibrate run.json -o -
refused 'change it there' run.yaml --cluster cluster.yaml --gpus 2 --what-if price=2 --calibrate run.json -o next.yaml
refused 'add --gpus 2' run.yaml --gpu cpu --gpus 4 --calibrate run.json -o next.yaml
sed 's/^gpu:/# by hand\ngpu:/' cluster.yaml >hand.yaml
plan run.yaml --cluster hand.yaml --gpus 2 --calibrate run.json -o next.yaml
ok "$([ $? = 0 ] && holds next.yaml '^# by hand' && [ "$(grep -c '^measured:' next.yaml)" = 1 ]; echo $?)" \
    "a cluster.yaml keeps its text"
ok "$(python3 - <<'PY'
import re
a, b = (float(re.search(r"product: ([0-9.]+)", open(f).read()).group(1)) for f in ("hand.yaml", "next.yaml"))
assert 0.7 < a / b < 1.4, (a, b)
PY
echo $?)" "and finds little left to correct"

# ---- measure ---------------------------------------------------------------------------------------

plan run.yaml --measure -n 2 -o m.yaml
ok $? "two ranks are started and measure: $(tail -n 1 err)"
ok "$(holds log '^measured on 2 ranks: [1-9][0-9]* products, [1-9][0-9]* sizes of attention, [1-9][0-9]* of pointwise kernels, [1-9]'; echo $?)" \
    "tables of all kinds"
ok "$([ "$(wc -l <m.gemm.tsv)" -gt 5 ] && holds m.copy.tsv '^type' && holds m.copy.tsv 'update' && holds m.collectives.tsv '^reduce_scatter' &&
    holds m.yaml '^  gemm: m.gemm.tsv' && holds m.yaml '^  gpus: 2' && holds m.yaml '^  cards: none'; echo $?)" \
    "are files next to a cluster.yaml of this machine"
ok "$(awk '$1 == "all_gather" && $4 > 1e6 {seen = 1} END {exit !seen}' m.collectives.tsv; echo $?)" "with collectives of large sizes"
plan run.yaml --cluster m.yaml --gpus 2
ok "$([ $? = 0 ] && holds log 'the clock was measured on this cluster'; echo $?)" "a plan with it says so"
mkdir moved && cp m.yaml m.*.tsv moved
plan run.yaml --cluster moved/m.yaml --gpus 2 --calibrate run.json -o moved/c.yaml
ok "$([ $? = 0 ] && holds moved/c.yaml '^  gemm: m.gemm.tsv' && holds moved/c.yaml '^  step_ms: '; echo $?)" "a run corrects it: $(cat err)"
plan run.yaml --cluster moved/c.yaml --gpus 2 --json again.json
ok "$(awk -v planned="$(step_of again.json)" -v real="$real" 'BEGIN {e = planned / real - 1; exit !(real > 0 && e < .05 && e > -.05)}'; echo $?)" \
    "planned again, the step is within 5 %: $(step_of again.json) of $real s"
refused 'm.yaml exists' run.yaml --measure -n 2 -o m.yaml
rm m.yaml
refused 'm.gemm.tsv exists' run.yaml --measure -n 2 -o m.yaml
refused 'grid is for --measure' run.yaml --grid
refused 'give one of them' run.yaml --measure --calibrate run.json
"$launch" -n 2 -- "$BIN/fsdp-plan" run.yaml --measure -n 3 -o three.yaml >log 2>err
ok "$([ $? != 0 ] && [ "$(grep -c -F -- '-n 3, and 2 ranks were started' err)" = 1 ] && [ ! -e three.yaml ]; echo $?)" "ranks that fsdp-launch started are as many as -n says"
"$launch" -n 2 -- "$BIN/fsdp-plan" run.yaml --measure -o three.yaml fsdp.sharding=1 >log 2>err
ok "$([ $? != 0 ] && [ "$(grep -c -F 'sharding' err)" = 1 ]; echo $?)" "an error of all ranks is told once"

# ---- foreign ---------------------------------------------------------------------------------------

mkdir llama
cat >llama/config.json <<END
{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
 "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
 "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "torch_dtype": "bfloat16"}
END
big=(--model llama --seq 8192 --nodes 8)
plan "${big[@]}" --foreign tp=4,pp=2,vpp=2 --json foreign.json
ok "$([ $? = 0 ] && holds log '^foreign: as Megatron-LM could do it; libfsdp does not' && holds log '^tensor 4, pipeline 2 in 2 chunks a stage, context 1, data 8 ' &&
    holds log 'error .* 23 %  foreign, by formula'; echo $?)" "tensor and pipeline parallelism, marked foreign"
ok "$(python3 - <<'PY'
import json
a = json.load(open("foreign.json"))
f, t = a["foreign"], a["time"]["tokens_per_s_per_gpu"]["value"]
s = f["step_s"]
assert abs(s["high"] / s["value"] - 1.23) < 1e-9 and "foreign" in s["basis"]
assert abs(a["run"]["rows_per_step"] * 8192 / s["value"] / 64 / f["tokens_per_s_per_gpu"] - 1) < 1e-9
assert 0.3 < f["tokens_per_s_per_gpu"] / t < 1.5, (f, t)
assert f["tensor_s"] > 0 and f["bubble_s"] > 0 and f["context_s"] == 0
PY
echo $?)" "with its own band, of the same rows"
plan "${big[@]}" --json plain.json
ok "$(python3 -c 'import json; assert json.load(open("plain.json"))["foreign"] is None'; echo $?)" "which is not there unasked"
refused 'are 96 ranks, of which 64 are no multiple' "${big[@]}" --foreign tp=8,pp=4,cp=3
refused 'tp=3 divides 32 heads' "${big[@]}" --foreign tp=3 --gpus 24 --nodes 3
refused '32 layers are no multiple of pp 4 x vpp 3' "${big[@]}" --foreign pp=4,vpp=3
refused 'vpp=2 is for a pipeline' "${big[@]}" --foreign tp=2,vpp=2
refused 'its formulas are of GPUs' run.yaml --gpu cpu --gpus 2 --foreign tp=2
refused 'give one of them' "${big[@]}" --foreign tp=2 --search
for wrong in tp tp=0 xp=2 tp=2, tp=2x; do
    plan "${big[@]}" --foreign "$wrong"
    ok "$([ $? = 2 ] && holds err "'$wrong' is not such as tp=2,pp=4"; echo $?)" "refused: --foreign $wrong"
done

echo "1..$n"
exit $bad
