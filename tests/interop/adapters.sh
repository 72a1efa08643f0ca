#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Adapters against PEFT: tiny models of families that store linear maps in different ways. Gradients, ten steps of AdamW
# and the adapter after them, on one rank, on three, as 2 x 2 ranks of HYBRID_SHARD, and with activation checkpointing.
# ADAPTERS="qwen3 phi3" chooses others than llama, phi3, gpt2 and gpt_neox; ADAPTERS=all takes all (make check-families).
# run: long
# run: timeout=1800
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, peft'
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/adapters.sh"
families=${ADAPTERS:-llama phi3 gpt2 gpt_neox}
[ "$families" != all ] || families=$(python adapters families)
kinds='lora rslora dora save ranks'

python families make $families >log 2>&1
ok $? "transformers saves a tiny model of each family"
python adapters make ${kinds// /,} $families >log 2>&1
ok $? "PEFT saves adapters of each: $kinds"

merge lora merge
merge rslora bf16 bfloat16
merge dora bf16 bfloat16
merge save merge
merge ranks merge
set -- $families
ckpt-merge -q --adapter $1.lora.start --adapter $1.rslora.start=-0.5 $1 -o two/ >log 2>&1
ok $? "$1: two adapters, with weights"
later two $1 two '#' PEFT makes the same of them
ckpt-merge --adapter $1.lora.start ${2:-$1} -o other/ >log 2>&1
ok "$([ $? = 1 ] && grep -q 'does not belong to' log; echo $?)" "an adapter of another model is refused"

later tied '#' why an adapter of a tied head is refused: PEFT merges another model than it trained

run lora one 1
run lora three 3
run lora hybrid 4 --nodes 2 fsdp.sharding_strategy=hybrid_shard
families=$(echo $families | tr ' ' '\n' | grep -E 'llama|phi3|gpt2|gpt_neox' || echo $families)
run rslora three 3
run dora three 3
run save three 3
run ranks three 3
run lora full 2 fsdp.activation_checkpointing=full
run lora grad_op 2 fsdp.sharding_strategy=SHARD_GRAD_OP fsdp.activation_checkpointing=selective

# With the dropout of the run.
set -- $families
head -c 50 tokens.bin >row.bin
for kind in lora dora; do
    cat >row.yaml <<END
model: {path: $1}
lora: {path: $1.$kind.start, dropout: 0.25}
data: {path: row.bin, format: u16, seq_len: 24}
train: {steps: 10, global_batch_size: 1}
optim: {lr: 1e-3, betas: [0.9, 0.95], schedule: constant, weight_decay: 0, clip_grad_norm: 0}
checkpoint: {path: row.$kind/ck}
log: {metrics: row.$kind/metrics.jsonl}
END
    mkdir row.$kind
    fsdp-launch row.yaml >log 2>&1
    ok $? "$1, $kind: dropout"
done
later dropped $1 0.25 lora dora '#' "it is PEFT's, with the same masks"

# A new adapter begins as PEFT's.
cat >new.yaml <<END
model: {path: $1}
lora: {r: 8, alpha: 16, dora: true}
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
