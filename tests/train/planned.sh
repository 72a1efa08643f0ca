#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What fsdp-launch --dump-schedule prints is what a run does: the hash of the plan, which covers the list,
# and the table of memory, for the examples that begin with random weights (dpo.yaml does not).
# run: timeout=600
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"

make_input 300
awk '{ printf "{\"text\": \"%s\"}\n", $0 }' text >text.jsonl
here=$PWD
declare -A settings=(
    [llama-tiny]=""
    [demo]="data.path=$here/text data.eval_path= log.html="
    [text]="model.path=examples/llama-2m data.path=$here/text.jsonl data.eval_path= data.cache=$here/cache"
)

# The hash, then rows of memory as NAME NBYTES, of a run's log or of a plan.
hash_of() { sed -nE 's/^ *plan  *([0-9a-f]{16})$/\1/p' "$1" | head -n 1; }
memory_of() {
    sed -nE '/memory of (a rank|rank 0), planned/,$p' "$1" | tail -n +2 | grep -E '^  .* [0-9.]+ ([KMGT]i)?B$' |
        sed -E 's/^ *//; s/  +/ /g'
}

same_plan() { # text, ranks, example or file, settings...
    local what=$1 nranks=$2 config=$3
    shift 3
    (cd "$TOP" && "$launch" -v -n "$nranks" "$config" checkpoint.path= log.metrics= train.steps=1 \
        train.eval_interval=0 fsdp.device=cpu "$@") >run.log 2>run.err
    (cd "$TOP" && "$launch" -n "$nranks" --dump-schedule "$config" checkpoint.path= log.metrics= \
        train.steps=1 train.eval_interval=0 fsdp.device=cpu "$@") >plan.log 2>plan.err
    [ -n "$(hash_of run.log)" ] && [ "$(hash_of run.log)" = "$(hash_of plan.log)" ] &&
        [ "$(memory_of run.log | wc -l)" -gt 5 ] && cmp -s <(memory_of run.log) <(memory_of plan.log)
    ok $? "$what on $nranks ranks" || {
        tail -n 3 run.err plan.err
        diff <(memory_of run.log) <(memory_of plan.log)
    } | sed 's/^/# /'
}

for example in "$TOP"/examples/*.yaml; do
    name=$(basename "$example" .yaml)
    [ "$name" = dpo ] && continue # needs weights
    [ -n "${settings[$name]+there}" ]
    ok $? "this test knows $name"
    for nranks in 1 2 4; do
        # shellcheck disable=SC2086
        same_plan "$name" $nranks "$example" ${settings[$name]}
    done
done
tiny=$TOP/examples/llama-tiny.yaml
same_plan 'types of 16 bits, logits in 32' 2 "$tiny" fsdp.param_dtype=bfloat16 fsdp.output_dtype=float32 train.threads=3
same_plan 'offloaded' 2 "$tiny" fsdp.offload=params fsdp.param_dtype=bfloat16 optim.moment_dtype=bfloat16

# Which device it is planned for.
plan_for() { (cd "$TOP" && "$launch" -n 2 --dump-schedule examples/llama-tiny.yaml fsdp.param_dtype=bfloat16 "$@"); }
plan_for fsdp.device=cpu >cpu.log
holds cpu.log 'planned for device cpu, with '
ok $? 'the device cpu is named'
plan_for fsdp.device=cuda >cuda.log
holds cuda.log 'planned for device cuda, which is described' && [ "$(memory_of cpu.log)" != "$(memory_of cuda.log)" ]
ok $? 'a GPU that is not here is planned for, with the memory of its operators'

# 70 x 10^9 parameters on 8 GPUs of 80 GB: the state takes 6 bytes of each, and a rank 75 GB in all.
cat >70b.yaml <<END
model: {path: $TOP/examples/llama-70b, init: random}
data: {path: text, seq_len: 4096}
train: {steps: 1, global_batch_size: 8, micro_batch_size: 1}
optim: {master: none, moment_dtype: bfloat16, clip_late: true}
fsdp: {device: cuda, param_dtype: bfloat16, reduce_dtype: bfloat16, update_at: reduce, activation_checkpointing: full}
END
"$launch" -n 8 --dump-schedule 70b.yaml >70b.log 2>70b.err
memory_of 70b.log | awk '
    $NF != "GiB" {next}
    /^in all/ {all = $(NF - 1)}
    /without masters|^optimizer state/ {state += $(NF - 1)}
    /gradient shards/ {state += $(NF - 1)}
    END {each = state * 1073741824 * 8 / 70553706496
        print "# " each " bytes a parameter, " all " GiB in all"
        exit !(each > 5.95 && each < 6.05 && all > 0 && all * 1.073741824 < 75)}'
ok $? '70B on 8 GPUs: 6 bytes a parameter of state, 75 GB in all' || tail -n 3 70b.err | sed 's/^/# /'
echo "1..$n"
exit $bad
