# SPDX-License-Identifier: Apache-2.0
# adapters.sh: what tests of adapters against PEFT share; `.` it after python.sh and tap.sh. $families are those of a test,
# and $checks is the Python program that checks runs (tests/interop/adapters.py, unless a test sets it). $behind stands
# behind a family's name in the name of its model's folder. What is trained or merged is checked at the end (`answers
# $checks`), where a reference is trained once for all of its runs.
checks=adapters behind=
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PATH=$BIN:$PATH
python() {
    "$TORCH_PYTHON" -W ignore "$TOP/tests/interop/$1.py" "${@:2}"
}

# train KIND NAME RANKS OPTIONS... trains an adapter of each family.
train() {
    local kind=$1 name=$2 ranks=$3 family out
    shift 3
    for family in $families; do
        out=$family.$kind.$name
        mkdir -p $out
        cat >$out/run.yaml <<END
model: {path: $family$behind}
lora: {path: $family.$kind.start}
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

# As train, to be checked.
run() {
    train "$@"
    later check $1 $2 $families
}

# Merged, fp32 and bf16.
merge() {
    local kind=$1 name=$2 family out
    for family in $families; do
        out=$family.$kind.$name
        mkdir -p $out
        ckpt-merge -q ${3:+--dtype $3} $family -o $out/merged.base/ >log 2>&1 &&
            ckpt-merge -q --adapter $family.$kind.start $out/merged.base -o $out/merged/ >log 2>&1
        ok $? "$family, $kind: merged, $name"
    done
    later check $kind $name $families
}
