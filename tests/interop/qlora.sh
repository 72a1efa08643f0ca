#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Adapters, with magnitudes (DoRA) and without, on a model in NF4 against bitsandbytes and PEFT: gradients, ten steps of AdamW and the adapter after them, on
# one rank, on three and as 2 x 2 ranks of HYBRID_SHARD; and on a model that bitsandbytes has quantized.
# run: timeout=900
if ! "${TORCH_PYTHON:-python3}" -c 'import torch, transformers, peft, bitsandbytes' 2>/dev/null; then
    echo "1..0 # SKIP no Python with torch, transformers, PEFT and bitsandbytes (set TORCH_PYTHON)"
    exit 0
fi
. "$TOP/tests/lib/tap.sh"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PATH=$BIN:$PATH
python() {
    "$TORCH_PYTHON" -W ignore "$TOP/tests/interop/$1.py" "${@:2}"
}
# Not phi3: of rows of 48 elements bitsandbytes 0.50.2 decodes wrong values on CPUs with AVX-512.
families='llama gpt_neox'

python qlora make $families >log 2>&1
ok $? "transformers saves models and quantizes them, and PEFT makes adapters"

# run KIND NAME RANKS FOLDER OPTIONS... trains an adapter of each family; FOLDER is behind the family's name.
run() {
    local kind=$1 name=$2 ranks=$3 folder=$4 family out
    shift 4
    for family in $families; do
        out=$family.$kind.$name
        mkdir -p $out
        cat >$out/run.yaml <<END
model: {path: $family$folder}
lora: {path: $family.$kind.start, base: nf4}
data: {path: tokens.bin, format: u16, seq_len: 24}
train: {steps: 1, global_batch_size: 4, micro_batch_size: 1}
optim: {name: sgd, momentum: 0, lr: 64, schedule: constant, weight_decay: 0, clip_grad_norm: 0}
checkpoint: {path: $out/ck}
END
        fsdp-launch -n $ranks $out/run.yaml "$@" >log 2>&1 &&
            fsdp-launch -n $ranks $out/run.yaml train.steps=10 optim.name=adamw optim.lr=1e-3 'optim.betas=[0.9,0.95]' \
                checkpoint.path=$out/ck10 log.metrics=$out/metrics.jsonl "$@" >log 2>&1
        ok $? "$family, $kind: $name"
        ln -s ck/step-00000001/hf $out/sgd
        ln -s ck10/step-00000010/hf $out/adamw
    done
}

run lora one 1 ''
run lora three 3 ''
run lora hybrid 4 '' --nodes 2 fsdp.sharding_strategy=hybrid_shard fsdp.activation_checkpointing=full
losses() { sed -n 's/.*"loss": \([0-9.]*\).*/\1/p' "$1"; }
alike() { [ "$(losses "$1" | wc -l)" = 10 ] && [ "$(losses "$1")" = "$(losses "$2")" ]; }
run lora packed 3 .nf4
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

run dora one 1 ''
run dora three 3 '' fsdp.activation_checkpointing=full
run dora packed 3 .nf4 fsdp.activation_checkpointing=full
for family in $families; do
    alike $family.dora.three/metrics.jsonl $family.dora.packed/metrics.jsonl
    ok $? "$family: with magnitudes likewise"
    fsdp-launch -n 2 $family.dora.three/run.yaml lora.path= lora.r=3 lora.dora=true train.steps=0 checkpoint.path=$family.new \
        >log 2>&1 && python qlora new $family $family.new/step-00000000/hf >log 2>&1
    ok $? "$family: magnitudes begin as PEFT's do on bitsandbytes' layers"
done

for family in $families; do # what a checkpoint says of its base
    grep -o '"[^"]*\.weight\.nested_offset"' $family.lora.packed/ck/step-00000001/manifest.json | tr -d '"' |
        sed 's/\.nested_offset$//' >$family.linears
done
{
    python qlora check lora one,three,hybrid $families &&
        python qlora check dora one,three $families
} >checked 2>log || cat log
while IFS= read -r line; do # its own TAP lines are counted with the others
    case $line in
    'ok - '*) ok 0 "${line#ok - }" ;;
    'not ok - '*) ok 1 "${line#not ok - }" ;;
    *) echo "$line" ;;
    esac
done <checked
ok "$([ "$(grep -c '^ok' checked)" = 38 ]; echo $?)" "all of them were checked"

echo "1..$n"
exit $bad
