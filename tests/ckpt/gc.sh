#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ckpt-info --gc: remains go when they are old, nothing else ever does.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
gc() { "$BIN/ckpt-info" --gc "$@" >log 2>err; }
holds() { grep -q -F -- "$2" "$1"; }

install -D -m 644 "$TOP/examples/llama-tiny/config.json" model/config.json
seq 2000 >text
cat >run.yaml <<YAML
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 2, global_batch_size: 2}
checkpoint: {path: ck, fsync: false}
YAML
"$BIN/fsdp-launch" run.yaml >log 2>err || { cat err; exit 1; }
uuid=01234567-89ab-4def-8123-456789abcdef
mkdir -p ck/step-00000009.tmp.$uuid/model ck/step-00000001.del.$uuid ck/merged.tmp.0123456789abcdef/out \
    ck/young.tmp.$uuid ck/my.tmp.files ck/step-00000008 ck/x.tmp.0123
echo data >ck/step-00000009.tmp.$uuid/model/shard-00001-model-00001-of-00001.safetensors
echo data >ck/step-00000001.del.$uuid/manifest.json
echo data >ck/merged.tmp.0123456789abcdef/journal
echo data >ck/.check-$uuid
echo thesis >ck/thesis.tmp.0123456789abcdef
echo thesis >ck/thesis.del.$uuid
echo thesis >ck/thesis.tmp.$uuid
echo status >ck/status.json.tmp.b8d259d9279d7961
echo status >ck/m.jsonl.status.json.tmp.b8d259d9279d7961
find ck -mindepth 1 -not -path 'ck/young*' -exec touch -d '2 hours ago' {} +
find ck | sort >before

gc --dry-run ck
ok $? "a dry run"
ok "$(find ck | sort | cmp -s - before; echo $?)" "removes nothing"
for what in step-00000009.tmp.$uuid step-00000001.del.$uuid merged.tmp.0123456789abcdef .check-$uuid; do
    ok "$(grep -q "^would go  *ck/$what " log; echo $?)" "names ck/$what"
done
ok "$(grep -q "^stays  *ck/young.tmp.$uuid " log && holds log 'or is being written'; echo $?)" "a young one may be alive"
ok "$([ "$(grep -c '^[a-z ]* ck/' log)" = 7 ]; echo $?)" "and no other"
gc --older 3h ck
ok "$([ $? = 0 ] && [ "$(grep -c ^stays log)" = 6 ] && grep -q '^removed  *ck/step-00000001.del' log; echo $?)" \
    "--older 3h: only what was being removed goes"
gc --json ck
ok "$([ $? = 0 ] && [ "$(grep -c '"removed": true' log)" = 5 ]; echo $?)" "an hour: the others, as JSON"
ok "$([ "$(ls -A ck | grep -v -e json -e thesis | tr '\n' ' ')" = "my.tmp.files step-00000002 step-00000008 x.tmp.0123 young.tmp.$uuid " ]; echo $?)" \
    "what is published, or somebody's own, stays"
ok "$([ "$(cat ck/thesis.tmp.0123456789abcdef ck/thesis.del.$uuid ck/thesis.tmp.$uuid | grep -c thesis)" = 3 ]; echo $?)" \
    "so do plain files that only have such a name"
ok "$(! ls ck | grep -q 'json.tmp'; echo $?)" "those of a status that was being written go"
ok "$("$BIN/ckpt-verify" ck >log 2>&1; echo $?)" "and is whole"
gc --older 0s ck && [ ! -e ck/young.tmp.$uuid ]
ok $? "--older 0s: the young one too"

# A copy that is stopped somewhere between its first folder and the final name is alive.
for at in $(seq 20 4 80); do
    CKPT_FAULT=stop:$at "$BIN/ckpt-cp" ck/step-00000002 ck/copy >log2 2>err2 &
    pid=$!
    until state=$(ps -o stat= -p $pid) && [ "${state:0:1}" = T ] || ! kill -0 $pid 2>noise; do sleep 0.05; done
    compgen -G 'ck/copy.tmp.*' >noise && break
    kill -CONT $pid 2>noise
    wait $pid
    rm -rf ck/copy
done
gc ck
ok "$([ $? = 0 ] && grep -q '^stays  *ck/copy.tmp.' log; echo $?)" "what is being written stays"
kill -CONT $pid
wait $pid
ok "$([ $? = 0 ] && "$BIN/ckpt-diff" ck/copy ck/step-00000002 >log; echo $?)" "and is finished"
# A run that is killed while it writes its note leaves the beginnings of one.
for at in $(seq 60); do
    rm -rf noted
    { CKPT_FAULT=kill:$at "$BIN/fsdp-launch" run.yaml checkpoint.path=noted >log 2>err; } 2>>noise
    compgen -G 'noted/running.json.tmp*' >half && break
done
touch -d '59 minutes ago' "$(cat half)"
gc noted
ok "$([ $? = 0 ] && [ -e "$(cat half)" ] && grep -q "^stays  *$(cat half) " log; echo $?)" "half a note: a young one stays"
touch -d '2 hours ago' "$(cat half)"
gc noted
ok "$([ $? = 0 ] && [ -s half ] && [ ! -e "$(cat half)" ] && grep -q "^removed  *$(cat half) " log; echo $?)" "an old one goes"
gc nowhere
ok "$([ $? = 1 ] && holds err nowhere; echo $?)" "a folder that is not there"
"$BIN/ckpt-info" --older 2h ck >log 2>err
ok "$([ $? = 2 ] && holds err 'belong to --gc'; echo $?)" "--older without --gc"
"$BIN/ckpt-info" --whole-bucket ck >log 2>err
ok "$([ $? = 2 ] && holds err 'belong to --gc'; echo $?)" "nor --whole-bucket"
for at in s3://bucket s3://bucket/; do
    AWS_ENDPOINT_URL=http://127.0.0.1:1 gc --older 0s $at
    rc=$?
    holds err 'made without libcurl' && continue # such a build has no buckets
    ok "$([ $rc = 1 ] && holds err "a whole bucket" && holds err "('s3://bucket/PREFIX')"; echo $?)" "$at: not all of a bucket"
done
gc --older 2x ck
ok "$([ $? = 2 ] && holds err '30m'; echo $?)" "an age that is none"
echo "1..$n"
exit $bad
