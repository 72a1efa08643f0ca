#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Label smoothing, z-loss, documents with weights and the gradient noise scale, against torch.
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, safetensors'
. "$TOP/tests/lib/tap.sh"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
python() { "$TORCH_PYTHON" -W ignore "$TOP/tests/interop/habits.py" "$@"; }

python make >log 2>&1
ok $? "transformers saves a tiny model"
cat >run.yaml <<END
model: {path: llama}
data: {path: tokens.bin, format: u16, seq_len: 24}
train: {steps: 10, global_batch_size: 4, micro_batch_size: 1}
optim: {lr: 1.0e-3, betas: [0.9, 0.95], schedule: constant, weight_decay: 0, clip_grad_norm: 0}
fsdp: {timeout: 60}
END
train() { # metrics, ranks, settings
    local out=$1 ranks=$2
    shift 2
    "$BIN/fsdp-launch" -n "$ranks" run.yaml log.metrics="$out" "$@" >log 2>&1
    ok $? "$out: $ranks ranks"
}
train smooth.jsonl 2 train.label_smoothing=0.1 train.z_loss=1e-3
train weights.jsonl 3 data.path=weighted.jsonl data.format=jsonl data.seq_len=16 data.weight_key=importance
train noise.jsonl 2 log.noise_scale=1
cp noise.jsonl two.jsonl
train noise.jsonl 4 log.noise_scale=1 fsdp.sharding_strategy=NO_SHARD
cp noise.jsonl replicas.jsonl
train noise.jsonl 1 log.noise_scale=1
! grep -q noise_scale noise.jsonl
ok $? "a single rank has nothing to compare"
near() { paste <(grep -o '"noise_scale": [^,]*' two.jsonl) <(grep -o '"noise_scale": [^,]*' replicas.jsonl) |
    awk '{ d = $2 / $4 - 1; if (d * d > 1e-6) bad = 1 } END { exit bad || NR < 3 }'; }
near
ok $? "4 replicas find the same noise as 2 ranks with 2 micro-steps"
cp two.jsonl noise.jsonl
python check >checked 2>log || cat log
while IFS= read -r line; do
    case $line in
    'ok - '*) ok 0 "${line#ok - }" ;;
    'not ok - '*) ok 1 "${line#not ok - }" ;;
    *) echo "$line" ;;
    esac
done <checked
[ "$n" = 11 ]
ok $? "all are compared"
echo "1..$n"
exit $bad
