#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# From text to text: learns a vocabulary, tokenizes, trains a small Llama on two ranks, merges, generates.
# Everything it makes lies in build/demo-text.
#
# DEMO_SECONDS=N: about how long to train (default 100). DEMO_STEPS=N: how many steps.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
export PATH=${BIN:-$PWD/build/bin}:$PATH
export OPENBLAS_NUM_THREADS=1 # a rank is a core's worth of work

demo=build/demo-text
config=examples/text.yaml
began=$SECONDS
. scripts/demo_lib.sh

# ---- the text -----------------------------------------------------------------------------------

heading "1. Text"
rm -rf $demo
mkdir -p $demo/text $demo/model
# Five verses of a chapter a line; every 40th chapter is held out.
bible -f gen1:1-rev22:21 </dev/null | awk -v dir=$demo/text '
    function put() {
        if (text != "")
            printf "{\"text\": \"%s\"}\n", text >(dir (nchapters % 40 ? "/train.jsonl" : "/held-out.jsonl"))
    }
    {
        split($1, ref, ":")
        if (ref[1] != chapter || nverses == 5) {
            put()
            nchapters += ref[1] != chapter
            chapter = ref[1]
            text = ""
            nverses = 0
        }
        nverses++
        sub(/^[^ ]+ /, "")
        gsub(/["\\]/, "\\\\&")
        text = text (text == "" ? "" : "\\n") $0
    }
    END { put() }' || fail "the text could not be made"
[ "$(wc -l <$demo/text/train.jsonl)" -gt 5000 ] || fail "the text has only $(wc -l <$demo/text/train.jsonl) documents"
tell "The King James Bible, from Debian's package bible-kjv-text, as JSON Lines: five verses are a document." \
    "$(wc -l <$demo/text/train.jsonl) documents to learn from, $(wc -l <$demo/text/held-out.jsonl) held out."

# ---- the vocabulary -----------------------------------------------------------------------------

heading "2. Vocabulary"
tell "Byte-level BPE: the 256 bytes, and the pairs of tokens that are most frequent in the text."
echo
show fsdp-tokenize $demo/text/train.jsonl -o $demo/model --train 2048 || fail "no vocabulary"
cp examples/llama-text/config.json $demo/model/
echo
tell "With a config.json next to it, tokenizer.json makes a model folder. Training tokenizes by itself; the same" \
    "tokens in a file of their own, and what they are:"
echo
show fsdp-tokenize $demo/text/train.jsonl --tokenizer $demo/model -o $demo/train.u16 || fail "no tokens"
echo
show fsdp-tokenize --info $demo/train.u16 || fail "the token file cannot be read"
echo
show fsdp-tokenize --decode $demo/train.u16 --tokens 0:40 --tokenizer $demo/model || fail "no text"
echo

# ---- training -----------------------------------------------------------------------------------

heading "3. Two ranks learn"
if [ -z "${DEMO_STEPS:-}" ]; then
    fsdp-launch -n 2 $config train.steps=4 optim.warmup_steps=0 data.eval_rows=1 checkpoint.resume=never \
        checkpoint.path=$demo/speed log.interval=1 >$demo/speed.log 2>&1 || { cat $demo/speed.log; fail "the speed test failed"; }
    speed=$(metric tokens_per_s)
    rm -rf $demo/metrics.jsonl $demo/speed $demo/speed.log
    DEMO_STEPS=$(awk -v s="${DEMO_SECONDS:-100}" -v v="${speed:-0}" 'BEGIN {
        n = int(s * v / (8 * 256) / 10) * 10
        print (n < 60 ? 60 : (n > 1200 ? 1200 : n)) }')
    tell "This machine learns from about $(grouped "${speed%.*}") tokens a second: $DEMO_STEPS steps of 8 x 256."
    echo
fi
show fsdp-launch -n 2 $config train.steps="$DEMO_STEPS" || fail "training failed"
show ckpt-merge $demo/checkpoints -o $demo/merged/ || fail "ckpt-merge"

heading "4. The model writes"
show fsdp-generate --model $demo/merged --prompt "And the king said unto" --max-tokens 80 --temperature 0.6 --seed 1 ||
    fail "fsdp-generate"

# ---- what it learned ----------------------------------------------------------------------------

heading "5. What it learned"
# The yardstick: a model that knows only how frequent each byte is.
bytes() { sed 's/^{"text": "//; s/"}$//; s/\\n/\n/g' "$1" | od -An -v -tu1 -w1; }
unigram=$(awk 'NR == FNR { count[$1 + 0]++; n++; next }
    { bits -= log((count[$1 + 0] + 1) / (n + 256)) / log(2); m++ }
    END { printf "%.4f", bits / m }' <(bytes $demo/text/train.jsonl) <(bytes $demo/text/held-out.jsonl))
awk -v u="$unigram" -v e="$(metric eval_bits_per_byte)" -v l="$(metric eval_loss)" 'BEGIN {
    printf "  held-out, a unigram model of bytes   %.4f bits per byte\n", u
    printf "  held-out, this model                 %.4f bits per byte (%.4f nats per token)\n", e, l
    exit !(e > 0 && e < 0.75 * u) }' || fail "the model is not a quarter better than a unigram model"
cat <<END

  vocabulary       $demo/model/tokenizer.json
  token file       $demo/train.u16, .index
  metrics          $demo/metrics.jsonl
  merged weights   $demo/merged/  (a Hugging Face folder, with its tokenizer)

Done in $((SECONDS - began)) s.
END
