#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The whole way to the field's own tools: a short sharded run, merged in every form, is what Python's
# safetensors and transformers load, and its logits are those of fsdp-generate; a byte model's tokenizer is
# AutoTokenizer's. And back: a model that transformers saved is one that fsdp-launch trains.
# run: timeout=400
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, safetensors'
. "$TOP/tests/lib/tap.sh"
export PATH=$BIN:$PATH OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1

seq 1 20000 >text
for kind in tied untied gpt2; do
    mkdir -p $kind/model
    if [ $kind = gpt2 ]; then
        cat >$kind/model/config.json <<'END'
{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 256, "n_embd": 48,
 "n_layer": 3, "n_head": 6, "n_positions": 128, "layer_norm_epsilon": 1e-5, "embd_pdrop": 0,
 "attn_pdrop": 0, "resid_pdrop": 0, "activation_function": "gelu_new", "tie_word_embeddings": true,
 "bos_token_id": null, "eos_token_id": null, "torch_dtype": "float32"}
END
    else
        tied=false
        [ $kind = tied ] && tied=true
        cat >$kind/model/config.json <<END
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 48,
 "intermediate_size": 112, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
 "head_dim": 8, "hidden_act": "silu", "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
 "rope_theta": 10000.0, "tie_word_embeddings": $tied, "attention_bias": false, "mlp_bias": false,
 "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
 "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
 "bos_token_id": null, "eos_token_id": null, "torch_dtype": "float32"}
END
    fi
    cat >run.yaml <<END
model: {path: $kind/model, init: random, seed: 5}
data: {path: text, seq_len: 64}
train: {steps: 5, global_batch_size: 12, micro_batch_size: 2}
optim: {lr: 1.0e-2}
checkpoint: {path: $kind/ck}
END
    fsdp-launch -n 3 run.yaml >log 2>&1
    ok $? "$kind: a run of three ranks"
    for out in whole.safetensors folder/ split/; do
        size=0
        [ $out = split/ ] && size=100KB
        ckpt-merge -q $kind/ck -o $kind/$out --max-shard-size $size >log 2>&1
        ok $? "$kind: merged into $out"
    done
    later same $kind/whole.safetensors $kind/folder $kind/split '#' "$kind: safetensors and transformers see the same tensors in each"
    for model in $kind/folder $kind/split; do
        fsdp-generate --model $model --tokens 0,1,255,17,42,42,9,100,200,3 --logits >$model.logits 2>log
        ok $? "logits of $model"
        later logits $model 0,1,255,17,42,42,9,100,200,3 $model.logits '#' "transformers' logits of $model within 1e-5"
    done
done

# A model of bytes brings its tokenizer along.
for example in llama-2m llama-tiny; do
    sed -e "s|path: gpt2/model,|path: $TOP/examples/$example,|" -e "s|gpt2/ck|$example.ck|" -e 's/1.0e-2/3.0e-3/' -e 's/steps: 5/steps: 20/' run.yaml >bytes.yaml
    fsdp-launch -n 2 bytes.yaml >log 2>&1 && ckpt-merge -q $example.ck -o $example/ >>log 2>&1
    ok $? "examples/$example: a run of two ranks, merged"
    fsdp-generate --model $example --prompt "1234" --greedy --max-tokens 40 >$example.text 2>log
    ok $? "examples/$example: it writes"
    later byte_tokens $example 1234 $example.text '#' "examples/$example: AutoTokenizer's ids are the bytes, and a pipeline writes the same"
done

"$PYTHON" -W ignore "$TOP/tests/interop/transformers_check.py" make saved >log 2>&1
ok $? "transformers saves a model of several files"
sed -i -e 's|path: gpt2/model, init: random|path: saved, init: pretrained|' -e 's/steps: 5/steps: 0/' -e 's|gpt2/ck|saved.ck|' run.yaml
fsdp-launch -n 2 run.yaml >log 2>&1 && ckpt-merge -q saved.ck -o back/ >>log 2>&1
ok $? "it is read straight into two shards, saved and merged"
later same saved back '#' "and comes back bit for bit"

answers transformers_check
echo "1..$n"
exit $bad
