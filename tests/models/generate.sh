#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fsdp-generate as a user calls it: what it prints, and what it says when it cannot.
gen() { "$BIN/fsdp-generate" --device cpu "$@"; }
TINY=$TOP/tests/data/llama-tiny ODD=$TOP/tests/data/llama-odd
n=0 bad=0
result() { # text, status
    n=$((n + 1))
    if [ "$2" = 0 ]; then
        echo "ok $n - $1"
    else
        echo "not ok $n - $1"
        bad=1
    fi
}
refused() { # what it must say, exit code, arguments...
    local says=$1 code=$2 out
    shift 2
    out=$(gen "$@" 2>&1 >stdout)
    [ $? = "$code" ] && [[ $out == *"$says"* ]] && [ ! -s stdout ]
    result "refused: $(head -n 1 <<<"$out")" $?
}

# ---- what it prints ------------------------------------------------------------------------------

gen --model "$TINY" --prompt "To be" --greedy --max-tokens 12 >a 2>err
result "text from a folder" $?
[ ! -s err ] && [ "$(head -c 5 a)" = "To be" ] && [ "$(wc -c <a)" = 18 ]
result "the prompt, 12 bytes and a line feed" $?
gen --model "$TINY/model.safetensors" --prompt "To be" --greedy --max-tokens 12 >b && cmp -s a b
result "the same from the file" $?
ids=$(gen --model "$TINY" --tokens 84,111,32,98,101 --greedy --max-tokens 12)
[ "$ids" = "$(tail -c +6 a | head -c 12 | od -An -v -tu1 -w12 | tr -s ' ' ',' | cut -c2-)" ]
result "the same as token ids: $ids" $?

sampled=(--top-k 40 --top-p 0.9 --temperature 0.8 --ignore-eos --max-tokens 40)
gen --model "$TINY" --prompt x --seed 3 "${sampled[@]}" >d
gen --model "$TINY" --prompt x --seed 3 "${sampled[@]}" | cmp -s - d
result "the same seed gives the same text" $?
gen --model "$TINY" --prompt x --seed 4 "${sampled[@]}" | cmp -s - d
result "another seed gives another" $((!$?))

gen --model "$ODD" --tokens 5,6,7,8 --logits >l
result "logits of a tied model" $?
awk 'NF != 53 { exit 1 } END { exit NR != 4 }' l
result "a line for each of 4 positions, 53 values each" $?
gen --model "$ODD" --tokens 5,6 --logits | cmp -s - <(head -n 2 l)
close=$?
[ $close = 0 ] || { # another matrix product may round otherwise
    gen --model "$ODD" --tokens 5,6 --logits | paste -d ' ' - <(head -n 2 l) |
        awk '{ for (i = 1; i <= 53; i++) if (($i - $(i + 53))^2 > 1e-10) exit 1 }'
    close=$?
}
result "a prefix has the prefix of the logits" $close

gen --model "$TINY" --prompt x --greedy --ignore-eos --max-tokens 500 >e 2>err
[ "$(wc -c <e)" = 65 ] && grep -q "64 positions" err
result "it stops where the positions end, and says so" $?
gen --model "$TINY" --prompt "" --max-tokens 3 --greedy >/dev/null
result "an empty prompt begins with the model's first token" $?
gen --help | grep -q -- --top-p
result "--help" $?

# ---- what it refuses -----------------------------------------------------------------------------

mkdir -p folder bpe short
cp "$TINY/model.safetensors" folder/
cp "$ODD"/config.json "$ODD"/model.safetensors bpe/
echo '{}' >bpe/tokenizer.json
sed 's/"vocab_size": 256/"vocab_size": 300/' "$TINY/config.json" >short/config.json
cp "$TINY/model.safetensors" short/
refused "--model is missing" 2 --prompt x
refused "either --prompt or --tokens" 2 --model "$TINY"
refused "either --prompt or --tokens" 2 --model "$TINY" --prompt x --tokens 1
refused "no arguments" 2 --model "$TINY" --prompt x y
refused "unrecognized option" 2 --model "$TINY" --prompt x --nonsense
refused "--max-tokens: 'many'" 2 --model "$TINY" --prompt x --max-tokens many
refused "--top-k: '-1'" 2 --model "$TINY" --prompt x --top-k -1
refused "--device: 'tpu' is not auto, cpu or cuda" 2 --model "$TINY" --prompt x --device tpu
refused "--seed: '-1'" 2 --model "$TINY" --prompt x --seed -1
refused "temperature is 0" 1 --model "$TINY" --prompt x --temperature 0
refused "top-p is 2" 1 --model "$TINY" --prompt x --top-p 2
refused "nowhere" 1 --model nowhere --prompt x
refused "config.json" 1 --model folder --prompt x
refused "token 256" 1 --model "$TINY" --tokens 1,256 --logits
refused "begin with a token id" 1 --model "$TINY" --tokens 1,b --logits
refused "the vocabulary has 53" 1 --model "$ODD" --prompt "x"
refused "tokenizer.json" 1 --model bpe --prompt "x"
refused "model.embed_tokens.weight" 1 --model short --prompt x
refused "the model has 64" 1 --model "$TINY" --prompt "$(printf 'x%.0s' {1..65})"
gen --model "$TINY" --prompt x >/dev/full 2>err
[ $? = 1 ] && grep -q "standard output" err
result "a full disk at standard output: $(cat err)" $?

echo "1..$n"
exit $bad
