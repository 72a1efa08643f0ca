#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The plan next to real runs on this machine's CPUs, as a page; nothing here is a test.
#
#   scripts/bench_plan.sh [PAGE.md]     default docs/results/plan-cpu.md; some 10 minutes
#
# For each configuration: sweeps (bench_real measure), the run (fsdp-launch --trace), sweeps again,
# all within about half a minute, because other work on the machine changes what a core gives. The
# step is the median of the run's traced steps, the plan the mean of those under both sets of
# tables. Run it as root to be before other processes (nice -20), or alone.
set -u
TOP=$(cd "$(dirname "$0")/.." && pwd)
BIN=${BIN:-$TOP/build/bin}
page=${1:-$TOP/docs/results/plan-cpu.md}
work=$(mktemp -d "${TMPDIR:-/var/tmp}/fsdp-bench.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
launch=$BIN/fsdp-launch real=$BIN/tests/plan/bench_real
first="nice -n -20"
$first true 2>/dev/null || first=
export NO_GRID=1

model() { # name, width, MLP, layers, heads
    mkdir "$1"
    cat >"$1/config.json" <<END
{"model_type": "llama", "vocab_size": 256, "hidden_size": $2, "intermediate_size": $3,
 "num_hidden_layers": $4, "num_attention_heads": $5, "num_key_value_heads": $5,
 "hidden_act": "silu", "max_position_embeddings": 512, "initializer_range": 0.02,
 "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true}
END
    cat >"$1.yaml" <<END
model: {path: $1, init: random, seed: 1}
data: {path: text, format: text, layout: stream, seq_len: 256}
train: {steps: 12, global_batch_size: 8, micro_batch_size: 2, seed: 1}
optim: {name: adamw, lr: 1.0e-4}
fsdp: {timeout: 120}
log: {trace_steps: 9}
END
}
model 0.2M 64 176 4 2
model 2M 192 512 5 6
model 8M 320 864 6 5
model 29M 512 1376 9 8
awk 'BEGIN {srand(1); for (i = 0; i < 40000; i++) {for (k = 0; k < 12; k++) printf "%s ", rand(); print ""}}' |
    tr '0-9.' 'a-k' >text

# KiB: the greatest proportional size that the ranks of a run have on average; pages that they share count in parts.
peak_pss() { # pid of fsdp-launch, ranks
    local most=0 now
    while kill -0 "$1" 2>/dev/null; do
        now=$(cat $(pgrep -P "$1" | sed 's|.*|/proc/&/smaps_rollup|') 2>/dev/null </dev/null | awk -v n="$2" '/^Pss:/ {s += $2} END {printf "%.0f", s / n}')
        [ "${now:-0}" -gt "$most" ] && most=$now
        sleep 0.05
    done
    echo "$most"
}
word() { awk -v key="$1" '{for (i = 1; i < NF; i++) if ($i == key) print $(i + 1)}' "$2"; }

rows=()
one() { # what, model, ranks, overrides
    local what=$1 run=$2.yaml n=$3
    shift 3
    mkdir -p before after
    $first "$launch" -n "$n" -- "$real" measure "$run" before "$@" 2>err || { cat err; return; }
    $first "$launch" -n "$n" --trace=run.json "$run" "$@" >log 2>err || { cat err; return; }
    $first "$launch" -n "$n" -- "$real" measure "$run" after "$@" 2>err || { cat err; return; }
    "$real" plan "$run" "$n" before plan.json "$@" >planned || return
    "$real" plan "$run" "$n" after plan.json "$@" >planned2 || return
    "$real" against plan.json run.json "$(word step_s planned)" >against || return
    local step planned memory said peak
    step=$(awk '$1 == "step" {print $3 / 1e3}' against)
    planned=$(cat planned planned2 | awk '{s += $2} END {print s / NR}')
    memory=$(word memory planned)
    said=$(sed -n 's/^ *memory *\([0-9.]*\) MiB a rank.*/\1/p' log err | head -1)
    "$launch" -n "$n" "$run" train.steps=12 "$@" >/dev/null 2>&1 &
    peak=$(peak_pss $! "$n")
    rows+=("$what|$n|$planned|$step|$memory|${said:-0}|${peak:-0}")
    echo "$what, $n ranks: planned $planned s, real $step s; $(uptime | sed 's/.*load/load/')" >&2
    [ -z "${KEEP:-}" ] || { mkdir -p "$KEEP" && cp against "$KEEP/$what-$n.txt"; }
}

shard=fsdp.sharding_strategy
began=$(uptime | sed 's/.*load/load/')
one '0.2M' 0.2M 2 $shard=FULL_SHARD
one '0.2M' 0.2M 4 $shard=FULL_SHARD
one '2M, one rank' 2M 1 $shard=NO_SHARD
one '2M' 2M 2 $shard=FULL_SHARD
one '2M, SHARD_GRAD_OP' 2M 2 $shard=SHARD_GRAD_OP
one '2M, NO_SHARD' 2M 2 $shard=NO_SHARD
one '2M, HYBRID_SHARD 2 x 2' 2M 4 $shard=HYBRID_SHARD fsdp.shard_size=2
one '2M, accumulation 4' 2M 2 $shard=FULL_SHARD train.global_batch_size=16
one '2M, recomputed' 2M 2 $shard=FULL_SHARD fsdp.activation_checkpointing=full
one '2M, bf16' 2M 2 $shard=FULL_SHARD fsdp.param_dtype=bfloat16
one '8M' 8M 3 $shard=FULL_SHARD train.global_batch_size=6
one '8M, SHARD_GRAD_OP' 8M 4 $shard=SHARD_GRAD_OP
one '29M' 29M 2 $shard=FULL_SHARD train.global_batch_size=4 train.micro_batch_size=1
ended=$(uptime | sed 's/.*load/load/')

{
    cat <<END
# The plan next to real runs on CPUs

Written by \`make bench-plan\` ($(date -u +%Y-%m-%d)): sweeps of a configuration's own shapes, the run, sweeps again; the
plan is the mean of both, the step the median of a run's traced steps. Machine: $(nproc) cores,
$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1). At the beginning: ${began}; at the end: $ended.
4 ranks and 3 ranks share the $(nproc) cores. Memory: \`planned\` is the plan's, \`said\` what the run reports at its
start, \`peak\` a rank's greatest proportional size (Pss) in another run, where pages that ranks share count
in parts. It has in it what a process takes before it trains (\`base\`: the least of peak less planned over the rows,
taken for all of them).

| run | ranks | planned, ms | real, ms | error | planned, MiB | said, MiB | peak, MiB | error of planned + base |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
END
    printf '%s\n' "${rows[@]}" | awk -F'|' '
    {what[NR] = $1; n[NR] = $2; p[NR] = $3; r[NR] = $4; m[NR] = $5 / 1048576; s[NR] = $6; k[NR] = $7 / 1024
     if (k[NR] > 0 && (!base || k[NR] - m[NR] < base)) base = k[NR] - m[NR]}
    function abs(x) {return x < 0 ? -x : x}
    END {for (i = 1; i <= NR; i++) {
            e = 100 * (p[i] / r[i] - 1); all[i] = abs(e)
            g = k[i] > 0 ? 100 * ((m[i] + base) / k[i] - 1) : 0; mem[i] = abs(g)
            printf "| %s | %d | %.1f | %.1f | %+.1f %% | %.1f | %.1f | %.1f | %+.1f %% |\n", what[i], n[i], p[i] * 1e3, r[i] * 1e3, e, m[i], s[i], k[i], g}
        for (i = 2; i <= NR; i++) for (j = i; j > 1 && all[j] < all[j - 1]; j--) {t = all[j]; all[j] = all[j - 1]; all[j - 1] = t}
        for (i = 2; i <= NR; i++) for (j = i; j > 1 && mem[j] < mem[j - 1]; j--) {t = mem[j]; mem[j] = mem[j - 1]; mem[j - 1] = t}
        med = NR % 2 ? all[(NR + 1) / 2] : (all[NR / 2] + all[NR / 2 + 1]) / 2
        printf "\nSteps: median error %.1f %%, largest %.1f %%. Memory: largest error against the peak %.1f %%; base: %.1f MiB.\n", med, all[NR], mem[NR], base}'
} >"$page"
tail -2 "$page" >&2
