#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ckpt-cp within a store, whose large files the store copies itself; a store that does not do that;
# kills, damage, what is replaced meanwhile.
# run: timeout=600
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
at=$S3_TEST_URL/cp-$$
direct=$AWS_ENDPOINT_URL
cp_() { { "$BIN/ckpt-cp" "$@" >log 2>err; } 2>>noise; } # noise: the shell on what was killed
aws() { AWS_DEFAULT_REGION=us-east-1 timeout 120 "$S3_PYTHON" -m awscli --endpoint-url "$direct" "$@" >log 2>err; }
within() { sed -n 's/^ "bytes_within": \([0-9]*\).*/\1/p' log; }

# Two files of 40 MiB.
header='{"a":{"dtype":"F32","shape":[20,1048576],"data_offsets":[0,83886080]}}'
{ printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header" && head -c 83886080 /dev/urandom; } >a.safetensors
"$BIN/ckpt-reshard" -q a.safetensors --world 2 -o "$at/a"
ok $? "a checkpoint of two large files"

cp_ --json "$at/a" "$at/b" && [ "$(within)" -gt 83886080 ] && "$BIN/ckpt-verify" "$at/b" >log 2>err &&
    "$BIN/ckpt-merge" -q "$at/b" -o b.safetensors 2>err && "$BIN/ckpt-diff" --data a.safetensors b.safetensors >log 2>err
ok $? "the store copies them, and they are the same"
cp_ "$at/a" "$at/b" && grep -q 'this very checkpoint already' log
ok $? "once more: nothing to do"
cp_ "$at/b" "$at/c" --verify --mem 16M && grep -q '80.0 MiB moved by the store itself' log
ok $? "a copy of the copy, with --verify: $(cat log)"
cp_ --json "$at/a" here && [ "$(within)" = 0 ] && cp_ --json here "$at/up" && [ "$(within)" = 0 ]
ok $? "from and to a folder all passes through here"

# Killed at any step, it continues; what the killed run had not come to prove is read again.
wrong=0
for k in 3 5 7 9 11 13 15; do
    CKPT_FAULT=kill:$k cp_ "$at/a" "$at/killed"
    cp_ "$at/a" "$at/killed" && "$BIN/ckpt-verify" "$at/killed" >log 2>err || wrong=$k
    aws s3 rm --recursive --quiet "$at/killed" || wrong=$k
done
ok $wrong "killed, and given again"

# An object of the right size with other bytes: the manifest's checksum tells.
path=$(sed -n 's/.*"path": *"\([^"]*model[^"]*\)".*/\1/p' <("$S3_PYTHON" - "$at/a" <<'PYTHON'
import json, sys
import botocore.session
bucket, prefix = sys.argv[1][len("s3://"):].split("/", 1)
body = botocore.session.get_session().create_client("s3").get_object(Bucket=bucket, Key=prefix + "/manifest.json")["Body"]
print(json.dumps(json.load(body)["files"], indent=1))
PYTHON
) | head -n 1)
aws s3 cp "$at/a/$path" file && cp log /dev/null
size=$(stat -c %s file)
aws s3 cp file "$at/kept"
printf '\377\376\375' | dd of=file bs=1 seek=$((size - 1000)) conv=notrunc 2>noise
aws s3 cp file "$at/a/$path"
cp_ "$at/a" "$at/damaged"
[ $? = 1 ] && grep -q 'its checksum is .*, not ' err && ! "$BIN/ckpt-info" "$at/damaged" >log 2>&1
ok $? "damage is told, and not published: $(cat err)"
"$BIN/ckpt-info" --gc --older 0s "$at/damaged" >log 2>&1
aws s3 cp "$at/kept" "$at/a/$path"

# A store that does not copy: as if it were two. Nothing of that is an error.
coproc PROXY { exec "$TOP/tests/s3/lib/proxy" 0 0 "${direct#http://}" x-amz-copy-source; }
read -r port <&"${PROXY[0]}"
export AWS_ENDPOINT_URL=http://127.0.0.1:$port
cp_ --json "$at/a" "$at/through" && [ "$(within)" = 0 ] && [ ! -s err ] && "$BIN/ckpt-verify" "$at/through" >log 2>err
ok $? "a store that does not copy"
exec {PROXY[1]}>&-
read -r struck <&"${PROXY[0]}"
wait "$PROXY_PID"
grep -q refused <<<"$struck"
ok $? "it had been asked: $struck"
export AWS_ENDPOINT_URL=$direct
"$BIN/ckpt-info" --gc --older 0s --dry-run --json "$at" >log 2>err && grep -q '"uploads": 0' log
ok $? "no upload is left"
echo "1..$n"
exit $bad
