#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Merge and reshard within one store: parts of the output that are ranges of the source are copied by the store, where it
# tells checksums (a proxy adds them as AWS has them), and those prove the source. A store that tells none, or a wrong one;
# kills; a source that is replaced meanwhile.
# run: long
# run: timeout=900
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/s3/lib/one.sh"
tells=copies # what the proxy does
# A command through the proxy; $told: what it counted.
through() {
    coproc PROXY { exec "$S3_PYTHON" "$TOP/tests/s3/lib/proxy" 0 0 "${direct#http://}" $tells; }
    read -r port <&"${PROXY[0]}"
    AWS_ENDPOINT_URL=http://127.0.0.1:$port "$@"
    local rc=$?
    exec {PROXY[1]}>&-
    read -r told <&"${PROXY[0]}"
    wait "$PROXY_PID"
    return $rc
}
within() { sed -n 's/^ "bytes_within": \([0-9]*\).*/\1/p' log; }
one() { quiet ckpt-merge --json "$at/src" -o "$at/$1" --mem 64M --threads 2; }
cut_() { quiet ckpt-reshard --json "$at/src" --world 3 -o "$at/$1" --mem 64M --threads 2; }
right() { # a reshard: verified, and the same tensors by the bytes
    quiet ckpt-verify "$at/$1" && quiet ckpt-diff --data plain.safetensors "$at/$1"
}

quiet ckpt-reshard in.safetensors --world 2 -o "$at/src"
ok $? "a checkpoint of two files"

# 48 MiB of each file; parts of 5 MiB.
through one a.safetensors && bytes=$(within) && [ "$bytes" -ge $((60 << 20)) ] && [ "$bytes" -lt $((96 << 20)) ] && equal a.safetensors
ok $? "a merge into one object: the store copies $((${bytes:-0} >> 20)) of 96 MiB ($told)"
[[ $told == *" $((bytes / 5242880)) copies"* ]]
ok $? "in so many parts as it says"
through cut_ c && bytes=$(within) && [ "$bytes" -ge $((50 << 20)) ] && right c
ok $? "a reshard into three files: $((${bytes:-0} >> 20)) of 96 MiB"
quiet ckpt-reshard in.safetensors --world 3 -o here && quiet ckpt-cp "$at/c" back && cmp here/model/*1-model* back/model/*1-model* &&
    cmp here/model/*3-model* back/model/*3-model*
ok $? "its files are those that pass through here"
through quiet ckpt-merge --json "$at/src" -o "$at/f.safetensors" --dtype float32 --mem 64M --exclude nothing && equal f.safetensors
ok $? "a cast that changes nothing: the same"

one direct.safetensors && [ "$(within)" = 0 ] && [ ! -s err ] && equal direct.safetensors
ok $? "a store that tells no checksum: all passes through here"
cut_ d && [ "$(within)" = 0 ] && right d
ok $? "a reshard, too"

tells=miscopies
through one w.safetensors && said=$(grep 'read and sent instead' err) && [ "$(within)" = 0 ] && equal w.safetensors
ok $? "a wrong checksum: $said"
[ "$(s3 uploads w.safetensors)" = 0 ] && [ "$(s3 left w.safetensors)" = w.safetensors ]
ok $? "nothing else is left"
through cut_ w && grep -q 'read and sent instead' err && [ "$(within)" = 0 ] && right w
ok $? "a reshard, too"
tells=x-amz-copy-source
through one r.safetensors && [ "$(within)" = 0 ] && [ ! -s err ] && equal r.safetensors && [[ $told == *refused* ]]
ok $? "a store that does not copy: $told"
tells=copies

# Killed at several calls; the same command completes it, with what is there. The proxy is the same: it has the checksums.
twice() { # command, name, call
    CKPT_FAULT=kill:$3 "$1" "$2" && return 1
    "$1" "$2"
}
wrong=0 most=0
for call in 20 44 60; do
    through twice one "k$call.safetensors" $call && [ "$(within)" -gt 0 ] || wrong=$call
    there=$(sed -n 's/.*: \([0-9]*\) of [0-9]* parts were there.*/\1/p' err)
    [ "${there:-0}" -le $most ] || most=$there
    equal "k$call.safetensors" || wrong=$call
done
ok $wrong "merges that were killed"
ok "$([ $most -gt 1 ]; echo $?)" "up to $most parts were there"
wrong=0 most=0
for call in 30 70 90; do
    through twice cut_ "k$call" $call || wrong=$call
    resumed=$(sed -n 's/^ "bytes_resumed": \([0-9]*\).*/\1/p' log)
    [ "${resumed:-0}" -le $most ] || most=$resumed
    right "k$call" || wrong=$call
done
ok $wrong "reshards that were killed"
ok "$([ $most -gt $((20 << 20)) ]; echo $?)" "up to $((most >> 20)) MiB were there, with what the store copied"

# A file of the source is replaced in the middle.
replaced() { # name, the file that takes the source's place
    CKPT_FAULT=stop:30 "$BIN/ckpt-merge" "$at/src" -o "$at/$1" --mem 64M --threads 2 >log 2>err &
    local pid=$! try
    for ((try = 0; try < 600; try++)); do
        [ "$(sed 's/.*) //; s/ .*//' "/proc/$pid/stat" 2>>noise)" = T ] && break
        sleep 0.1
    done
    AWS_DEFAULT_REGION=us-east-1 "$S3_PYTHON" -m awscli --endpoint-url "$direct" s3 cp --quiet "$2" "$at/src/$path"
    kill -CONT $pid
    wait $pid
}
path=$("$S3_PYTHON" - "$at/src" <<'PYTHON'
import json, sys
import botocore.session
bucket, prefix = sys.argv[1][len("s3://"):].split("/", 1)
body = botocore.session.get_session().create_client("s3").get_object(Bucket=bucket, Key=prefix + "/manifest.json")["Body"]
print(json.load(body)["files"][1]["path"])
PYTHON
)
AWS_DEFAULT_REGION=us-east-1 "$S3_PYTHON" -m awscli --endpoint-url "$direct" s3 cp --quiet "$at/src/$path" file
{ head -c 40000000 file && head -c 1000 /dev/urandom && tail -c +40001001 file; } >other
through replaced z.safetensors other
[ $? = 1 ] && grep -q "$path" err && [ -z "$(s3 left z.safetensors)" ]
ok $? "a source that is replaced meanwhile: $(tail -n 1 err)"
[ "$(s3 uploads z.safetensors)" = 0 ]
ok $? "no upload is left"

# A source without checksums, of which a file is replaced when it has been read: the object does not appear.
put() { AWS_DEFAULT_REGION=us-east-1 "$S3_PYTHON" -m awscli --endpoint-url "$direct" s3 cp --quiet "$1" "$2"; }
small='{"a":{"dtype":"U8","shape":[8,1048576],"data_offsets":[0,8388608]}}'
{ printf "\\$(printf %o ${#small})\\0\\0\\0\\0\\0\\0\\0%s" "$small" && head -c 8388608 /dev/urandom; } >small.safetensors
put small.safetensors "$at/hf/model-00001-of-00002.safetensors"
put in.safetensors "$at/hf/model-00002-of-00002.safetensors"
CKPT_FAULT=stop:60 "$BIN/ckpt-merge" "$at/hf" -o "$at/hf-one.safetensors" --mem 64M --threads 2 >log 2>err &
pid=$!
for ((try = 0; try < 600; try++)); do
    [ "$(sed 's/.*) //; s/ .*//' "/proc/$pid/stat" 2>>noise)" = T ] && break
    sleep 0.1
done
{ head -c -1000 small.safetensors && head -c 1000 /dev/urandom; } >other.safetensors
put other.safetensors "$at/hf/model-00001-of-00002.safetensors"
kill -CONT $pid
wait $pid
[ $? = 1 ] && grep -q 'model-00001-of-00002.safetensors.*changed' err && [ -z "$(s3 left hf-one.safetensors)" ] && [ "$(s3 uploads hf-one.safetensors)" = 0 ]
ok $? "a file that is replaced after it was read: $(tail -n 1 err)"
echo "1..$n"
exit $bad
