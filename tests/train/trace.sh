#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fsdp-launch --dump-schedule and --trace: what is written can be read, and training stays what it was.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
run() { timeout -k 5 60 "$launch" "$@" >log 2>err; }
holds() { grep -q -E -- "$2" "$1"; }
refused() { # text that the error must hold, then arguments
    local want=$1
    shift
    run "$@"
    local rc=$?
    ok "$([ $rc = 2 ] && holds err "$want"; echo $?)" "refused: $want"
}
# Where there is Python, its parser and a second opinion on what a viewer needs.
read_trace() { # file, processes
    if ! command -v python3 >/dev/null; then
        n=$((n + 1))
        echo "ok $n # SKIP no python3"
        return
    fi
    python3 - "$1" "$2" >log 2>err <<'PY'
import json, sys
trace = json.load(open(sys.argv[1]))
tracks, names = {}, {}
for e in trace["traceEvents"]:
    if e["ph"] == "M":
        names.setdefault(e["name"], {})[e["pid"], e["tid"]] = e["args"]
        continue
    assert e["ph"] == "X" and e["name"] and e["cat"], e
    begin = round(e["ts"] * 1000)
    tracks.setdefault((e["pid"], e["tid"]), []).append((begin, begin + round(e["dur"] * 1000), e["name"]))
assert len(trace["otherData"]["processes"]) == int(sys.argv[2])
assert {pid for pid, _ in tracks} == set(range(int(sys.argv[2])))
for key, spans in tracks.items():
    assert key in names["thread_name"] and (key[0], 0) in names["process_name"]
    lane = names["thread_name"][key]["name"]
    open_ends = []
    for begin, end, name in sorted(spans, key=lambda s: (s[0], -s[1])):
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        assert 0 <= begin <= end, (key, name)
        assert not open_ends or (lane in ("step", "compute") and end <= open_ends[-1]), (lane, name)
        open_ends.append(end)
print(len(tracks))
PY
    ok $? "Python reads $1: intervals of a track nest or are apart"
}

make_input 200
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 5, global_batch_size: 8, micro_batch_size: 2, seed: 2}
fsdp: {timeout: 60}
END
hybrid="fsdp.sharding_strategy=HYBRID_SHARD"

# ---- what is planned -------------------------------------------------------------------------------

run --dump-schedule run.yaml -n 2
ok $? "--dump-schedule"
ok "$(holds log 'training step: FULL_SHARD, 1 x 2' && holds log '^evaluation pass'; echo $?)" "shows both programs"
ok "$(holds log '^ +[0-9]+  gather +gather +model\.layers\.1 +1 '; echo $?)" "units by name, in each micro-step"
ok "$(holds log ' prev:[0-9]+$'; echo $?)" "what waits for the step before"
ok "$(! holds log ' $' && [ ! -s err ]; echo $?)" "no blank at a line's end, no complaint"
run -n 512 --nodes 64 --dump-schedule=wide.txt run.yaml $hybrid train.global_batch_size=1024
ok $? "of more ranks than this machine could run"
ok "$(holds wide.txt 'HYBRID_SHARD, 64 x 8' && holds wide.txt 'replicate +all_reduce' && [ ! -s log ]; echo $?)" \
    "into a file"
run -n 4 --nodes 2 --dump-schedule=plan.json run.yaml $hybrid
ok $? "as a trace"
read_trace plan.json 2
mv text away
run -n 2 --dump-schedule run.yaml
ok $? "it needs no data"
mv away text
refused 'no/such/plan.json' --dump-schedule=no/such/plan.json run.yaml
refused 'a file is missing' --dump-schedule= run.yaml
refused 'belongs to a configuration' --dump-schedule -- true
run -n 3 --dump-schedule run.yaml
ok "$([ $? = 0 ] && holds log 'FULL_SHARD, 1 x 3'; echo $?)" "of ranks among which the rows do not divide"
refused 'stepz' -n 2 --dump-schedule run.yaml train.stepz=1
refused 'nothing to run' --dump-schedule
cp run.yaml kept.yaml
refused 'would overwrite what it reads' -n 2 --dump-schedule=./run.yaml run.yaml
ok "$(cmp -s run.yaml kept.yaml; echo $?)" "and it stays"

# The table of docs/schedule.md, which has the same model on two nodes.
doc() { awk '/^    training step:/ { on = 1 } on && !/^    / && NF { exit } on { sub(/^    /, ""); print }' "$1"; }
(cd "$TOP" && "$launch" -n 2 --nodes 2 --dump-schedule examples/llama-tiny.yaml) >log 2>err
doc "$TOP/docs/schedule.md" | grep . >doc
grep . log | head -n "$(wc -l <doc)" >real
cmp -s doc real
ok $? "docs/schedule.md shows what is printed$(diff doc real | sed -n '2s/^/; first: /p;4p')"
ok "$([ "$(wc -l <doc)" -gt 20 ]; echo $?)" "and all of it"

# ---- what ran --------------------------------------------------------------------------------------

run -n 2 run.yaml log.metrics=plain.jsonl
ok $? "two ranks train"
run -n 2 run.yaml --trace t.json log.metrics=traced.jsonl
ok $? "two ranks train, traced"
ok "$(holds log '^trace of steps 2 to 4 written to t.json'; echo $?)" "the steps are named"
ok "$(holds log '^  rank 0 .* compute [0-9.]+, gather [0-9.]+, reduce [0-9.]+; communication [0-9.]+, 100% of it exposed' &&
    holds log '^  rank 1 .* exposed'; echo $?)" "each rank's lanes and exposed share are shown"
read_trace t.json 2
ok "$([ "$(grep -c '"cat": "step", "name": "step [234]"' t.json)" = 6 ]; echo $?)" "three steps of two ranks"
ok "$(cmp -s <(numbers plain.jsonl) <(numbers traced.jsonl) && [ -s traced.jsonl ]; echo $?)" \
    "and the numbers are those of a run without"

run -n 4 --nodes 2 run.yaml $hybrid log.trace=h.json log.trace_begin=4 log.trace_steps=9
ok $? "2 x 2 ranks, from step 4 on"
ok "$(holds log '^trace of steps 4 to 5 written' && holds log 'replicate [0-9.]+;'; echo $?)" \
    "the run's end ends the trace"
read_trace h.json 4
run -n 4 run.yaml fsdp.reshard_after_forward=2 log.trace=k.json
ok "$([ $? = 0 ] && grep -q '"name": "regather model.layers.0"' k.json; echo $?)" "4 ranks that regather over 2"
read_trace k.json 4
run -n 4 --dump-schedule run.yaml fsdp.reshard_after_forward=2
ok "$([ $? = 0 ] && holds log 'gather +regather +model.layers.0 ' && holds log 'gather +keep_part'; echo $?)" "as planned"
run run.yaml --trace=late.json log.trace_begin=6
ok "$([ $? = 0 ] && holds err 'ended before step 6'; echo $?)" "a trace that would begin after the end is warned of"
run -n 2 run.yaml --trace no/such/t.json
ok "$([ $? = 1 ] && holds err 'log.trace: cannot write no/such/t.json'; echo $?)" "a file that cannot be written is known at once"
echo '{"displayTimeUnit": "ms", "traceEvents": []}' >other.json && cp other.json kept.json
run -n 2 run.yaml --trace other.json
ok "$([ $? != 0 ] && cmp -s other.json kept.json && holds err "log.trace: 'other.json' is there already, and \
no run has written it; name another file, or remove it$"; echo $?)" "another's file is refused, and stays"
run -n 2 run.yaml --trace traced.jsonl
ok "$([ $? != 0 ] && holds traced.jsonl '"step": ?5,'; echo $?)" "so are metrics"
: >empty.json
run -n 2 run.yaml --trace empty.json
ok "$([ $? = 0 ] && run -n 2 run.yaml --trace empty.json && grep -q '"name": "step 4"' empty.json; echo $?)" \
    "a trace and an empty file are replaced"
run -n 2 run.yaml --trace /dev/full
ok "$([ $? = 0 ] && holds err 'trace could not be written'; echo $?)" "a full disk does not end the training"
refused '--trace needs a value: --trace FILE' run.yaml --trace
refused 'belongs to a configuration' --trace t.json -- true
refused 'log.trace_steps' run.yaml log.trace_steps=0

echo "1..$n"
exit $bad
