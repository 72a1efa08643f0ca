#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Adapters, with magnitudes (DoRA) and without, on a model in NF4 against bitsandbytes and PEFT: gradients, ten steps of AdamW and the adapter after them, on
# one rank, on three and as 2 x 2 ranks of HYBRID_SHARD; and on a model that bitsandbytes has quantized.
# run: long
# run: timeout=900
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, peft, bitsandbytes'
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/adapters.sh"
checks=qlora
# Not phi3: of rows of 48 elements bitsandbytes 0.50.2 decodes wrong values on CPUs with AVX-512.
families='llama gpt_neox'

python qlora make $families >log 2>&1
ok $? "transformers saves models and quantizes them, and PEFT makes adapters"

packed() { behind=.nf4 train "$@"; } # of the model that bitsandbytes has quantized

train lora one 1 lora.base=nf4
train lora three 3 lora.base=nf4
train lora hybrid 4 --nodes 2 lora.base=nf4 fsdp.sharding_strategy=hybrid_shard fsdp.activation_checkpointing=full
losses() { sed -n 's/.*"loss": \([0-9.]*\).*/\1/p' "$1"; }
alike() { [ "$(losses "$1" | wc -l)" = 10 ] && [ "$(losses "$1")" = "$(losses "$2")" ]; }
packed lora packed 3 lora.base=nf4
for family in $families; do
    alike $family.lora.three/metrics.jsonl $family.lora.packed/metrics.jsonl
    ok $? "$family: bitsandbytes' own codes give the same losses, to the last digit"
done
# Decoded, with an adapter and without, where the adapter was trained.
for family in $families; do
    ckpt-merge -q $family.nf4 -o $family.full/ >log 2>&1 &&
        ckpt-merge -q --adapter $family.lora.packed/adamw $family.nf4 -o $family.merged/ >log 2>&1 &&
        fsdp-generate --model $family.merged --tokens 1,2,3 --logits >a 2>log &&
        fsdp-generate --model $family.nf4 --adapter $family.lora.packed/adamw --tokens 1,2,3 --logits >b 2>log
    ok "$([ $? = 0 ] && [ -s a ] && cmp -s a b; echo $?)" "$family: decoded, and an adapter merged into it"
done

train dora one 1 lora.base=nf4
train dora three 3 lora.base=nf4 fsdp.activation_checkpointing=full
packed dora packed 3 lora.base=nf4 fsdp.activation_checkpointing=full
for family in $families; do
    alike $family.dora.three/metrics.jsonl $family.dora.packed/metrics.jsonl
    ok $? "$family: with magnitudes likewise"
    fsdp-launch -n 2 $family.dora.three/run.yaml lora.path= lora.r=3 lora.dora=true lora.base=nf4 train.steps=0 checkpoint.path=$family.new \
        >log 2>&1
    ok $? "$family: a new adapter"
    later new $family $family.new/step-00000000/hf '#' "$family: its magnitudes begin as PEFT's do on bitsandbytes' layers"
done

for family in $families; do # what a checkpoint says of its base
    grep -o '"[^"]*\.weight\.nested_offset"' $family.lora.packed/ck/step-00000001/manifest.json | tr -d '"' |
        sed 's/\.nested_offset$//' >$family.linears
done
later check lora one,three,hybrid $families
later check dora one,three $families
answers $checks
ok "$([ "$(grep -c '^ok' answers)" = 40 ]; echo $?)" "which is each of them"

echo "1..$n"
exit $bad
