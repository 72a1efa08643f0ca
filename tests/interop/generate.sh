#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fsdp-generate against transformers: what filters leave of given logits, and greedy text.
# run: timeout=900
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, safetensors'
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1
gen() { "$BIN/fsdp-generate" --device cpu "$@" 2>err; }
py() { "$TORCH_PYTHON" -W ignore "$TOP/tests/interop/generate.py" "$@" >log 2>&1; }

n=0 bad=0
ok() { # status, text
    n=$((n + 1))
    if [ "$1" = 0 ]; then
        echo "ok $n - $2"
    else
        echo "not ok $n - $2"
        tail -n 15 log err | sed 's/^/# /'
        bad=1
    fi
}

# ---- the distribution ----------------------------------------------------------------------------

py make llama llama && py make gpt2 gpt2
ok $? "models of transformers"
prompt=17,3,99,4021,3,3
for kind in llama gpt2; do
    gen --model $kind --tokens $prompt --logits >logits
    rm -f ours.*
    number=0
    while read -r settings options; do
        number=$((number + 1))
        # shellcheck disable=SC2086
        gen --model $kind --tokens $prompt --probabilities --ignore-generation-config $options >ours.$number
        echo "$settings" >settings.$number
    done <<'END'
{}
{"temperature":0.7} --temperature 0.7
{"top_k":1} --top-k 1
{"top_k":50} --top-k 50
{"top_p":0.9} --top-p 0.9
{"top_p":0.05} --top-p 0.05
{"min_p":0.1} --min-p 0.1
{"repetition_penalty":1.3} --repetition-penalty 1.3
{"repetition_penalty":0.8,"top_p":0.95} --repetition-penalty 0.8 --top-p 0.95
{"temperature":1.7,"top_k":200,"top_p":0.6,"min_p":0.02} --temperature 1.7 --top-k 200 --top-p 0.6 --min-p 0.02
{"repetition_penalty":2.5,"temperature":0.4,"top_k":4000,"top_p":0.99,"min_p":0.001} --repetition-penalty 2.5 --temperature 0.4 --top-k 4000 --top-p 0.99 --min-p 0.001
END
    py distributions $prompt logits $number
    ok $? "$kind: $number settings leave the same tokens with the same probabilities"
    sed 's/^/# /' log
done

# ---- greedy text ---------------------------------------------------------------------------------

for kind in llama gpt2; do
    gen --model $kind --tokens $prompt --greedy --max-tokens 60 >ours &&
        py greedy $kind $prompt ours do_sample=false max_new_tokens=60
    ok $? "$kind: 60 greedy tokens are those of transformers"
    gen --model $kind --tokens $prompt --greedy --repetition-penalty 1.4 --max-tokens 60 >ours &&
        py greedy $kind $prompt ours do_sample=false max_new_tokens=60 repetition_penalty=1.4
    ok $? "$kind: and with a repetition penalty"
    py prompts prompts.jsonl
    gen --model $kind --prompts prompts.jsonl --greedy --max-tokens 40 --ignore-eos --batch 4 >ours.jsonl &&
        py batch $kind ours.jsonl
    ok $? "$kind: so are those of a file of prompts, four at once: $(head -n 1 log)"
    # An end token of the folder's own: one that the text would hold.
    end=$(cut -d, -f9 ours)
    cat >$kind/generation_config.json <<END
{"do_sample": false, "eos_token_id": [4999, $end], "repetition_penalty": 1.4, "max_new_tokens": 30}
END
    gen --model $kind --tokens $prompt >ours && py greedy $kind $prompt ours
    ok $? "$kind: generation_config.json alone says it all: $(head -n 1 log)"
    [ "$(tr , '\n' <ours | wc -l)" -lt 10 ]
    ok $? "$kind: it ended at token $end"
done

# ---- text ----------------------------------------------------------------------------------------

rm llama/generation_config.json
for kind in bytes metaspace; do
    py spell $kind llama
    ok $? "a tokenizer of $kind: $(head -n 1 log)"
    gen --model llama --prompt "ban der 日 gost é!" --greedy --max-tokens 40 >ours && py text llama "ban der 日 gost é!" ours
    ok $? "$kind: the prompt's text continues as in transformers: $(head -n 1 log)"
    echo '{"prompt": "ban der 日 gost é!"}' >one.jsonl
    gen --model llama --prompts one.jsonl --greedy --max-tokens 40 >one.out &&
        python3 -c 'import json; r = json.loads(open("one.out").read()); print(r["prompt"] + r["completion"])' | cmp -s - ours
    ok $? "$kind: and in a file of prompts"
done

# ---- keys and values in 16 bits ------------------------------------------------------------------

for kind in llama gpt2; do
    py make $kind $kind-bf16 bfloat16
    gen --model $kind-bf16 --tokens $prompt --greedy --max-tokens 60 --ignore-eos -v >ours && grep -q "in BF16" err &&
        py short $kind-bf16 $prompt ours
    ok $? "$kind in bf16, next to transformers in bf16: $(paste -s -d ';' log)"
    gen --model $kind-bf16 --tokens $prompt --greedy --max-tokens 60 --kv-dtype float32 >ours &&
        py greedy $kind-bf16 $prompt ours do_sample=false max_new_tokens=60
    ok $? "$kind: with float32 they are those of transformers in float32"
done

echo "1..$n"
exit $bad
