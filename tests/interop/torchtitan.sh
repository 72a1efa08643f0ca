#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# --map torchtitan-to-hf on checkpoints that torchtitan.py lays out in torchtitan's names (a script, not torchtitan): Llama,
# Qwen3 and its mixture of experts become what transformers saved, to the bit, and the moments with them.
# run: timeout=300
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, safetensors'
cd "$TEST_TMP" || exit 1
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PATH=$BIN:$PATH
. "$TOP/tests/lib/tap.sh"
same() { # tensors, a, b, options...
    ckpt-diff "${@:2}" >out 2>>err && grep -q "^$1 tensors are the same, 0 near, 0 different" out
}
count() { case $1 in llama) echo 21 ;; qwen3) echo 25 ;; qwen3_moe) echo 39 ;; esac }

"$TORCH_PYTHON" -W ignore "$TOP/tests/interop/torchtitan.py" "$PWD" >log 2>&1
ok $? "torch saves three models in torchtitan's names: $(tail -n 1 log)"
for model in llama qwen3 qwen3_moe; do
    many=$(count $model)
    for kind in titan titan2025; do
        ckpt-merge $model/$kind/step-7 -o $model/$kind-merged --map torchtitan-to-hf --config $model/hf >log 2>err &&
            same "$many" $model/$kind-merged $model/hf && cmp -s $model/$kind-merged/config.json $model/hf/config.json
        ok $? "$model, $kind: weights alone: $(tail -n 1 log)"
    done
    ckpt-merge $model/titan/step-7 -o $model/all.safetensors --all --map torchtitan-to-hf --heads 4x2 -q 2>err &&
        same "$many" $model/all.safetensors $model/hf --exclude 'optimizer.*' &&
        [ "$(ckpt-info -a $model/all.safetensors | grep -c '^optimizer.state.model.layers.0.self_attn.q_proj.weight.exp_avg')" = 2 ] &&
        ! ckpt-info -a $model/all.safetensors | grep -q 'state\.layers'
    ok $? "$model: --all renames the moments, in the optimizer's container: $(tail -n 1 err)"
    ckpt-reshard $model/titan/step-7 -o $model/native --world 3 --map torchtitan-to-hf --heads 4x2 -q 2>err && ckpt-verify $model/native >log 2>&1 &&
        same "$many" $model/native $model/hf --model &&
        same $((2 * many)) $model/native $model/optim.safetensors --include 'state.*' --exclude '*.step'
    ok $? "$model: resharded, with all moments in the same order of rows: $(tail -n 1 out)"
done
for model in llama qwen3; do
    ckpt-merge $model/hf -o $model/back --map hf-to-torchtitan -q 2>err && ckpt-merge $model/back -o $model/again --map torchtitan-to-hf -q 2>>err &&
        same "$(count $model)" $model/again $model/hf &&
        same "$(count $model)" $model/back $model/titan2025/step-7 --model
    ok $? "$model: and back into torchtitan's names: $(tail -n 1 out)"
done
! ckpt-merge qwen3_moe/hf -o never --map hf-to-torchtitan 2>err && grep -q 'which hf-to-torchtitan does not join' err
ok $? "experts are not joined: $(tail -n 1 err)"

"$TORCH_PYTHON" -W ignore -c "
import sys, torch, transformers
for kind in ('llama', 'qwen3', 'qwen3_moe'):
    a, info = transformers.AutoModelForCausalLM.from_pretrained(kind + '/titan-merged', output_loading_info=True)
    b = transformers.AutoModelForCausalLM.from_pretrained(kind + '/hf')
    assert not info['missing_keys'] and not info['unexpected_keys'], info
    ids = torch.arange(12).reshape(2, 6)
    assert torch.equal(a(ids).logits, b(ids).logits), kind" >log 2>&1
ok $? "transformers loads what was merged: $(tail -n 1 log)"
echo "1..$n"
exit $bad
