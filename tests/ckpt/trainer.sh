#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Which weights of a training program's folder are read. IMITATIONS: the files of transformers' Trainer and of accelerate's
# save_state around checkpoints that DeepSpeed and torch wrote (tests/interop/accelerate_folders.sh has more of them).
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/tools.sh"
data=$TOP/tests/data
trainer() { # folder: what the Trainer has besides weights
    mkdir -p "$1"
    echo '{"model_type": "llama"}' >"$1/config.json"
    echo '{"global_step": 500}' >"$1/trainer_state.json"
    echo '{}' >"$1/tokenizer_config.json"
    for name in scheduler.pt rng_state_0.pth rng_state_1.pth training_args.bin random_states_0.pkl; do echo "not read" >"$1/$name"; done
}
same() { # merged, reference, options...
    run 0 ckpt-diff --model "$1" "$2" "${@:3}" && says ' 0 near, 0 different' && grep -q '^[1-9][0-9]* tensors are the same' out
}

trainer sharded/checkpoint-500
cp -r "$data/dcp-fsdp2-2r/ckpt" sharded/checkpoint-500/pytorch_model_fsdp_0
run 0 ckpt-merge sharded/checkpoint-500 -o sharded/merged && says "the weights are in 'pytorch_model_fsdp_0'" &&
    same sharded/merged "$data/dcp-fsdp2-2r/ckpt" && ls sharded/merged >files &&
    [ "$(tr '\n' ' ' <files)" = 'README.md config.json model.safetensors tokenizer_config.json ' ]
ok $? "FSDP, sharded: $(tail -n 1 out); $(tr '\n' ' ' <files)"
run 0 ckpt-info sharded/checkpoint-500 && says 'checkpoint-500/pytorch_model_fsdp_0' && run 0 ckpt-verify sharded/checkpoint-500
ok $? "ckpt-info and ckpt-verify: $(tail -n 1 out)"
cp -r sharded/checkpoint-500 two && cp -r two/pytorch_model_fsdp_0 two/pytorch_model_fsdp_1
run 1 ckpt-merge two -o never && says "the weights of two models, 'pytorch_model_fsdp_" && says 'name one of them'
ok $? "two models: $(tail -n 1 err)"
cp -r sharded/checkpoint-500 torn && chmod -R u+w torn && rm -f torn/pytorch_model_fsdp_0/.metadata
run 1 ckpt-merge torn -o never && says 'no .metadata: the save never finished'
ok $? "a save that was stopped: $(tail -n 1 err)"

trainer full
cp "$data/torch-save/zip.pt" full/pytorch_model_fsdp.bin
cp "$data/torch-save/nested.pt" full/optimizer.bin
run 0 ckpt-merge full -o full.safetensors && says "the weights are in 'pytorch_model_fsdp.bin'" && same full.safetensors "$data/torch-save/zip.pt"
ok $? "FSDP, full: $(tail -n 1 out)"
cp -r full full-two && cp "$data/torch-save/zip.pt" full-two/pytorch_model_fsdp_1.bin
run 1 ckpt-merge full-two -o never && says "the weights of two models, 'pytorch_model_fsdp.bin' and 'pytorch_model_fsdp_1.bin': name one"
ok $? "two models, full: $(tail -n 1 err)"
run 0 ckpt-merge full-two/pytorch_model_fsdp_1.bin -o second.safetensors && same second.safetensors "$data/torch-save/zip.pt"
ok $? "the second model, by its name: $(tail -n 1 out)"
cp -r sharded/checkpoint-500 forms && cp full/pytorch_model_fsdp.bin forms
run 0 ckpt-merge forms -o forms.safetensors && says "'pytorch_model_fsdp_0' is read, 'pytorch_model_fsdp.bin' is not" &&
    same forms.safetensors "$data/dcp-fsdp2-2r/ckpt"
ok $? "sharded and full: $(head -n 1 err)"

trainer zero
cp -r "$data"/deepspeed-z1-2r/ckpt/* zero && touch zero/zero_to_fp32.py
run 0 ckpt-merge zero -o zero/merged && says "'global_step3' is the latest" &&
    same zero/merged "$data/deepspeed-z1-2r/expected.safetensors" --exclude lm_head.weight && [ -s zero/merged/tokenizer_config.json ]
ok $? "DeepSpeed: $(tail -n 1 out)"
trainer accelerate
cp -r "$data/deepspeed-z1-2r/ckpt/global_step3" accelerate/pytorch_model && printf 'pytorch_model' >accelerate/latest
run 0 ckpt-merge accelerate -o accelerate/merged && says "'pytorch_model' is the latest" &&
    same accelerate/merged "$data/deepspeed-z1-2r/expected.safetensors" --exclude lm_head.weight
ok $? "DeepSpeed's folder as accelerate calls it: $(tail -n 1 out)"

trainer whole
cp "$data/fsdp1/model/model.safetensors" whole
run 0 ckpt-merge whole -o whole-merged && run 0 ckpt-merge whole -o whole-merged --overwrite && [ ! -e whole-merged/trainer_state.json ]
ok $? "the state of the run is left out: $(ls whole-merged | xargs)"

# ---- two candidates: whole weights go before shards, and a line says so ----

whole=$data/fsdp1/model/model.safetensors
for kind in sharded/checkpoint-500 full zero; do
    rm -rf both && cp -r $kind both && chmod -R u+w both
    cp "$whole" both/model.safetensors
    rm -rf both-merged && run 0 ckpt-merge both -o both-merged && says 'its safetensors files are read' && same both-merged "$whole"
    ok $? "$kind with model.safetensors next to it: $(head -n 1 err)"
done
rm -rf both && cp -r "$data/fsdp1/local" both && chmod -R u+w both && cp "$whole" both
rm -rf both-merged && run 0 ckpt-merge both -o both-merged && says "'pytorch_model_fsdp_rank" && same both-merged "$whole"
ok $? "files of ranks with it: $(head -n 1 err)"

echo "1..$n"
exit $bad
