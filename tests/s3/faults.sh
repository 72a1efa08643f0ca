#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Save, merge, reshard and copy while a proxy between them and the store answers 503 and 500, cuts
# connections before and after the store has acted, stalls, truncates, says 200 with an error in it,
# claims another time, and is slow to start. Nothing is lost, nothing partial is published, and
# after a gc nothing is left. FAULTS=200 does more rounds, FAULT_SEED=N (1) chooses them; what was
# done how often is a table at the end, and in so long a run each must have been done.
# run: long
# run: timeout=3000
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
rounds=${FAULTS:-20}
seed=${FAULT_SEED:-1}
at=$S3_TEST_URL/faults-$$
direct=$AWS_ENDPOINT_URL
echo "# FAULT_SEED=$seed FAULTS=$rounds"

# What the rounds are held against, of two sizes: files of one request, and files of several parts.
prepare() { # size
    mkdir "$1"
    cat >"$1/run.yaml" <<YAML
model: {path: $1/model, init: random, seed: 1}
data: {path: text, seq_len: 32, tokenizer: bytes}
train: {steps: 2, global_batch_size: 2, threads: 1}
checkpoint: {path: $1/ck, interval: 1, compress: none}
YAML
    install -D -m 644 "$TOP/examples/llama-tiny/config.json" "$1/model/config.json"
    [ "$1" = small ] || sed -i 's/"vocab_size": [0-9]*/"vocab_size": 36000/' "$1/model/config.json"
    "$BIN/fsdp-launch" -n 2 "$1/run.yaml" && "$BIN/ckpt-reshard" -q "$1/ck" --world 3 -o "$1/three" &&
        "$BIN/ckpt-merge" -q "$1/ck" -o "$1/full.safetensors" && "$BIN/ckpt-cp" -q "$1/ck" "$at/source-$1"
}
seq 2000 >text
for size in small large; do
    prepare $size >log 2>err
    ok $? "what $size rounds are held against"
done

# The operation of a round; its result goes to $1.
try() { # what, where
    case $1 in
    save) "$BIN/fsdp-launch" -n 2 $size/run.yaml checkpoint.async=true checkpoint.path="$2" ;;
    merge) "$BIN/ckpt-merge" -q "$at/source-$size" -o "$2/full.safetensors" ;;
    reshard) "$BIN/ckpt-reshard" -q "$at/source-$size" --world 3 -o "$2/step-00000002" ;;
    copy) "$BIN/ckpt-cp" -q "$at/source-$size" "$2/step-00000002" ;;
    esac >log 2>err
}

# What is there is right, and there is nothing else.
holds() { # what, where
    case $1 in
    merge) "$BIN/ckpt-diff" --data "$2/full.safetensors" $size/full.safetensors ;;
    reshard) "$BIN/ckpt-verify" "$2" && "$BIN/ckpt-diff" "$2" $size/three ;;
    *) "$BIN/ckpt-verify" "$2" && "$BIN/ckpt-diff" "$2" $size/ck ;;
    esac >log 2>err || return 1
    "$BIN/ckpt-info" --gc --older 0s "$2" >log 2>err &&
        "$BIN/ckpt-info" --gc --older 0s --dry-run --json "$2" >left 2>err && grep -q '"remains": \[\]' left &&
        grep -q '"uploads": 0' left
}

# A failure is allowed, a lie is not: what a failed command left is no checkpoint, and the same
# command completes it.
round() { # number
    local what where size=small tries=0 port failed=
    if [ $(($1 % 40)) -lt 4 ] || [ "$1" -lt 8 ]; then size=large; fi # the store keeps all in memory
    what=$(printf '%s\n' save merge reshard copy | sed -n "$(($1 % 4 + 1))p")
    where=$at/round-$1
    coproc PROXY { exec "$TOP/tests/s3/lib/proxy" "$seed-$1" 8 "${direct#http://}"; }
    read -r port <&"${PROXY[0]}"
    until AWS_ENDPOINT_URL=http://127.0.0.1:$port try "$what" "$where"; do
        tries=$((tries + 1))
        failed+=$(tail -n 2 err)
        if [ $tries = 5 ]; then break; fi
    done
    exec {PROXY[1]}>&-
    read -r struck <&"${PROXY[0]}"
    wait "$PROXY_PID"
    tr ',;' '\n\n' <<<"${struck#*requests;}" | sed 's/^ *//' >>counts
    holds "$what" "$where"
    ok $? "round $1, $size $what: $struck; again after a failure: $tries"
    echo "$what $tries" >>again
    if [ -n "$failed" ]; then sed 's/^/# /' <<<"$failed"; fi
}
for ((i = 0; i < rounds; i++)); do round $i; done

echo "# what was done to requests:"
awk 'NF { n = $1; $1 = ""; count[$0] += n } END { for (k in count) printf "#  %5d%s\n", count[k], k }' counts | sort -k 3 | tee table
echo "# commands that failed and were given again: $(awk '{ n += $2 } END { print n + 0 " in " NR " rounds" }' again)"
missing=
for kind in 503 500 reset 'slow start' lost-reply stall truncate skew 'skew (HEAD)' '200 with an error (copy)' \
    '200 with an error (complete)'; do
    grep -qF " $kind" table || missing+=" $kind;"
done
[ "$rounds" -lt 200 ] || [ -z "$missing" ]
ok $? "everything was done to some request${missing:+; not:$missing}"

# Seen by another program: every object is a manifest's or what it names.
"$S3_PYTHON" - "$at" >log 2>err <<'PYTHON'
import json, sys
import botocore.session

bucket, prefix = sys.argv[1][len("s3://"):].split("/", 1)
s3 = botocore.session.get_session().create_client("s3")
keys = {o["Key"] for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix + "/")
        for o in page.get("Contents", [])}
known = {k for k in keys if k.endswith(("/full.safetensors", "/job.json"))}
for key in [k for k in keys if k.endswith("/manifest.json")]:
    m = json.load(s3.get_object(Bucket=bucket, Key=key)["Body"])
    folder = key[: -len("manifest.json")]
    known |= {key} | {folder + f["path"] for f in m["files"]} | {folder + f["path"] for f in m.get("extras", [])}
uploads = [u["Key"] for u in s3.list_multipart_uploads(Bucket=bucket, Prefix=prefix + "/").get("Uploads", [])]
print("not named:", sorted(keys - known), "missing:", sorted(known - keys), "uploads:", uploads)
sys.exit(bool(keys ^ known or uploads))
PYTHON
ok $? "another client sees nothing else: $(head -c 300 log)"
echo "1..$n"
exit $bad
