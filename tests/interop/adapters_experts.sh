#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Adapters on the weights of experts against PEFT's target_parameters: tiny models of families that store experts in
# different ways; gradients, ten steps of AdamW and the adapter after them, on one rank, on three and as 2 x 2 ranks of
# HYBRID_SHARD; merged models, and text from them. MIXTURES=all takes all families (make check-families).
# run: timeout=1800
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, peft'
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/adapters.sh"
families=${MIXTURES:-mixtral qwen3_moe gpt_oss granitemoe}
[ "$families" != all ] || families=$(python families mixtures)
all=$families

python families make $families >log 2>&1
ok $? "transformers saves a tiny model of each family"
# What PEFT makes of all-linear is of some families.
whole=$(echo $all | tr ' ' '\n' | grep -E 'mixtral|qwen3_moe|olmoe')
python adapters make all $whole >log 2>&1
ok $? "PEFT saves an adapter of all-linear: $(echo $whole)"
python adapters make experts,gate,down,router $families >log 2>&1
ok $? "PEFT saves adapters of each: of experts, routers and both"

merge experts merge
merge gate bf16 bfloat16
merge down merge
merge router merge
families=$whole
merge all merge
families=$all
# Experts are balanced among the rows that all ranks have at a time: all of the step.
run experts one 1 train.micro_batch_size=4
run experts three 3 train.micro_batch_size=2 fsdp.activation_checkpointing=full
families=$(echo $all | tr ' ' '\n' | grep -E 'mixtral|gpt_oss' || echo $all)
run gate three 3 train.micro_batch_size=2
run down hybrid 4 --nodes 2 fsdp.sharding_strategy=hybrid_shard
families=$whole
run all three 3 train.micro_batch_size=2
families=$all
run router three 3 train.micro_batch_size=2

# Text with the adapter is that of the merged model.
for family in $families; do
    fsdp-generate --model $family --adapter $family.experts.start --tokens 1,2,3 --logits >with 2>log &&
        fsdp-generate --model $family.experts.merge/merged --tokens 1,2,3 --logits >merged 2>log && cmp with merged
    ok $? "$family: fsdp-generate --adapter"
done
set -- $families
ckpt-merge --adapter $1.experts.start ${2:-$1} -o other/ >log 2>&1
ok "$([ $? = 1 ] && grep -q 'does not belong to' log; echo $?)" "an adapter of another model is refused"

# A new adapter begins as PEFT's.
cat >new.yaml <<END
model: {path: $1}
lora: {r: 8, alpha: 16, target_parameters: [mlp.experts.gate_up_proj, down_proj]}
data: {path: tokens.bin, format: u16, seq_len: 24}
train: {steps: 0}
checkpoint: {path: new}
END
fsdp-launch -n 2 new.yaml >log 2>&1
ok $? "$1: a new adapter"
later new $1 new/step-00000000/hf '#' its values
answers $checks

echo "1..$n"
exit $bad
