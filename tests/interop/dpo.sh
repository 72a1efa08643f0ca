#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Direct preference optimization against torch: losses, rewards and held-out losses, on several meshes and resumed.
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, safetensors'
. "$TOP/tests/lib/tap.sh"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
python() { "$TORCH_PYTHON" -W ignore "$TOP/tests/interop/dpo.py" "$@"; }

python make >log 2>&1
ok $? "pairs, and a tiny model"
cat >run.yaml <<END
model: {path: llama}
data: {path: pairs.jsonl, eval_path: held-out.jsonl, format: jsonl, seq_len: 18}
train: {objective: dpo, dpo_beta: 0.3, steps: 10, global_batch_size: 5, eval_interval: 1}
optim: {lr: 1.0e-3, betas: [0.9, 0.95], schedule: constant, weight_decay: 0, clip_grad_norm: 0}
fsdp: {timeout: 60}
END
train() { # metrics, ranks, settings
    local out=$1 ranks=$2
    shift 2
    "$BIN/fsdp-launch" -n "$ranks" run.yaml log.metrics="$out.metrics" "$@" >log 2>&1
    ok $? "$out: $ranks ranks"
}
train one 1
train three 3 train.micro_batch_size=1 fsdp.activation_checkpointing=full
train hybrid 4 --nodes 2 fsdp.sharding_strategy=HYBRID_SHARD train.micro_batch_size=2
train smooth 2 train.dpo_label_smoothing=0.2 train.micro_batch_size=3
train parts 3 checkpoint.path=ck train.steps=4
train parts 2 checkpoint.path=ck
compared=12
if has_python 'datasets, trl'; then
    python trl >log 2>&1
    ok $? "TRL trains on the pairs"
    train trl-run 2 data.path=trl-pairs.jsonl data.eval_path= train.eval_interval=0 data.seq_len=20
    compared=15
else
    echo "# TRL is not installed, and not compared with"
fi
python check >checked 2>log || cat log
while IFS= read -r line; do
    case $line in
    'ok - '*) ok 0 "${line#ok - }" ;;
    'not ok - '*) ok 1 "${line#not ok - }" ;;
    *) echo "$line" ;;
    esac
done <checked
[ "$n" = $compared ]
ok $? "all are compared"
echo "1..$n"
exit $bad
