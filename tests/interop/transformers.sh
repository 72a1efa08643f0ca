#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The whole way to the field's own tools: a short sharded run, merged in every form, is what Python's
# safetensors and transformers load, and its logits are those of fsdp-generate; a byte model's tokenizer is
# AutoTokenizer's. And back: a model that transformers saved is one that fsdp-launch trains.
# run: timeout=400
if ! "${TORCH_PYTHON:-python3}" -c 'import torch, transformers, safetensors' 2>/dev/null; then
    echo "1..0 # SKIP no Python with torch, transformers and safetensors (set TORCH_PYTHON)"
    exit 0
fi
export PATH=$BIN:$PATH OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
compare() { # plan's part of the checks, in Python
    "$TORCH_PYTHON" -W ignore "$TOP/tests/interop/transformers_check.py" "$@"
}

n=0 bad=0
ok() { # status, text, file with what went wrong
    n=$((n + 1))
    if [ "$1" = 0 ]; then
        echo "ok $n - $2"
    else
        echo "not ok $n - $2"
        [ -z "${3:-}" ] || tail -n 15 "$3" | sed 's/^/# /'
        bad=1
    fi
}

seq 1 20000 >text
for kind in tied untied gpt2; do
    rm -rf model ck
    mkdir model
    if [ $kind = gpt2 ]; then
        cat >model/config.json <<'END'
{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 256, "n_embd": 48,
 "n_layer": 3, "n_head": 6, "n_positions": 128, "layer_norm_epsilon": 1e-5, "embd_pdrop": 0,
 "attn_pdrop": 0, "resid_pdrop": 0, "activation_function": "gelu_new", "tie_word_embeddings": true,
 "bos_token_id": null, "eos_token_id": null, "torch_dtype": "float32"}
END
    else
        tied=false
        [ $kind = tied ] && tied=true
        cat >model/config.json <<END
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 48,
 "intermediate_size": 112, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
 "head_dim": 8, "hidden_act": "silu", "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
 "rope_theta": 10000.0, "tie_word_embeddings": $tied, "attention_bias": false, "mlp_bias": false,
 "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
 "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
 "bos_token_id": null, "eos_token_id": null, "torch_dtype": "float32"}
END
    fi
    cat >run.yaml <<'END'
model: {path: model, init: random, seed: 5}
data: {path: text, seq_len: 64}
train: {steps: 5, global_batch_size: 12, micro_batch_size: 2}
optim: {lr: 1.0e-2}
checkpoint: {path: ck}
END
    fsdp-launch -n 3 run.yaml >log 2>&1
    ok $? "$kind: a run of three ranks" log
    for out in whole.safetensors folder/ split/; do
        rm -rf "$out"
        size=0
        [ $out = split/ ] && size=100KB
        ckpt-merge -q ck -o $out --max-shard-size $size >log 2>&1
        ok $? "$kind: merged into $out" log
    done
    compare same whole.safetensors folder split >log 2>&1
    ok $? "$kind: safetensors and transformers see the same tensors in each" log
    for model in folder split; do
        fsdp-generate --model $model --tokens 0,1,255,17,42,42,9,100,200,3 --logits >logits 2>log
        ok $? "$kind: logits of $model" log
        compare logits $model 0,1,255,17,42,42,9,100,200,3 logits >log 2>&1
        ok $? "$kind: transformers' logits of $model within 1e-5" log
    done
done

# A model of bytes brings its tokenizer along.
for example in llama-2m llama-tiny; do
    rm -rf ck merged
    sed -e "s|path: model,|path: $TOP/examples/$example,|" -e 's/1.0e-2/3.0e-3/' -e 's/steps: 5/steps: 20/' run.yaml >bytes.yaml
    fsdp-launch -n 2 bytes.yaml >log 2>&1 && ckpt-merge -q ck -o merged/ >>log 2>&1
    ok $? "examples/$example: a run of two ranks, merged" log
    fsdp-generate --model merged --prompt "1234" --greedy --max-tokens 40 >ours 2>log
    ok $? "examples/$example: it writes" log
    compare byte_tokens merged 1234 ours >log 2>&1
    ok $? "examples/$example: AutoTokenizer's ids are the bytes, and a pipeline writes the same" log
done

compare make saved >log 2>&1
ok $? "transformers saves a model of several files" log
sed -i -e 's/path: model, init: random/path: saved, init: pretrained/' -e 's/steps: 5/steps: 0/' run.yaml
rm -rf ck back
fsdp-launch -n 2 run.yaml >log 2>&1 && ckpt-merge -q ck -o back/ >>log 2>&1
ok $? "it is read straight into two shards, saved and merged" log
compare same saved back >log 2>&1
ok $? "and comes back bit for bit" log

echo "1..$n"
exit $bad
