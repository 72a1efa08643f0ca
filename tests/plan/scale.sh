#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fsdp-plan --scale and --chart: rows, what is held, strategies, the same numbers in table and JSON, pictures that are
# SVG, and what is refused.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
run() { timeout -k 5 120 "$BIN/fsdp-plan" "$@" >log 2>err; }
holds() { grep -q -E -- "$2" "$1"; }
refused() { # text that the error must hold, then arguments
    local want=$1
    shift
    run "$@"
    local rc=$?
    ok "$([ $rc = 2 ] && holds err "$want" && [ "$(grep -v -c "^Try " err)" = 1 ] && [ ! -s log ]; echo $?)" "refused: $want"
    [ "$rc" = 2 ] || sed 's/^/# /' err
}
python() { python3 - "$@" 2>err; }

make_input 200
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 50, global_batch_size: 16, micro_batch_size: 2, seed: 2}
END
llama=$TOP/examples/llama-8b

# ---- rows ------------------------------------------------------------------------------------------

run --model "$llama" --seq 8192 --scale 4..3000 --tokens 1T --json scale.json
ok $? "rows over GPUs"
ok "$(! grep -n -E '.{81}| $' log >&2; echo $?)" "the tables have 80 columns, and no blanks at their ends"
ok "$(python <<'PY'
import json
a = json.load(open("scale.json"))
table = open("log").read().split("\n\n")
own = a["scale"][0]
assert [r["gpus"] for r in own["rows"]] == [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3000], own
assert a["batch"] == {"held": "gpu", "rows_per_step": None, "rows_per_gpu": 1, "seq_len": 8192}
for line in a["scale"]:
    for r in line["rows"]:
        assert r["tokens_per_step"] == 8192 * r["gpus"] and r["accumulation"] == 1
        t = r["step_s"]
        assert t["low"] < t["value"] < t["high"] and t["basis"]
        assert abs(r["tokens_per_step"] / r["gpus"] / t["value"] / r["tokens_per_s_per_gpu"]["value"] - 1) < 1e-9
        assert r["extrapolated"] == (r["gpus"] > 512) == ("extrapolated" in t["basis"])
        assert r["fits"] == (r["memory_bytes"] <= r["device_bytes"]) and r["memory_limit_bytes"] == 0
        assert 0 < r["planned_bytes"] <= r["memory_bytes"]
rows = [l for l in table[1].splitlines() if l.strip()[:1].isdigit()]
for r, text in zip(own["rows"], rows, strict=True):
    cells = text.split()
    assert cells[0] == f'{r["gpus"]:,}' and cells[1] == f'{r["tokens_per_s_per_gpu"]["value"]:,.0f}', text
    assert cells[2] == f'{100 * r["mfu"]["value"]:.1f}%' and cells[6].strip("!") == f'{r["memory_bytes"] / 2**30:.1f}', text
    assert ("*" in text) == r["extrapolated"] and cells[-1] == f'{r["gpu_hours"]:,.0f}', text
# Strategies next to each other.
lines = {l["strategy"]: {r["gpus"]: r for r in l["rows"]} for l in a["scale"]}
assert list(lines) == ["FULL_SHARD", "FULL_SHARD, two levels", "HYBRID_SHARD by node"] and own["own"]
assert sorted(lines["HYBRID_SHARD by node"]) == [16, 32, 64, 128, 256, 512, 1024, 2048, 3000]
rate = {s: lines[s][2048]["tokens_per_s_per_gpu"]["value"] for s in lines}
assert rate["FULL_SHARD"] < rate["FULL_SHARD, two levels"]
rows = [l for l in table[2].splitlines() if l.strip()[:1].isdigit()]
for text in rows:
    cells = text.split()
    gpus = int(cells[0].replace(",", ""))
    at = [(lines[s][gpus] if gpus in lines[s] else None) for s in lines]
    want = ["-" if r is None else f'{r["tokens_per_s_per_gpu"]["value"]:,.0f}' for r in at]
    assert [c.rstrip("=!") for c in cells[1:4]] == want, (text, want)
    fitting = [r["tokens_per_s_per_gpu"]["value"] for r in at if r and r["fits"]]
    near = [c for c in fitting if max(fitting) <= 1.03 * c]
    assert sum(c.endswith("=") for c in cells[1:4]) == (len(near) if len(near) > 1 else 0), text
PY
echo $?)" "JSON and tables have the same numbers; what is within 3 % is equal; beyond 512 GPUs it is extrapolated"
run --model "$llama" --seq 8192 --nodes 8 --batch 524288 --json one.json
ok "$(python <<'PY'
import json
one = json.load(open("one.json"))["time"]["step_s"]["value"]
row = [r for r in json.load(open("scale.json"))["scale"][0]["rows"] if r["gpus"] == 64][0]
assert abs(row["step_s"]["value"] / one - 1) < 1e-9, (row["step_s"], one)
PY
echo $?)" "a row is the plan of that many GPUs"

run run.yaml --gpu h100 --scale 1..8 --gpus 2 --json scale.json
ok "$(python <<'PY'
import json
a = json.load(open("scale.json"))
rows = a["scale"][0]["rows"]
assert a["batch"]["rows_per_gpu"] == 8 and [r["tokens_per_step"] for r in rows] == [256, 512, 1024, 2048]
assert all(r["micro_batch_rows"] == 2 and r["accumulation"] == 4 for r in rows)
hours = [r["seconds"] for r in rows]
assert len(a["scale"]) == 1 and hours == sorted(hours, reverse=True)
PY
echo $?)" "with --gpus a GPU keeps the rows that it has there, and the tokens of the run are those of all rows"

# ---- the batch as it is ----------------------------------------------------------------------------

run run.yaml --gpu h100 --scale 1..32 --scale-batch constant --json scale.json
ok $? "a constant batch"
ok "$(python <<'PY'
import json
a = json.load(open("scale.json"))
rows = a["scale"][0]["rows"]
assert [r["gpus"] for r in rows] == [1, 2, 4, 8, 16] and all(r["tokens_per_step"] == 512 for r in rows)
assert [r["micro_batch_rows"] * r["accumulation"] for r in rows] == [16, 8, 4, 2, 1]
assert a["batch"]["held"] == "constant" and any("32 GPUs" in n for n in a["notes"])
PY
echo $?)" "keeps the rows of a step as far as they divide, and says where they do not"
ok "$(holds log 'left out from 32 GPUs' && holds log 'fewer rows than the run.s 2'; echo $?)" "in the table, too"

# ---- what does not fit -----------------------------------------------------------------------------

run --model "$TOP/examples/llama-70b" --seq 8192 --scale 8..128 fsdp.activation_checkpointing=full --chart scale.svg
ok $? "a model that a node has no room for"
ok "$(holds log '  8 .*!' && holds log '! does not fit: a GPU has 74.5' && holds log 'smallest that fit: 32 GPUs, on 4 nodes' &&
    holds scale.svg 'HYBRID_SHARD by 4 nodes'; echo $?)" "rows that do not fit are marked, and HYBRID_SHARD takes the nodes that it needs"
run --model "$TOP/examples/llama-405b" --scale 8..16
ok "$([ $? = 1 ] && holds log 'fits nowhere'; echo $?)" "where nothing fits, the status is 1"
run --model "$TOP/examples/llama-8b" --scale 8..16 --json limit.json fsdp.memory_limit=20
ok "$(holds log '! does not fit: fsdp.memory_limit is 20.0 GiB' && python - <<'PY'
import json
rows = [r for l in json.load(open("limit.json"))["scale"] for r in l["rows"]]
assert all(r["memory_limit_bytes"] == 20 << 30 for r in rows) and not rows[0]["fits"]
assert all(r["fits"] == (r["planned_bytes"] <= r["memory_limit_bytes"]) for r in rows)
PY
echo $?)" "because of fsdp.memory_limit"
run --model "$TOP/examples/llama-8b" --seq 8192 --gpus 8 --chart limit.svg fsdp.memory_limit=20
ok "$(holds limit.svg 'memory_limit 20.0'; echo $?)" "which a chart shows"
run --model "$TOP/examples/llama-70b" --scale 8..16 fsdp.offload=optimizer fsdp.activation_checkpointing=full --what-if node.host_gib=100
ok "$(holds log '! does not fit: on 8 GPUs a node.s host holds [0-9]* GiB, and has 100'; echo $?)" "because of the host"

# ---- pictures --------------------------------------------------------------------------------------

is_svg() { # file, texts that it must hold
    python "$@" <<'PY'
import sys, xml.dom.minidom
svg = xml.dom.minidom.parse(sys.argv[1]).documentElement
texts = ["".join(t.data for t in n.childNodes) for n in svg.getElementsByTagName("text")]
assert svg.tagName == "svg" and svg.getAttribute("viewBox")
for n in svg.getElementsByTagName("text"):
    x, y = float(n.getAttribute("x")), float(n.getAttribute("y"))
    assert 0 <= x <= 960 and 0 <= y <= float(svg.getAttribute("height")), texts
for want in sys.argv[2:]:
    assert any(want in t for t in texts), (want, texts)
PY
}
run --model "$llama" --seq 8192 --scale 8..4096 --chart scale.svg
ok "$([ $? = 0 ] && is_svg scale.svg 'tokens/s of a GPU' MFU 'error band' 'HYBRID_SHARD by node' 'FULL_SHARD, two levels' 4,096 extrapolated; echo $?)" \
    "a chart of rows"
run --model "$llama" --seq 8192 --nodes 4 --chart plan.svg
ok "$([ $? = 0 ] && holds log '^step ' && is_svg plan.svg 'memory of a GPU' 'time of a step' 'checkpointing full' NO_SHARD 'too much' \
    'optimizer offloaded' 'exposed communication' 'a GPU has 74.5' "the run's own"; echo $?)" "a chart of settings, next to the answer"
cp plan.svg before.svg
run --model "$llama" --seq 8192 --nodes 4 --chart plan.svg fsdp.two_level=true
ok "$([ $? = 0 ] && ! cmp -s plan.svg before.svg && [ -z "$(ls ./*.tmp 2>/dev/null)" ]; echo $?)" "it takes the place of one that is there"
run --model "$llama" --seq 8192 --nodes 4 --chart plan.PNG
rc=$?
ok "$(if [ $rc = 0 ]; then [ "$(head -c 4 plan.PNG | tail -c 3)" = PNG ]; else holds err 'without cairo'; fi; echo $?)" "or PNG, where there is cairo"
run --model "$llama" --scale 8..64 --json -
ok "$([ $? = 0 ] && python3 -c 'import json; json.load(open("log"))'; echo $?)" "JSON on standard output is alone there"
if command -v script >/dev/null; then
    run --model "$llama" --scale 8..64
    ok "$(! grep -q '[^ -~]' log; echo $?)" "no chart where standard output is no terminal"
    for columns in 80 200; do
        script -q -c "stty cols $columns rows 50; LC_ALL=C.UTF-8 TERM=xterm $BIN/fsdp-plan --model $llama --scale 8..64" /dev/null </dev/null >seen 2>err
        ok "$(holds seen '└─' && python3 - $columns <<'PY'
import re, sys
lines = [re.sub(r"\x1b\[[0-9;]*[a-zA-Z]", "", l).rstrip() for l in open("seen", encoding="utf-8").read().replace("\r", "\n").split("\n")]
assert max(map(len, lines)) <= int(sys.argv[1])
assert any(len(l) > int(sys.argv[1]) - 4 for l in lines)
PY
        echo $?)" "on a terminal of $columns columns a chart is under the table"
    done
else
    ok 0 "a chart in a terminal # SKIP no script(1)"
fi

# ---- refusals --------------------------------------------------------------------------------------

refused 'not a range of GPUs' run.yaml --scale 0..8
refused 'ends before it begins: write 4..8' run.yaml --scale 8..4
refused 'not a range of GPUs' run.yaml --scale abc
refused 'not a range of GPUs' run.yaml --scale 8..16x
refused 'not a range of GPUs' run.yaml --scale 8..
refused 'multiple of --node-size' run.yaml --scale 8..20
refused 'multiple of --node-size' run.yaml --scale 12..32
refused 'add --scale' run.yaml --scale-batch constant
refused 'gpu, constant|gpu or constant' run.yaml --scale 1..8 --scale-batch both
refused 'leave out one' run.yaml --scale 1..8 --search
refused 'leave out one' run.yaml --scale 1..8 --trace trace.json
refused 'for how many GPUs' --model "$llama" --scale 8..64 --batch 4M
refused 'does not divide' run.yaml --scale 32..64 --scale-batch constant
refused 'sharding_strategy' run.yaml --scale 1..8 fsdp.sharding_strategy=FULL
refused 'end in .svg or .png' run.yaml --chart plan.pdf
refused 'end in .svg or .png' run.yaml --scale 1..8 --chart -
refused 'search first' run.yaml --search --chart plan.svg
mkdir folder.svg && cp run.yaml run.svg
refused 'is a folder' run.yaml --chart folder.svg
refused 'which the plan is made of' run.svg --chart run.svg
run run.yaml --scale 1..8 --json no/such/folder.json
ok "$([ $? = 1 ] && holds err 'cannot write .no/such/folder.json'; echo $?)" "a file that cannot be written"
ok "$(cmp run.yaml run.svg; echo $?)" "an input is left as it was"

echo "1..$n"
exit $bad
