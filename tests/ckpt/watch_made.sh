#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ckpt-merge --watch, where weights are there and what comes after them fails, or never happened: of GGUF files, and of
# folders. And with --config. tests/ckpt/watch.sh watches runs.
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
install -D -m 644 -t tiny "$TOP/tests/data/llama-tiny"/{config.json,model.safetensors} "$TOP/examples/llama-tiny/tokenizer.json"
"$BIN/ckpt-reshard" tiny -o ck/step-00000001 --world 2 >log 2>err && "$BIN/ckpt-reshard" tiny -o ck/step-00000002 --world 1 >log 2>err
ok $? "two checkpoints"
touch watch.log watch.err
watcher() { "$BIN/ckpt-merge" --watch ck -o "$1" --poll 0.02 --end-after 0 "${@:2}" >watch.log 2>watch.err; }
all() { # output, suffix: both are published, and nothing else is there
    [ "$(cd "$1" && echo *)" = "latest step-00000001$2 step-00000001.published step-00000002$2 step-00000002.published" ] &&
        [ "$(cat "$1/latest")" = step-00000002 ]
}
for step in 1 2; do
    "$BIN/ckpt-merge" ck/step-0000000$step -o step$step.gguf --type q8_0 --quiet 2>err
done
# Fails four times for a step; the watch ends after six tries.
cat >flaky.sh <<'END'
echo "$CKPT_STEP $CKPT_OUTPUT" >>calls
[ "$(grep -c "^$CKPT_STEP " calls)" = 5 ]
END

# ---- a command that fails ------------------------------------------------------------------------

for of in '.gguf --type q8_0' ''; do
    read -r -a words <<<"$of"
    suffix=${words[0]}
    rm -rf calls out
    watcher out "${words[@]:1}" --then 'sh flaky.sh' && all out "$suffix"
    ok $? "a command that fails four times is called a fifth time; weights '$suffix': $(tail -n 1 watch.err)"
    [ "$(sort -u calls)" = "$(printf '%s\n' "1 out/step-00000001$suffix" "2 out/step-00000002$suffix")" ] && ! holds watch.err exists
    ok $? "with the weights, which are made once"
    for step in 1 2; do
        if [ "$suffix" ]; then
            cmp out/step-0000000$step.gguf step$step.gguf >log 2>err
        else
            "$BIN/ckpt-diff" --model out/step-0000000$step tiny >log 2>err
        fi
        ok $? "and which are those of step $step"
    done

    # ---- one that was killed after the weights ---------------------------------------------------

    rm -f out/*.published out/latest calls
    watcher out "${words[@]:1}" --then 'echo "$CKPT_STEP" >>calls' && all out "$suffix"
    ok $? "weights without a note are taken for made: $(tail -n 1 watch.err)"
    [ "$(sort calls | tr '\n' ' ')" = '1 2 ' ]
    ok $? "and the command is called for each"
done

mkdir -p way/step-00000001.gguf
touch way/step-00000001.gguf/x
watcher way --type q8_0
[ $? = 1 ] && holds watch.err 'not all checkpoints' && [ ! -e way/step-00000001.published ] && [ -e way/step-00000002.published ]
ok $? "a folder in the way of a file is no weights: $(head -n 1 watch.err)"

# ---- a model's configuration from elsewhere ------------------------------------------------------

rm -rf ck
mkdir bare && cp tiny/model.safetensors bare && "$BIN/ckpt-reshard" bare -o ck/step-00000001 --world 1 >log 2>err
watcher plain && [ ! -e plain/step-00000001/config.json ]
ok $? "a checkpoint without config.json"
watcher configured --config tiny && cmp -s configured/step-00000001/config.json tiny/config.json
ok $? "gets that of --config: $(tail -n 1 watch.err)"
echo "1..$n"
exit $bad
