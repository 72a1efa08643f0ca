#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fsdp-plan: its table and its JSON say the same; plans, advice and searches of real runs; what is refused.
# run: long
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
    ok "$([ $rc = 2 ] && holds err "$want" && [ "$(wc -l <err)" -le 2 ] && [ ! -s log ]; echo $?)" "refused: $want"
}

make_input 200
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 5, global_batch_size: 16, micro_batch_size: 2, seed: 2}
fsdp: {timeout: 60}
END
mkdir llama
cat >llama/config.json <<END
{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
 "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
 "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "torch_dtype": "bfloat16"}
END

# ---- one answer ------------------------------------------------------------------------------------

run run.yaml --gpus 8
ok $? "a run.yaml on eight GPUs"
ok "$(holds log '^FULL_SHARD, 8, ' && holds log '^step ' && holds log '^error .*within 20 %' && holds log 'fits$'; echo $?)" \
    "its strategy, time, band with its basis, and memory"
ok "$(! grep -n '.\{81\}' log >&2; echo $?)" "the table has 80 columns"
ok "$(! holds log PADDING; echo $?)" "nothing of padding where there is none"
run run.yaml train.global_batch_size=6 train.micro_batch_size=auto --gpus 64 --json padded.json
ok "$([ $? = 0 ] && holds log '^6 rows on 64 ranks: 90\.6 % of the computation is PADDING;$' &&
    holds log '^58 of the ranks have no row; train.global_batch_size=64 wastes nothing$' && holds padded.json '"padding_share": 0\.90625'; echo $?)" \
    "ranks without a row are said"
ok "$(! grep -n '.\{81\}' log >&2; echo $?)" "in 80 columns"
# Heads of 64 elements in bf16; documents are packed.
mkdir small
sed 's/"hidden_size": 4096/"hidden_size": 256/; s/"num_attention_heads": 32/"num_attention_heads": 4/
    s/"num_key_value_heads": 8/"num_key_value_heads": 2/' llama/config.json >small/config.json
packed=(model.path=small data.path=x.jsonl data.format=jsonl data.seq_len=512 fsdp.param_dtype=bfloat16)
run run.yaml "${packed[@]}" --gpus 8 --gpu a100 --json a100.json
ok "$([ $? = 0 ] && holds err 'attention: plain kernels.*several documents in a row' && [ "$(wc -l <err)" = 1 ]; echo $?)" \
    "packed documents on a GPU whose attention of them is slow: a warning"
run run.yaml "${packed[@]}" data.pack=none --gpus 8 --gpu a100 --json rows.json
ok "$([ $? = 0 ] && [ ! -s err ]; echo $?)" "none for rows"
run run.yaml "${packed[@]}" --gpus 8 --gpu h100
ok "$([ $? = 0 ] && [ ! -s err ]; echo $?)" "nor on a newer one"
python3 -c '
import json
def seconds(x):
    if isinstance(x, str):
        x = json.load(open(x))
    return x.get("attention_s") or next(filter(None, (seconds(y) for y in x.values() if isinstance(y, dict))), None)
assert 30 < seconds("a100.json") / seconds("rows.json") < 50'
ok $? "attention takes as much longer as the model says"
run --model llama --seq 8192 --nodes 8 --batch 4M --tokens 1T --json answer.json --trace plan.json
ok $? "a model without a run"
ok "$(holds log '8\.03B parameters on 64 h100 \(8 nodes of 8\)' && holds log 'GPU-hours'; echo $?)" "says whose answer it is"
ok "$(python3 - <<'PY'
import json
a = json.load(open("answer.json"))
table = open("log").read()
t, m = a["time"], a["memory"]
assert t["step_s"]["low"] < t["step_s"]["value"] < t["step_s"]["high"] and t["step_s"]["basis"]
assert abs(a["run"]["rows_per_step"] * 8192 / t["step_s"]["value"] / t["tokens_per_s"]["value"] - 1) < 1e-6
assert f'{t["tokens_per_s_per_gpu"]["value"]:,.0f} a GPU' in table
parts = t["products_s"] + t["attention_s"] + t["pointwise_s"] + t["optimizer_s"] + t["slowed_s"] + t["exposed_s"]
assert parts <= t["step_s"]["value"] and parts > 0.9 * t["step_s"]["value"], parts
assert m["planned_bytes"] == sum(r["bytes"] for r in m["rows"] if not r["host"])
assert m["fits"] == (m["planned_bytes"] + m["reserved_bytes"] <= m["device_bytes"])
assert all(n["origin"] in ("data sheet", "measured", "fitted", "assumed", "given") and n["source"] for n in a["clock"]["numbers"])
assert len(json.load(open("plan.json"))["traceEvents"]) > 1000
PY
echo $?)" "the JSON has the table's numbers, with bands and origins, and the trace the list"
for spread in 0.01 0.12; do
    printf 'gpu: h100\nnode: {gpus: 8}\nnetwork: none\nmeasured: {gemm: [[bf16, 8192, 4096, 4096, 6e14]], scatter: %s}\n' $spread >cluster.yaml
    run --model llama --seq 8192 --gpus 8 --cluster cluster.yaml
    grep '^error' log >>bands
done
ok "$(holds <(sed -n 1p bands) ' 5 %  the clock was measured on this cluster$' &&
    holds <(sed -n 2p bands) '12 %  the clock was measured .*; its measurements differ by as much$'; echo $?)" \
    "a clock's own measurements bound its band: $(cat bands err)"
run --model llama --seq 8192 --nodes 8 --batch 4M --json f8.json model.linear_dtype=float8_e4m3
ok "$([ $? = 0 ] && python3 - <<'PY'
import json
a, b = json.load(open("answer.json"))["time"], json.load(open("f8.json"))["time"]
assert 1.2 < a["products_s"] / b["products_s"] < 2, (a, b)
assert b["pointwise_s"] > 1.1 * a["pointwise_s"] and b["step_s"]["value"] < 0.9 * a["step_s"]["value"], (a, b)
PY
echo $?)" "products in 8 bits take less time, with the making of codes"
for kind in row:h100 block:h100 row:b200 block:b200 tensor:b200; do
    run --model llama --seq 8192 --nodes 8 --gpu "${kind#*:}" --batch 4M --json "${kind/:/-}.json" model.linear_dtype=float8_e4m3 model.linear_scales="${kind%:*}" || break
done
ok "$([ $? = 0 ] && python3 - <<'PY'
import json
products = {name: json.load(open(f"{name}.json"))["time"]["products_s"] for name in ("answer", "f8", "row-h100", "block-h100", "row-b200", "block-b200", "tensor-b200")}
assert products["row-h100"] == products["f8"] and products["block-h100"] > 0.95 * products["answer"], products
assert products["block-b200"] == products["tensor-b200"] < 0.8 * products["row-b200"], products
PY
echo $?)" "scales of rows are Hopper's, those of blocks Blackwell's: elsewhere products take the time of bf16"
run --model llama --seq 8192 --nodes 8 --batch 4M --json gathered.json fsdp.gather_dtype=float8_e4m3
run --model llama --seq 8192 --nodes 8 --batch 4M --json both.json model.linear_dtype=float8_e4m3 fsdp.gather_dtype=float8_e4m3
ok "$([ $? = 0 ] && python3 - <<'PY'
import json
none, f8, gathered, both = (json.load(open(f"{name}.json")) for name in ("answer", "f8", "gathered", "both"))
made = [b["time"]["pointwise_s"] - a["time"]["pointwise_s"] for a, b in ((none, f8), (gathered, both))]
assert 0.5 * made[0] < made[1] < made[0], made
PY
echo $?)" "of weights that are gathered in codes, none are made"
for targets in q_proj k_proj q_proj,k_proj; do
    run --model llama --seq 8192 --nodes 8 --batch 4M --json "$targets.json" model.linear_dtype=float8_e4m3 "model.linear_targets=[$targets]" || break
done
ok "$([ $? = 0 ] && python3 - <<'PY'
import json
none, q, k, both = (json.load(open(f"{name}.json"))["time"]["pointwise_s"] for name in ("answer", "q_proj", "k_proj", "q_proj,k_proj"))
assert none < k < q < both and both - q < 0.6 * (k - none), (none, q, k, both)
PY
echo $?)" "maps that read the same x make its codes once"
# Experts: of 8,192 tokens, 2 experts each, 8 experts have more than 512 rows on average, and of 2,048 they do not.
mkdir mixture
echo '{"model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 32768, "num_local_experts": 8,
    "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "tie_word_embeddings": false}' >mixture/config.json
for seq in 2048 8192; do
    for targets in all-linear all-linear,experts; do
        run --model mixture --seq $seq --nodes 16 --batch 8M --json "$targets-$seq.json" train.micro_batch_size=1 \
            model.linear_dtype=float8_e4m3 "model.linear_targets=[$targets]" || break 2
        if holds <(cat log err) 'too few for products in 8 bits'; then echo "$targets-$seq" >>warned; fi
    done
done
ok "$([ $? = 0 ] && python3 - <<'PY'
import json
for seq in (2048, 8192):
    without, experts = (json.load(open(f"{name}-{seq}.json")) for name in ("all-linear", "all-linear,experts"))
    a, b = without["time"], experts["time"]
    work = [sum(r["bytes"] for r in x["memory"]["rows"] if "workspace" in str(r)) for x in (without, experts)]
    if seq == 2048:
        assert a["products_s"] == b["products_s"] and b["step_s"]["value"] > a["step_s"]["value"], (a, b)
    else:
        assert b["products_s"] < 0.7 * a["products_s"] and b["step_s"]["value"] < a["step_s"]["value"], (a, b)
    assert b["pointwise_s"] > a["pointwise_s"], (a, b)
    # The matrices of 8 experts, in 2 bytes an element, lie next to those of the rows.
    assert work[1] - work[0] > 0.9 * 8 * 4096 * 14336 * 2, work
PY
[ $? = 0 ] && [ "$(cat warned)" = all-linear,experts-2048 ]; echo $?)" "experts in 8 bits take less time where each has many rows, and more memory and time to make codes"
run --model llama --seq 8191 --nodes 8 --batch 4M --json odd.json model.linear_dtype=float8_e4m3 train.micro_batch_size=1
ok "$([ $? = 0 ] && python3 -c '
import json
a, b = json.load(open("answer.json"))["time"], json.load(open("odd.json"))["time"]
assert b["products_s"] > 0.95 * a["products_s"], (a, b)'; echo $?)" "but not where a dimension is no multiple of 16"
run --model llama --seq 8192 --gpus 8 --json - train.micro_batch_size=4
ok "$([ $? = 1 ] && python3 -c 'import json,sys; a = json.load(open("log")); assert not a["memory"]["fits"]'; echo $?)" \
    "a run that does not fit ends with 1; JSON on standard output is alone there"
run run.yaml --gpus 8 --nodes 1 -v
ok "$(holds log '^numbers of the clock' && holds log 'fitted: ' && holds log 'assumed: '; echo $?)" "-v gives each number's origin"

# ---- the same list as the run ----------------------------------------------------------------------

run run.yaml --gpu cpu --gpus 2 --trace plan.json
"$launch" -n 2 --dump-schedule=dump.txt run.yaml >/dev/null 2>&1
ok "$(python3 - <<'PY'
import json, re
plan = [e for e in json.load(open("plan.json"))["traceEvents"] if e["ph"] == "X" and e["pid"] == 0 and "op" in e.get("args", {})]
ops = [l for l in open("dump.txt").read().split("evaluation pass")[0].splitlines() if re.match(r" +\d+  ", l)]
shown = [l for l in ops if not re.search(r"  (free|leave|micro_end) ", l + " ")]
assert len(plan) == len(shown) > 50, (len(plan), len(shown))
PY
echo $?)" "the plan's list is that of --dump-schedule"

# Updates during the next forward pass: a part of them is hidden, and the parts are still those of the step.
parts() {
    run --model llama --seq 4096 --batch 32768 --gpus 8 --json - fsdp.update_at="$1" && python3 -c '
import json
t = json.load(open("log"))["time"]
parts = sum(t[k] for k in ("products_s", "attention_s", "pointwise_s", "optimizer_s", "slowed_s", "exposed_s"))
print(t["step_s"]["value"], t["optimizer_s"], parts)'
}
ok "$(echo "$(parts step) $(parts forward)" | awk '{exit !(NF == 6 && $4 < $1 && $5 < 0.7 * $2 && $5 > 0.3 * $2 && $6 <= 1.01 * $4 && $6 > 0.9 * $4)}'; echo $?)" \
    "a part of the updates is hidden behind the next forward pass"

# ---- advice ----------------------------------------------------------------------------------------

run --model llama --seq 8192 --gpus 64 --advice always
ok "$([ $? -le 1 ] && holds log '^what to change' && holds log 'plans in all'; echo $?)" "advice"
run --model llama --seq 8192 --gpus 8 --advice always train.micro_batch_size=4
ok "$([ $? = 1 ] && holds log 'makes it fit'; echo $?)" "of a run that does not fit, what makes it fit"
settings=$(sed -n '/makes it fit/{n;p;}' log | grep -o -E '[a-z]+\.[a-z_]+=.*')
run --model llama --seq 8192 --gpus 8 train.micro_batch_size=4 $settings
ok $? "with $settings it does"
"$launch" -n 2 run.yaml fsdp.memory_limit=0.0008 >log 2>err
ok "$([ $? != 0 ] && holds err 'what makes it fit|no setting alone' && holds err 'fsdp-plan run.yaml --gpus 2'; echo $?)" \
    "fsdp-launch tells it where memory is short"
"$launch" --check -n 2 run.yaml fsdp.memory_limit=0.0008 >log 2>err
ok "$([ $? = 1 ] && holds err 'more memory than there is' && holds err 'fsdp-plan run.yaml --gpus 2'; echo $?)" "and --check"
many=()
for i in {1..60}; do many+=("log.metrics=it's the $i. of $(printf '%060d' "$i")"); done
"$launch" --check -n 2 run.yaml fsdp.memory_limit=0.0008 "${many[@]}" >log 2>err
command=$(sed -n 's/^error: more: fsdp-plan //p' err)
ok "$(eval "set -- $command" && [ "${!#}" = "${many[59]}" ]; echo $?)" "the command that it proposes has all settings"
"$launch" --check -n 2 run.yaml >log 2>err
ok $? "which passes where it fits"
"$launch" --check -n 2 run.yaml "model.path=$TOP/tests/plan/llama-1t" fsdp.memory_limit=1000000 >log 2>err
ok "$([ $? = 1 ] && holds err 'more memory than there is'; echo $?)" "a memory_limit that no machine has does not make it fit"
"$launch" -n 2 run.yaml fsdp.memory_limit=0.0019 >log 2>err
setting=$(sed -n '/what makes it fit/{n;p;}' err | grep -o -E '[a-z]+\.[a-z_]+=[^ ]*')
ok "$([ "$setting" ] && holds err 'not given so far' && "$launch" -n 2 run.yaml fsdp.memory_limit=0.0019 $setting >log 2>err; echo $?)" \
    "a run with what is advised fits: $setting"
# What is offloaded to the host is the CPU's memory, too.
away="fsdp.offload=params fsdp.memory_limit=0.0019"
for arguments in "-n 2" "--check -n 2"; do
    "$launch" $arguments run.yaml $away >log 2>err
    ok "$([ $? != 0 ] && holds err 'memory'; echo $?)" "offloaded to the host, it does not: fsdp-launch $arguments"
done
"$launch" --dump-schedule -n 2 run.yaml $away >log
ok "$(holds log 'fsdp.memory_limit .* TOO LITTLE'; echo $?)" "which --dump-schedule shows"
for limit in 20 70; do
    run --model llama --seq 8192 --gpus 64 fsdp.memory_limit=$limit
    ok "$([ $? = $((limit == 20)) ] && holds log "fsdp.memory_limit, .*$limit.0 GiB  $([ $limit = 20 ] && echo TOO || echo fits)"; echo $?)" \
        "a plan is compared with fsdp.memory_limit: $limit"
done

# ---- search ----------------------------------------------------------------------------------------

run --model llama --seq 8192 --nodes 4 --search --keep-numerics
ok $? "search"
ok "$(holds log 'ruled out by bounds' && holds log '^  1 ' && ! holds log 'dtype=bfloat16|float8'; echo $?)" "keeps numerics"
ok "$(holds best.yaml 'FILL_IN' && holds best.yaml '^# .*planned to take'; echo $?)" "best.yaml says what it is"
"$launch" -n 2 --check best.yaml >log 2>err
ok "$([ $? = 2 ] && holds err "best.yaml:$(sed -n '/path: .*FILL_IN/=' best.yaml): data.path: FILL_IN"; echo $?)" \
    "fsdp-launch names the line that is to be filled in"
refused 'best.yaml exists' --model llama --seq 8192 --nodes 4 --search --keep-numerics
run run.yaml --gpu cpu --gpus 2 --node-size 2 --search -o tiny.yaml
ok "$([ $? = 0 ] && "$launch" -n 2 tiny.yaml checkpoint.path= log.metrics= >log 2>err; echo $?)" "a best.yaml of a run starts as it is"
run --model llama --seq 8192 --nodes 4 --search --keep-numerics --goal gpus -o gpus.yaml
ok "$(holds log '^  1 +[0-9]+ GPUs'; echo $?)" "the fewest GPUs"

# 70B on 8 GPUs: offloading keeps the numerics; where the host is too small for it, other arithmetic is advised, and it says so.
llama70() {
    run --model "$TOP/examples/llama-70b" --seq 4096 --gpus 8 --batch 32768 train.micro_batch_size=1 \
        fsdp.param_dtype=bfloat16 fsdp.activation_checkpointing=full "$@"
}
llama70 --advice always
ok "$(holds log 'makes it fit, and its time' && holds log 'fsdp.offload=optimizer' && ! holds log 'changes numerics|master=none|update_at'; echo $?)" \
    "what keeps the numerics is advised first, and alone"
llama70 fsdp.offload=optimizer fsdp.offload_gradients=true
ok "$([ $? = 0 ] && holds log '  gradient shards offloaded to the host +26[0-9]\.' && holds log '  offloaded gradient shards passing through' &&
    ! holds log '^  gradient shards [^o]'; echo $?)" "gradient shards in host memory"
step_of() { sed -n 's/^step  *\([0-9.]*\) s .*/\1/p' log; }
for memory in 45e9 100e9; do
    for where in device host auto; do
        llama70 fsdp.offload=optimizer fsdp.offload_gradients=true --what-if node.host_memory=$memory fsdp.offload_update=$where
        eval "$where=$(step_of) ${where}_told=$(grep -c 'updated on the host' log)"
    done
    # shellcheck disable=SC2154
    ok "$(awk "BEGIN { exit !($auto == ($device < $host ? $device : $host) && $device != $host) }" &&
        [ "$device_told" = 0 ] && [ "$host_told" = 1 ] && [ "$auto_told" = "$([ $memory = 45e9 ] && echo 0 || echo 1)" ]; echo $?)" \
        "$memory bytes/s of the host's memory for a rank: updated on the device $device s a step, on the host $host s, auto $auto s"
done
llama70 fsdp.offload=optimizer fsdp.offload_gradients=true --what-if node.host_memory=100e9 --json on_host.json
ok "$(python3 -c 'import json; assert json.load(open("on_host.json"))["run"]["updates_on_host"] is True' 2>&1; echo $?)" "the JSON says so"
llama70 fsdp.offload=optimizer fsdp.offload_gradients=true --what-if node.host_memory=100e9 --what-if node.host_gib=1053
ok "$([ $? = 0 ] && ! holds log 'updated on the host|TOO LITTLE'; echo $?)" "updates are not on a host that has no room for them"
llama70 fsdp.offload=optimizer fsdp.offload_gradients=true fsdp.offload_update=host --advice always
ok "$(holds log 'fsdp.offload_update=device$' && holds log 'updates on the host take'; echo $?)" \
    "where updates on the host are slower, the device is advised"
llama70 fsdp.offload=optimizer fsdp.offload_gradients=true fsdp.offload_update=host --search -o host.yaml
ok "$([ $? = 0 ] && ! holds log 'nothing fits' && ! holds host.yaml 'offload_update: host'; echo $?)" "a search leaves the host, too"
llama70 fsdp.offload=optimizer fsdp.offload_gradients=true --what-if node.host_memory=100e9 --search -o auto.yaml
ok "$([ $? = 0 ] && { ! holds auto.yaml 'offload_gradients: true' || holds auto.yaml 'offload_update: (host|device)'; }; echo $?)" \
    "it names what auto came to"
llama70 fsdp.offload=optimizer --what-if gpu.pcie=6e9 --advice always
ok "$(holds log 'fsdp.offload_gradients=true fsdp.offload_update=host$'; echo $?)" \
    "where copies are slow, updates on the host are advised"
llama70 --advice always --what-if node.host_gib=100
ok "$(holds log 'makes it fit, but changes numerics; nothing that keeps them is enough' &&
    holds log 'fsdp.update_at=reduce optim.clip_late=true .*optim.master=none'; echo $?)" "else what changes them, by that name"
settings=$(sed -n '/makes it fit, but/{n;p;}' log | grep -o -E '[a-z]+\.[a-z_]+=.*')
llama70 --what-if node.host_gib=100 $settings
ok $? "with which it fits: $settings"
llama70 --what-if node.host_gib=100 --search -o 70b.yaml
ok "$([ $? = 0 ] && holds log '^nothing fits without changing numerics' && holds 70b.yaml 'update_at: reduce'; echo $?)" "a search does the same"
llama70 --what-if node.host_gib=100 --search -o kept70b.yaml --keep-numerics
ok "$([ $? != 0 ] && holds log '^nothing fits\.' && ! holds log update_at; echo $?)" "but not with --keep-numerics"
llama70 --search -o late.yaml --keep-numerics optim.clip_grad_norm=0
ok "$([ $? = 0 ] && holds log 'update_at=reduce' && ! holds log 'clip_late|changing numerics'; echo $?)" \
    "without clipping, updates at the reduction keep them"

llama70 --advice always --what-if node.host_gib=100 --what-if node.nvme=24e9 --what-if node.nvme_gib=28000
ok "$(holds log 'makes it fit, and its time' && holds log 'fsdp.offload=optimizer fsdp.offload_dir=FILL_IN' && ! holds log 'changes numerics'; echo $?)" \
    "where the node has disks, they are advised before other arithmetic"
llama70 --what-if node.host_gib=100 --what-if node.nvme=24e9 --what-if node.nvme_gib=28000 --search -o disks.yaml
ok "$([ $? = 0 ] && holds disks.yaml 'offload_dir: FILL_IN' && holds disks.yaml '^# fsdp.offload_dir: name a folder' && ! holds log 'changing numerics'; echo $?)" "and searched"

# 10^12 parameters on 64 GPUs: within a GPU's memory, and a node's host memory and disks, of which each is a limit.
llama1t() {
    (cd "$TOP" && timeout -k 5 120 "$BIN/fsdp-plan" tests/plan/llama-1t/run.yaml --gpus 64 \
        --cluster tests/plan/llama-1t/cluster.yaml "$@") >log 2>err
}
llama1t --json -
ok "$([ $? = 0 ] && python3 - <<'PY'
import json
a = json.load(open("log"))
m, rows = a["memory"], {r["what"]: r for r in a["memory"]["rows"]}
assert 1e12 < a["run"]["parameters"] < 1.02e12 and a["run"]["gpus"] == 64 and a["run"]["nodes"] == 8, a["run"]
assert m["fits"] and m["planned_bytes"] + m["reserved_bytes"] < 80e9, m
assert not any("gradient shards" in w or "masters" in w or w.startswith("optimizer state") for w in rows), rows.keys()
assert m["node_host_limit_bytes"] < 2e12 and m["node_file_limit_bytes"] < 8 * 3.8e12 + 1e9, m
# 2 bytes a parameter in host memory, 12 in files, of an eighth of them.
assert abs(rows["parameters offloaded to the host"]["bytes"] * 64 / (2 * a["run"]["parameters"]) - 1) < 0.03, rows
# The inputs of 128 layers, of which two are on the GPU.
assert rows["activations offloaded to the host"]["bytes"] == 63 * rows["offloaded activations passing through"]["bytes"] == 126 * 2048 * 25600 * 2, rows
assert m["planned_bytes"] < 53 * 2**30, m
assert abs(m["node_file_bytes"] * 8 / (12 * a["run"]["parameters"]) - 1) < 0.03, m
PY
echo $?)" "10^12 parameters on 64 GPUs of 80 GB: parameters in host memory, the optimizer's state in files"
llama1t 'fsdp.wrap_classes=[LlamaDecoderLayer,LlamaMLP]' fsdp.forward_prefetch=0 fsdp.backward_prefetch=0
ok "$([ $? = 0 ] && holds log ', 257 units;'; echo $?)" "and with units below the layer"
llama1t --what-if node.host_gib=200
ok "$([ $? = 1 ] && holds log 'there is +200.0 GiB  TOO LITTLE'; echo $?)" "a host that is too small"
llama1t --what-if node.nvme_gib=1000
ok "$([ $? = 1 ] && holds log 'there is +1.0 TiB  TOO LITTLE'; echo $?)" "and disks"

# ---- refusals --------------------------------------------------------------------------------------

refused 'no run: give' --gpus 8
refused 'known are a100' run.yaml --gpu h10
refused 'such as 400Gbx8' run.yaml --net fast
refused 'multiple of --node-size' run.yaml --gpus 12
refused 'leave out one' run.yaml --gpus 16 --nodes 1
refused 'give one of them' run.yaml --model llama
refused 'section.key=value' run.yaml other.yaml
refused 'holds no config.json' --model .
refused 'missing.yaml' missing.yaml
refused 'not a number of tokens' run.yaml --tokens lots
refused 'set data.seq_len' run.yaml --seq 4096
refused 'sharding_strategy' run.yaml fsdp.sharding_strategy=FULL
cp run.yaml kept.yaml
ln -s run.yaml link.yaml
refused 'which the plan is made of' run.yaml --json run.yaml
refused 'which the plan is made of' run.yaml --trace link.yaml
refused 'which the plan is made of' run.yaml --search -o link.yaml --overwrite
refused 'are one file' run.yaml --json both.json --trace both.json
refused 'is a folder' run.yaml --json model
ok "$(cmp -s run.yaml kept.yaml; echo $?)" "and the run.yaml is as it was"
mkfifo pipe
cat pipe >piped &
run run.yaml --json pipe
wait $!
ok "$([ -p pipe ] && python3 -m json.tool piped >log 2>&1; echo $?)" "a pipe stays one, and gets the JSON"
run run.yaml --json no/such/folder.json
ok "$([ $? = 1 ] && holds err 'cannot write .no/such/folder.json'; echo $?)" "a file that cannot be written"

echo "1..$n"
exit $bad
