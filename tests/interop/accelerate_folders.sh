#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Imitated folders of accelerate's save_state and of transformers' Trainer with FSDP (accelerate_folders.py says what is
# theirs): ckpt-merge finds the weights, which are those that torch gathers, to the bit.
# run: timeout=300
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, safetensors, accelerate'
cd "$TEST_TMP" || exit 1
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PATH=$BIN:$PATH
. "$TOP/tests/lib/tap.sh"
same() { # tensors, a, b, options...
    ckpt-diff "${@:2}" >out 2>>err && grep -q "^$1 tensors are the same, 0 near, 0 different" out
}

"$TORCH_PYTHON" -W ignore "$TOP/tests/interop/accelerate_folders.py" "$PWD" >log 2>&1
ok $? "five runs are saved: $(tail -n 1 log)"
says() { # kind: where the log says that the weights are
    case $1 in
    sharded*) grep -q -F "the weights are in 'pytorch_model_fsdp_0'" err ;;
    full*) grep -q -F "the weights are in 'pytorch_model_fsdp.bin'" err ;;
    local) grep -q -F 'get the names, shapes and order of llama' err ;;
    esac
}
for kind in sharded sharded1 full full2 local; do
    ckpt-merge "$kind/checkpoint-500" -o "$kind/merged" >out 2>err && says $kind &&
        same 21 "$kind/merged" "$kind/expected-model.safetensors" && [ -s "$kind/merged/config.json" ] &&
        [ -s "$kind/merged/tokenizer_config.json" ]
    ok $? "$kind: its weights, config.json and the tokenizer's file: $(tail -n 1 out)"
    ckpt-info "$kind/checkpoint-500" >out 2>err && grep -q '^model  *21 tensors' out && ckpt-verify "$kind/checkpoint-500" >out 2>err
    ok $? "$kind: ckpt-info and ckpt-verify: $(tail -n 1 out)"
    ckpt-reshard "$kind/checkpoint-500" -o "$kind/native" --world 3 -q 2>err && same 21 "$kind/native" "$kind/expected-model.safetensors"
    ok $? "$kind: for three ranks of ours: $(tail -n 1 out)"
done
# Of FSDP1's full state torch 2.15 itself gathers both moments into one buffer on a CPU; all runs have the same moments.
for moments in sharded/checkpoint-500/optimizer_0 sharded1/checkpoint-500/optimizer_0 full2/checkpoint-500/optimizer.bin; do
    same 42 "$moments" sharded/expected-optim.safetensors --exclude '*.step'
    ok $? "the optimizer's state, by its own name ($moments): $(tail -n 1 out)"
done

"$TORCH_PYTHON" -W ignore -c "
import transformers, torch
reference = None
for kind in ('sharded', 'full', 'local'):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(kind + '/merged', output_loading_info=True)
    assert not info['missing_keys'] and not info['unexpected_keys'], info
    logits = model(torch.arange(12).reshape(2, 6)).logits
    assert logits.isfinite().all()" >log 2>&1
ok $? "transformers loads what was merged: $(tail -n 1 log)"
echo "1..$n"
exit $bad
