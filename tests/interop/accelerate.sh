#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What `accelerate config` itself writes, by default and as a person answers its questions, is said in our settings
# with no key unknown.
# run: timeout=600
. "$TOP/tests/lib/python.sh"
need_python accelerate
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
export HF_HOME=$PWD/home HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
known() { # file, settings that the result must print...
    local want
    "$launch" --from "$1" >got.yaml 2>err && ! grep -q "unknown keys" err || return 1
    "$launch" --print-config got.yaml >log 2>>err || return 1
    for want in "${@:2}"; do grep -q -x -F -- "  $want" log || { echo "no $want" >>err; return 1; }; done
}
for precision in no bf16 fp16; do
    "$PYTHON" -W ignore -m accelerate.commands.accelerate_cli config default --config_file "d-$precision.yaml" \
        --mixed_precision $precision >log 2>err </dev/null && known "d-$precision.yaml" || break
done
ok $? "accelerate config default"
grep -q -x "  param_dtype: float16" log
ok $? "with its precision"
deepspeed=
"$PYTHON" -c 'from importlib.metadata import version; version("deepspeed")' 2>/dev/null && deepspeed=yes
"$PYTHON" -W ignore "$TOP/tests/interop/accelerate_config.py" $deepspeed >log 2>err
ok $? "accelerate config takes answers in a terminal"
known fsdp1.yaml "sharding_strategy: SHARD_GRAD_OP" "param_dtype: bfloat16" "wrap_policy: transformer" \
    "wrap_classes: [LlamaDecoderLayer]" "activation_checkpointing: full" "backward_prefetch: 1" "offload: params"
ok $? "its answers for FSDP 1"
known fsdp2.yaml "sharding_strategy: FULL_SHARD" "reshard_after_forward: false" "wrap_policy: size" "min_num_params: 1000"
ok $? "its answers for FSDP 2"
if [ -n "$deepspeed" ]; then
    known zero.yaml "sharding_strategy: FULL_SHARD" "offload: optimizer" "clip_grad_norm: 0.5" "param_dtype: bfloat16"
    ok $? "its answers for DeepSpeed"
    known file.yaml "sharding_strategy: ZERO1" "global_batch_size: 16" "param_dtype: bfloat16"
    ok $? "its answers with a DeepSpeed file"
else
    ok 0 "its answers for DeepSpeed # SKIP no deepspeed here"
fi
echo "1..$n"
exit $bad
