#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Nothing is removed through a link, on another mount, or because it lies where a checkpoint lies.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
holds() { grep -q -F -- "$2" "$1"; }
gc() { "$BIN/ckpt-info" --gc --older 0s "$@" >log 2>err; }
uuid=01234567-89ab-4def-8123-456789abcdef
shard=shard-00001-model-00001-of-00001.safetensors

make_input
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 2, global_batch_size: 2}
checkpoint: {path: ck, interval: 1, fsync: false}
log: {metrics: ''}
END
"$BIN/fsdp-launch" run.yaml >log 2>err || { cat err; exit 1; }
home() { # a folder of the user's that must survive
    rm -rf home && mkdir -p home/papers && echo thesis >home/papers/thesis.tex && echo t >home/tokenizer.json
}
home_stays() { [ "$(cat home/papers/thesis.tex home/tokenizer.json | tr '\n' ' ')" = 'thesis t ' ]; }

# ---- leftovers -----------------------------------------------------------------------------------
home
ln -s "$PWD/home" ck/step-00000001.tmp.$uuid
ln -s "$PWD/home" ck/step-00000003.del.$uuid
ln -s "$PWD/home" ck/merged.tmp.0123456789abcdef
mkdir -p ck/step-00000004.tmp.$uuid ck/other.tmp.0123456789abcdef ck/loop.tmp.0123456789abcdef
ln -s "$PWD/home" ck/step-00000004.tmp.$uuid/model
ln -s . ck/loop.tmp.0123456789abcdef/out
ln -s "$PWD/home" ck/other.tmp.0123456789abcdef/out
ln -s "$PWD/home/papers/thesis.tex" ck/other.tmp.0123456789abcdef/journal
gc --dry-run ck
ok "$([ $? = 0 ] && [ "$(grep -c '^would go' log)" = 6 ] && ! holds log '7 bytes'; echo $?)" \
    "links among leftovers: their targets are neither measured"
gc ck
ok "$([ $? = 0 ] && home_stays && [ "$(ls ck | tr '\n' ' ')" = 'step-00000001 step-00000002 ' ]; echo $?)" \
    "nor removed: the links go"
mkdir -p ck/step-00000004.tmp.$uuid/model
echo code >ck/step-00000004.tmp.$uuid/model/mine.py
echo data >ck/step-00000004.tmp.$uuid/model/$shard
gc ck
ok "$([ $? = 1 ] && holds err "'model/mine.py'" && [ -e ck/step-00000004.tmp.$uuid/model/$shard ]; echo $?)" \
    "a file of the user's stops the removal of a leftover, and is named"
rm -rf ck/*.tmp.*

# ---- checkpoint.keep -----------------------------------------------------------------------------
more() { "$BIN/fsdp-launch" run.yaml "$@" >log 2>&1 || cat log; }
mkdir archive && mv ck/step-00000001 archive/ && ln -s "$PWD/archive/step-00000001" ck/step-00000001
more train.steps=4 checkpoint.keep=2
ok "$([ -e archive/step-00000001/manifest.json ] && [ -L ck/step-00000001 ] && [ ! -e ck/step-00000002 ] &&
    [ -d ck/step-00000003 ] && [ -d ck/step-00000004 ]; echo $?)" \
    "checkpoint.keep: a link in the place of a step is neither counted nor removed"
home
rm -r ck/step-00000003/hf && ln -s "$PWD/home" ck/step-00000003/hf
echo notes >ck/step-00000004/model/notes.txt
more train.steps=7 checkpoint.keep=2
ok "$([ "$(grep -c 'stays.*model/notes.txt' log)" = 1 ] && [ -e ck/step-00000004/manifest.json ] &&
    [ -d ck/step-00000007 ]; echo $?)" "a file of the user's keeps its checkpoint: one warning, and the run ends well"
ok "$([ ! -e ck/step-00000003 ] && [ ! -e ck/step-00000005 ] && home_stays; echo $?)" \
    "others go, and a link in one is not followed"
echo "1..$n"
exit $bad
