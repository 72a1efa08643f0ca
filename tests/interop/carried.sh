#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The text model of a gemma3 folder is trained; the tensors of its images are carried along unchanged: through a
# checkpoint of two ranks, one of 2 x 2 ranks of HYBRID_SHARD, and one of three that stopped before it was resumed, in
# fp32 and in bf16. The merged folder has every tensor that transformers saved, and loads there.
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, safetensors'
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
python() {
    "$PYTHON" -W ignore "$TOP/tests/interop/$1.py" "${@:2}"
}
python families make gemma3 >log 2>&1 && python carried bf16 gemma3 gemma3-bf16 >log 2>&1
ok $? "transformers saves a model of texts and images, in fp32 and in bf16"
cat >run.yaml <<'END'
model: {path: gemma3}
data: {path: tokens.bin, format: u16, seq_len: 24}
train: {steps: 2, global_batch_size: 4, micro_batch_size: 1}
optim: {lr: 1.0e-3, schedule: constant}
checkpoint: {path: ck}
END
merge() { # model, out
    local dtype=
    [ $1 = gemma3 ] || dtype='--dtype BF16'
    "$BIN/ckpt-merge" -q ck -o $2/ $dtype >log 2>&1
}
for model in gemma3 gemma3-bf16; do
    rm -rf ck
    run -n 2 run.yaml model.path=$model && ! holds err 'is not used' && merge $model $model.two
    ok $? "$model: two ranks train, and every tensor of the folder is used"
    run -n 4 --nodes 2 run.yaml model.path=$model fsdp.sharding_strategy=hybrid_shard train.steps=3 checkpoint.resume=auto &&
        run -n 3 run.yaml model.path=$model train.steps=5 checkpoint.resume=auto fsdp.param_dtype=bfloat16 &&
        merge $model $model.more
    ok $? "$model: it is resumed on 2 x 2 ranks, and on three in bf16"
done
python carried compare gemma3 gemma3.two gemma3.more gemma3-bf16 gemma3-bf16.two gemma3-bf16.more >compared 2>log
ok "$([ $? = 0 ] && [ "$(grep -c '50 tensors of images are the same, 41 of texts are not' compared)" = 4 ]; echo $?)" \
    "transformers loads the merged folders: $(cat compared)"
run -n 2 run.yaml model.path=gemma3.more checkpoint.path=again train.steps=0 fsdp.frozen=[*]
ok "$([ $? = 2 ] && holds err fsdp.frozen; echo $?)" "a model whose texts are all frozen is refused, whatever is carried: $(cat err)"
run -n 2 run.yaml model.path=gemma3.more checkpoint.path=again lora.r=4 'lora.targets=[q_proj]'
ok "$([ $? = 2 ] && holds err 'adapters of model_type gemma3 are not supported'; echo $?)" "adapters are refused: $(cat err)"
"$BIN/fsdp-generate" --model gemma3.more --tokens 1,2,3 --greedy --max-tokens 3 >log 2>err && ! holds err 'is not used'
ok $? "the merged folder generates"
echo "1..$n"
exit $bad
