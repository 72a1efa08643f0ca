#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every decoder family against transformers and torch: tiny models with odd sizes and all traits of the family; logits,
# gradients, ten steps of AdamW and the merged folder, on one rank, on three, and as 2 x 2 ranks of HYBRID_SHARD.
# Packed documents, bf16 and activation checkpointing have runs of two ranks. FAMILIES="qwen3 phi3" chooses some;
# SHARDED_FAMILIES="llama" chooses whose runs of several ranks are made.
# Some go to torch's distributed checkpoints and come from there; with DCP_FAMILIES=all (make check-families) all do.
# run: long
# run: timeout=900
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, safetensors'
. "$TOP/tests/lib/tap.sh"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PATH=$BIN:$PATH
python() {
    "$TORCH_PYTHON" -W ignore "$TOP/tests/interop/families.py" "$@"
}
families=${FAMILIES:-$(python list)}
# Those of the families that are among the arguments, too.
chosen() {
    local family
    for family in $families; do
        [[ " $* " = *" $family "* ]] && echo $family
    done
}
dcp=$(chosen llama mixtral gemma3 gpt_oss)
[ "${DCP_FAMILIES:-}" != all ] || dcp=$families
tokens=0,1,66,17,42,42,9,5,30,3,61,7,8,2

python make $families >log 2>&1
ok $? "transformers saves a tiny model of each family"

# run NAME RANKS OPTIONS... trains each family.
run() {
    local name=$1 ranks=$2 family out
    shift 2
    for family in $families; do
        out=$family.$name
        mkdir -p $out
        cat >$out/run.yaml <<END
model: {path: $family}
data: {path: tokens.bin, format: u16, seq_len: 24}
train: {steps: 1, global_batch_size: 4, micro_batch_size: 1}
optim: {name: sgd, lr: 64, schedule: constant, weight_decay: 0, clip_grad_norm: 0}
checkpoint: {path: $out/ck}
END
        fsdp-launch -n $ranks $out/run.yaml "$@" >log 2>&1 && ckpt-merge -q $out/ck -o $out/sgd/ >>log 2>&1 &&
            fsdp-launch -n $ranks $out/run.yaml train.steps=10 optim.name=adamw optim.lr=1e-3 'optim.betas=[0.9,0.95]' \
                checkpoint.path= log.metrics=$out/metrics.jsonl "$@" >log 2>&1
        ok $? "$family: $name"
    done
}

for family in $families; do
    mkdir -p $family.one
    fsdp-generate --model $family --tokens $tokens --logits >$family.one/logits 2>log
    ok $? "$family: logits"
    most=24
    [ $family = phi3 ] && most=2
    fsdp-generate --model $family --tokens $tokens --greedy --ignore-eos --max-tokens $most >$family.one/tokens 2>log
    ok $? "$family: tokens"
done
run one 1
python dcp $dcp >log 2>&1
ok $? "torch saves distributed checkpoints"
for family in $dcp; do
    ckpt-reshard -q $family.one/ck -o $family.one/dcp --format dcp --world 2 >log 2>&1 &&
        ckpt-reshard -q $family.torch -o $family.native --world 3 >>log 2>&1 &&
        ckpt-merge -q $family.native -o $family.one/back.safetensors >>log 2>&1
    ok $? "$family: to torch's distributed checkpoints, and from one"
done
later check one $families
families=$(chosen ${SHARDED_FAMILIES:-$families})
# Experts are balanced among the rows that all ranks have at a time: a row on one rank, else all of the step.
run three 3 train.micro_batch_size=2
later check three $families
run hybrid 4 --nodes 2 fsdp.sharding_strategy=hybrid_shard
later check hybrid $families
# Losses alone.
losses() {
    local name=$1 ranks=$2 family out
    shift 2
    for family in $families; do
        out=$family.$name
        mkdir -p $out
        cat >$out/run.yaml <<END
model: {path: $family}
data: {path: tokens.bin, format: u16, seq_len: 24}
train: {steps: 10, global_batch_size: 4, micro_batch_size: 1}
optim: {lr: 1.0e-3, betas: [0.9, 0.95], schedule: constant, weight_decay: 0, clip_grad_norm: 0}
log: {metrics: $out/metrics.jsonl}
END
        fsdp-launch -n $ranks $out/run.yaml "$@" >log 2>&1
        ok $? "$family: $name"
    done
}
losses packed 2 train.micro_batch_size=2 data.path=documents.jsonl data.format=jsonl data.layout=rows data.seq_len=16
later check packed $families
losses bf16 2 train.micro_batch_size=2 fsdp.param_dtype=bfloat16
later check bf16 $families
run checkpointing 2 train.micro_batch_size=2 fsdp.activation_checkpointing=full
later check checkpointing $families
run selective 2 train.micro_batch_size=2 fsdp.activation_checkpointing=selective
later check selective $families
# Of mixtures: the z-loss of routers, on one rank and on three.
families=$(chosen $(python mixtures))
losses router-one 1 train.micro_batch_size=4 train.router_z_loss=0.02
later check router-one $families
run router 3 train.micro_batch_size=2 train.router_z_loss=0.02
later check router $families
answers families
echo "1..$n"
exit $bad
