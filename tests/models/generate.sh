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
[ "$(grep -vc "^fsdp-generate: prompt: 5 tokens, .* generated: 12 tokens, " err)" = 0 ] && [ "$(head -c 5 a)" = "To be" ] && [ "$(wc -c <a)" = 18 ]
result "the prompt, 12 bytes and a line feed; of the run, one line on standard error" $?
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
gen --model "$TINY" --prompt x --probabilities --top-k 3 >p
awk '{ sum += $2 } END { exit NR != 3 || (sum - 1)^2 > 1e-12 }' p
result "the probabilities of the next token" $?
mkdir -p greedy
cp "$TINY"/config.json "$TINY"/model.safetensors greedy/
echo '{"do_sample": false, "max_new_tokens": 12, "num_beams": 4}' >greedy/generation_config.json
gen --model greedy --prompt "To be" 2>err | cmp -s - a && grep -q "num_beams is not supported" err
result "generation_config.json says what is not asked for" $?
gen --model greedy --prompt "To be" --ignore-generation-config --greedy --max-tokens 12 2>err | cmp -s - a &&
    ! grep -q num_beams err
result "or is ignored" $?
end=$(cut -d, -f3 <<<"$ids")
echo "{\"do_sample\": false, \"max_new_tokens\": 12, \"eos_token_id\": [$end]}" >greedy/generation_config.json
[ "$(gen --model greedy --tokens 84,111,32,98,101 2>err)" = "$(tr , '\n' <<<"$ids" | sed "/^$end\$/,\$d" | paste -s -d ,)" ]
result "its end token ends the text" $?
# A model of as many positions that it does not end before it is interrupted.
mkdir -p long
cp "$TINY/model.safetensors" long/
sed 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 200000/' "$TINY/config.json" >long/config.json
mkfifo pipe
"$BIN/fsdp-generate" --device cpu --model long --tokens 1 --ignore-eos --max-tokens 200000 >pipe 2>err &
pid=$!
exec 3<pipe
head -c 20 <&3 >part
kill -INT $pid
cat <&3 >>part
wait $pid
code=$?
exec 3<&-
[ $code = 130 ] && grep -q "generated: " err && grep -qE '^[0-9]+(,[0-9]+)+$' part
result "interrupted, it ends with whole output and exit code $code" $?
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
refused "either --greedy or --sample" 2 --model "$TINY" --prompt x --greedy --sample
refused "either --logits or --probabilities" 2 --model "$TINY" --prompt x --logits --probabilities
refused "no arguments" 2 --model "$TINY" --prompt x y
refused "unrecognized option" 2 --model "$TINY" --prompt x --nonsense
refused "--max-tokens: 'many'" 2 --model "$TINY" --prompt x --max-tokens many
refused "--top-k: '-1'" 2 --model "$TINY" --prompt x --top-k -1
refused "--device: 'tpu' is not auto, cpu or cuda" 2 --model "$TINY" --prompt x --device tpu
refused "--seed: '-1'" 2 --model "$TINY" --prompt x --seed -1
refused "temperature is 0" 1 --model "$TINY" --prompt x --temperature 0
refused "top-p is 2" 1 --model "$TINY" --prompt x --top-p 2
refused "min-p is -1" 1 --model "$TINY" --prompt x --min-p -1
refused "penalty is 0" 1 --model "$TINY" --prompt x --repetition-penalty 0
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
