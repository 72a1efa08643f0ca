#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fsdp-generate as a user calls it: what it prints, and what it says when it cannot.
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
gen() { "$BIN/fsdp-generate" --device cpu "$@"; }
TINY=$TOP/tests/data/llama-tiny ODD=$TOP/tests/data/llama-odd
refused() { # what it must say, exit code, arguments...
    local says=$1 code=$2 out
    shift 2
    out=$(gen "$@" 2>&1 >stdout)
    [ $? = "$code" ] && [[ $out == *"$says"* ]] && [ ! -s stdout ]
    ok $? "refused: $(head -n 1 <<<"$out")"
}

# ---- what it prints ------------------------------------------------------------------------------

gen --model "$TINY" --prompt "To be" --greedy --max-tokens 12 >a 2>err
ok $? "text from a folder"
[ "$(grep -vc "^fsdp-generate: prompt: 5 tokens, .* generated: 12 tokens, " err)" = 0 ] && [ "$(head -c 5 a)" = "To be" ] && [ "$(wc -c <a)" = 18 ]
ok $? "the prompt, 12 bytes and a line feed; of the run, one line on standard error"
gen --model "$TINY/model.safetensors" --prompt "To be" --greedy --max-tokens 12 >b && cmp -s a b
ok $? "the same from the file"
ids=$(gen --model "$TINY" --tokens 84,111,32,98,101 --greedy --max-tokens 12)
[ "$ids" = "$(tail -c +6 a | head -c 12 | od -An -v -tu1 -w12 | tr -s ' ' ',' | cut -c2-)" ]
ok $? "the same as token ids: $ids"

sampled=(--top-k 40 --top-p 0.9 --temperature 0.8 --ignore-eos --max-tokens 40)
gen --model "$TINY" --prompt x --seed 3 "${sampled[@]}" >d
gen --model "$TINY" --prompt x --seed 3 "${sampled[@]}" | cmp -s - d
ok $? "the same seed gives the same text"
gen --model "$TINY" --prompt x --seed 4 "${sampled[@]}" | cmp -s - d
ok $((!$?)) "another seed gives another"

gen --model "$ODD" --tokens 5,6,7,8 --logits >l
ok $? "logits of a tied model"
awk 'NF != 53 { exit 1 } END { exit NR != 4 }' l
ok $? "a line for each of 4 positions, 53 values each"
gen --model "$ODD" --tokens 5,6 --logits | cmp -s - <(head -n 2 l)
close=$?
[ $close = 0 ] || { # another matrix product may round otherwise
    gen --model "$ODD" --tokens 5,6 --logits | paste -d ' ' - <(head -n 2 l) |
        awk '{ for (i = 1; i <= 53; i++) if (($i - $(i + 53))^2 > 1e-10) exit 1 }'
    close=$?
}
ok $close "a prefix has the prefix of the logits"

gen --model "$TINY" --prompt x --greedy --ignore-eos --max-tokens 500 >e 2>err
[ "$(wc -c <e)" = 65 ] && grep -q "64 positions" err
ok $? "it stops where the positions end, and says so"
gen --model "$TINY" --prompt "" --max-tokens 3 --greedy >/dev/null
ok $? "an empty prompt begins with the model's first token"
gen --model "$TINY" --prompt x --probabilities --top-k 3 >p
awk '{ sum += $2 } END { exit NR != 3 || (sum - 1)^2 > 1e-12 }' p
ok $? "the probabilities of the next token"
mkdir -p greedy
cp "$TINY"/config.json "$TINY"/model.safetensors greedy/
echo '{"do_sample": false, "max_new_tokens": 12, "num_beams": 4}' >greedy/generation_config.json
gen --model greedy --prompt "To be" 2>err | cmp -s - a && grep -q "num_beams is not supported" err
ok $? "generation_config.json says what is not asked for"
gen --model greedy --prompt "To be" --ignore-generation-config --greedy --max-tokens 12 2>err | cmp -s - a &&
    ! grep -q num_beams err
ok $? "or is ignored"
end=$(cut -d, -f3 <<<"$ids")
echo "{\"do_sample\": false, \"max_new_tokens\": 12, \"eos_token_id\": [$end]}" >greedy/generation_config.json
[ "$(gen --model greedy --tokens 84,111,32,98,101 2>err)" = "$(tr , '\n' <<<"$ids" | sed "/^$end\$/,\$d" | paste -s -d ,)" ]
ok $? "its end token ends the text"
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
ok $? "interrupted, it ends with whole output and exit code $code"

# ---- files of prompts ----------------------------------------------------------------------------

cat >prompts.jsonl <<'END'
{"id": 1, "prompt": "To be", "more": [1.5, null, {"a": "\u00e9"}]}
{"id": 2, "tokens": [84, 111, 32, 98, 101], "seed": 9, "max_tokens": 5}

{"id": 3, "prompt": "or not", "seed": 3}
{"id": 4, "prompt": "", "max_tokens": 60}
{"id": 5, "prompt": "To be"}
{"id": 6, "tokens": [84, 111, 32, 98, 101]}
END
json() { "${PYTHON:-python3}" -c "import json, sys; rows = [json.loads(l) for l in open(sys.argv[1])]; $1" "$2"; }
batch=(--max-tokens 12 --temperature 0.8 --seed 5 --ignore-eos --prompts prompts.jsonl)
gen --model "$TINY" "${batch[@]}" -o out.jsonl 2>err && [ ! -e out.jsonl.part ] && [ "$(wc -l <out.jsonl)" = 6 ]
ok $? "a line for each prompt"
json 'assert [r["id"] for r in rows] == [1, 2, 3, 4, 5, 6] and rows[0]["more"] == [1.5, None, {"a": "\u00e9"}]
assert [r["ntokens"] for r in rows] == [12, 5, 12, 60, 12, 12] and all(r["finish_reason"] == "length" for r in rows)
assert rows[0]["completion"] == rows[4]["completion"] != rows[2]["completion"]
assert len(rows[5]["completion_tokens"]) == 12 and rows[1]["completion_tokens"] != rows[5]["completion_tokens"][:5]' out.jsonl 2>err
ok $? "in their order, with all their keys; the same prompt and seed give the same"
for size in 1 2 7; do
    gen --model "$TINY" "${batch[@]}" --batch $size 2>err | cmp -s - out.jsonl
    ok $? "the same on standard output with $size at once"
done
grep -v '^$' prompts.jsonl | tac >prompts.back
gen --model "$TINY" "${batch[@]}" --prompts - <prompts.back 2>err | tac | cmp -s - out.jsonl
ok $? "and in the other order, from standard input"
one=$(gen --model "$TINY" --tokens 84,111,32,98,101 --max-tokens 12 --temperature 0.8 --seed 5 --ignore-eos 2>err)
json "assert rows[5]['completion_tokens'] == [$one]" out.jsonl
ok $? "a prompt alone gets the same"
end=$(cut -d, -f3 <<<"$one")
echo "{\"eos_token_id\": $end}" >greedy/generation_config.json
gen --model greedy --max-tokens 12 --temperature 0.8 --seed 5 --prompts prompts.jsonl >stopped 2>err
json "assert rows[5]['finish_reason'] == 'stop' and rows[5]['ntokens'] == [$one].index($end)" stopped
ok $? "one that ends with the model's end token says so"
refused "'out.jsonl' already exists (--overwrite replaces it)" 1 --model "$TINY" "${batch[@]}" -o out.jsonl
cp prompts.jsonl own.jsonl && ln -s own.jsonl named.jsonl
for own in own.jsonl named.jsonl; do
    refused "'$own' holds the prompts: name another output" 1 --model "$TINY" --prompts own.jsonl -o $own --overwrite
done
ok "$(cmp -s prompts.jsonl own.jsonl; echo $?)" "which stay as they are"
gen --model "$TINY" "${batch[@]}" -o out.jsonl --overwrite --seed 6 2>err && ! cmp -s out.jsonl <(head -n 6 out.jsonl.part 2>/dev/null)
ok $? "--overwrite"
rm -f out.jsonl
gen --model "$TINY" "${batch[@]}" 2>err >whole
{ head -n 2 whole && sed -n 3p whole | head -c 30; } >out.jsonl.part
refused "out.jsonl.part: lines of a run that was stopped" 1 --model "$TINY" "${batch[@]}" -o out.jsonl
gen --model "$TINY" "${batch[@]}" -o out.jsonl --resume 2>err && cmp -s out.jsonl whole && grep -q "generated: 96 tokens" err
ok $? "--resume makes the four lines that are not there whole"
rm -f out.jsonl
sed -n 2p whole >out.jsonl.part
refused "out.jsonl.part:1: not made of line 1" 1 --model "$TINY" "${batch[@]}" -o out.jsonl --resume
rm -f out.jsonl.part
sed 's/"max_tokens": 60/"max_tokens": 100000/' prompts.jsonl >endless.jsonl
"$BIN/fsdp-generate" --device cpu --model long "${batch[@]}" --prompts endless.jsonl --batch 2 -o out.jsonl 2>err &
pid=$!
until [ "$(wc -l 2>/dev/null <out.jsonl.part)" = 3 ]; do sleep 0.05; done
kill -INT $pid
wait $pid
code=$?
[ $code = 130 ] && [ ! -e out.jsonl ] && cmp -s out.jsonl.part <(head -n 3 whole)
ok $? "interrupted, it leaves whole lines, and exit code $code"
rm -f out.jsonl.part
wrong() { # what it must say, line
    echo "$2" >bad.jsonl
    refused "bad.jsonl:1: $1" 1 --model "${3:-$TINY}" --prompts bad.jsonl
}
wrong "not JSON" '{"prompt": "x"'
wrong 'needs an object with "prompt"' '["x"]'
wrong 'needs an object with "prompt"' '{"text": "x"}'
wrong 'needs an object with "prompt"' '{"prompt": "x", "tokens": [1]}'
wrong '"tokens" is no list of token ids' '{"tokens": [1, 256]}'
wrong '"seed" is no integer' '{"prompt": "x", "seed": -1}'
wrong '"max_tokens" is no integer' '{"prompt": "x", "max_tokens": 0}'
wrong 'the prompt has no tokens' '{"tokens": []}'
wrong 'prompt of 65 tokens' "{\"prompt\": \"$(printf 'x%.0s' {1..65})\"}"
wrong 'text would become tokens byte by byte, and the model has 53 tokens' '{"prompt": "x"}' "$ODD"
: >empty.jsonl
refused "no prompts in it" 1 --model "$TINY" --prompts empty.jsonl
refused "nowhere.jsonl" 1 --model "$TINY" --prompts nowhere.jsonl
refused "belong to --prompts" 2 --model "$TINY" --prompt x -o out.jsonl
refused "need --output" 2 --model "$TINY" --prompts prompts.jsonl --resume
refused "either --overwrite or --resume" 2 --model "$TINY" --prompts prompts.jsonl -o x --resume --overwrite
refused "--batch 0: expected" 2 --model "$TINY" --prompts prompts.jsonl --batch 0
refused "--kv-dtype fp8: expected auto, float32, bfloat16 or float16" 2 --model "$TINY" --prompt x --kv-dtype fp8

# ---- the model's tokenizer -----------------------------------------------------------------------

mkdir -p spelled
cp "$TINY"/config.json "$TINY"/model.safetensors spelled/
cat >spelled/tokenizer.json <<'END'
{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
 "post_processor": null, "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
 "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
  "vocab": {"a": 0, "b": 1, "ab": 2, "\u0120": 3}, "merges": [["a", "b"]]}}
END
echo '{"model_max_length": 1000000000000000019884624838656}' >spelled/tokenizer_config.json
gen --model spelled --prompt "ab ab" --greedy --max-tokens 3 >out 2>err && grep -q "^fsdp-generate: prompt: 3 tokens" err && grep -q "^ab ab" out
ok $? "a prompt is tokenized as tokenizer.json says"
[ "$(gen --model spelled --prompt "ab ab" --probabilities --tokenizer spelled/tokenizer.json)" = "$(gen --model "$TINY" --tokens 2,3,2 --probabilities)" ]
ok $? "into these tokens"
gen --model spelled --prompt "ab ab" --tokenizer bytes --greedy --max-tokens 3 2>&1 >out | grep -q "prompt: 5 tokens"
ok $? "or byte by byte where that is asked for"
refused "nowhere" 1 --model spelled --prompt x --tokenizer nowhere

# ---- keys and values -----------------------------------------------------------------------------

kv() { gen --model "$1" --tokens 84,111 --greedy --max-tokens 20 -v "${@:2}" 2>&1 >kv.out | sed -n 's/.*keys and values: \(.*\), for .*/\1/p'; }
[ "$(kv "$TINY")" = "11.0 KiB in F32" ] && cp kv.out wide && [ "$(kv "$TINY" --kv-dtype bfloat16)" = "5.5 KiB in BF16" ]
ok $? "keys and values in float32, or half the memory in bfloat16"
mkdir -p short16
sed 's/"float32"/"float16"/' "$TINY/config.json" >short16/config.json
cp "$TINY/model.safetensors" short16/
[ "$(kv short16)" = "5.5 KiB in F16" ] && [ "$(kv short16 --kv-dtype float32)" = "11.0 KiB in F32" ] && cmp -s kv.out wide
ok $? "by default they are of the model's type"

gen --help | grep -q -- --top-p
ok $? "--help"

# ---- what it refuses -----------------------------------------------------------------------------

mkdir -p folder bpe short
cp "$TINY/model.safetensors" folder/
cp "$ODD"/config.json "$ODD"/model.safetensors bpe/
echo '{}' >bpe/tokenizer.json
sed 's/"vocab_size": 256/"vocab_size": 300/' "$TINY/config.json" >short/config.json
cp "$TINY/model.safetensors" short/
refused "give the model: --model PATH" 2 --prompt x
refused "either --prompt or --tokens" 2 --model "$TINY"
refused "either --prompt or --tokens" 2 --model "$TINY" --prompt x --tokens 1
refused "either --greedy or --sample" 2 --model "$TINY" --prompt x --greedy --sample
refused "either --logits or --probabilities" 2 --model "$TINY" --prompt x --logits --probabilities
refused "'y': only options are taken here; type --prompt before a text" 2 --model "$TINY" --prompt x y
refused "unknown option --nonsense" 2 --model "$TINY" --prompt x --nonsense
refused "--max-tokens many: expected" 2 --model "$TINY" --prompt x --max-tokens many
refused "--top-k -1: expected" 2 --model "$TINY" --prompt x --top-k -1
refused "--device tpu: expected auto, cpu or cuda" 2 --model "$TINY" --prompt x --device tpu
refused "--seed -1: expected" 2 --model "$TINY" --prompt x --seed -1
refused "temperature is 0" 1 --model "$TINY" --prompt x --temperature 0
refused "top-p is 2" 1 --model "$TINY" --prompt x --top-p 2
refused "min-p is -1" 1 --model "$TINY" --prompt x --min-p -1
refused "penalty is 0" 1 --model "$TINY" --prompt x --repetition-penalty 0
refused "nowhere" 1 --model nowhere --prompt x
refused "config.json" 1 --model folder --prompt x
refused "token 256" 1 --model "$TINY" --tokens 1,256 --logits
refused "begin with a token id" 1 --model "$TINY" --tokens 1,b --logits
refused "the model has 53 tokens, not 256: put its tokenizer.json" 1 --model "$ODD" --prompt "x"
refused "tokenizer.json" 1 --model bpe --prompt "x"
refused "model.embed_tokens.weight" 1 --model short --prompt x
refused "the model has 64" 1 --model "$TINY" --prompt "$(printf 'x%.0s' {1..65})"
gen --model "$TINY" --prompt x >/dev/full 2>err
[ $? = 1 ] && grep -q "standard output" err
ok $? "a full disk at standard output: $(cat err)"

echo "1..$n"
exit $bad
