#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Transfers to and from a real S3 server on this machine, as ratios to curl moving the same parts and
# ranges in parallel, and to the AWS CLI's `cp`, taking turns in one run; the median of ROUNDS (3).
# `make bench-s3` starts the server. MB (256) is the size of the object. Nothing here is a test.
set -u
TOP=$(cd "$(dirname "$0")/.." && pwd)
BIN=${BIN:-$TOP/build/bin}
mb=${MB:-256} rounds=${ROUNDS:-3}
[ -n "${S3_TEST_URL:-}" ] || { echo "bench: no S3 server: make bench-s3" >&2; exit 1; }
tmp=/dev/shm
[ -w $tmp ] || tmp=${TMPDIR:-/tmp}
work=$(mktemp -d "$tmp/fsdp-bench.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

bucket=${S3_TEST_URL#s3://} key=bench-$$
at=$AWS_ENDPOINT_URL/$bucket/$key
part=$((16 << 20)) range=$((2 << 20)) nbytes=$((mb << 20))
signed=(-sS --fail --aws-sigv4 aws:amz:us-east-1:s3 --user "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY"
    -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD')
aws() { AWS_DEFAULT_REGION=us-east-1 "$S3_PYTHON" -m awscli --endpoint-url "$AWS_ENDPOINT_URL" "$@" >/dev/null; }
seconds() { # command...
    local begun
    begun=$(date +%s.%N)
    "$@" >/dev/null || { echo "bench: $1 failed" >&2; exit 1; }
    echo "$(date +%s.%N) $begun" | awk '{ printf "%.3f\n", $1 - $2 }'
}

head -c $nbytes /dev/urandom >object
split -b $part -d -a 4 object part-
for ((p = 0; p < nbytes; p += range)); do
    printf 'url = "%s.curl"\nrange = "%d-%d"\noutput = "/dev/null"\n' "$at" $p $((p + range - 1))
done >ranges

curl_get() { curl "${signed[@]}" --no-progress-meter --parallel --parallel-max 16 --config ranges; }
curl_put() { # parts alone: neither the beginning nor the end of the upload
    local f i=0
    for f in part-*; do
        printf 'url = "%s.curl?partNumber=%d&uploadId=%s"\nupload-file = "%s"\noutput = "/dev/null"\n' "$at" $((++i)) "$upload" $f
    done >parts
    curl "${signed[@]}" --no-progress-meter --parallel --parallel-max 8 --config parts
}

"$BIN/tests/s3/bench_s3" put object "$S3_TEST_URL/$key.curl" >/dev/null || exit 1
for ((r = 0; r < rounds; r++)); do
    upload=$(curl "${signed[@]}" -X POST "$at.curl?uploads=" | sed -n 's/.*<UploadId>\(.*\)<\/UploadId>.*/\1/p')
    echo "put curl $(seconds curl_put)"
    curl "${signed[@]}" -X DELETE "$at.curl?uploadId=$upload" >/dev/null
    echo "put ours $("$BIN/tests/s3/bench_s3" put object "$S3_TEST_URL/$key")"
    echo "put aws $(seconds aws s3 cp object "$S3_TEST_URL/$key.aws")"
    echo "get curl $(seconds curl_get)"
    echo "get ours $("$BIN/tests/s3/bench_s3" get object "$S3_TEST_URL/$key")"
    echo "get aws $(seconds aws s3 cp "$S3_TEST_URL/$key.aws" copy)"
done >rows
aws s3 rm --recursive "$S3_TEST_URL/" --exclude '*' --include "$key*"
/usr/bin/time -f %M -o memory "$BIN/tests/s3/bench_s3" put object "$S3_TEST_URL/$key" >/dev/null
aws s3 rm "$S3_TEST_URL/$key"

median() { grep "^$1 $2 " rows | sort -k 3 -n | awk '{ v[NR] = $3 } END { print v[int((NR + 1) / 2)] }'; }
for what in put get; do
    ours=$(median $what ours) curl=$(median $what curl) aws=$(median $what aws)
    awk -v w=$what -v o="$ours" -v c="$curl" -v a="$aws" -v mb="$mb" 'BEGIN {
        printf "%s: %.0f MiB/s, %.2f x parallel curl, %.2f x aws s3 cp\n", w, mb / o, c / o, a / o }'
done
echo "peak memory of a put: $(($(cat memory) / 1024)) MiB, $mb of them the file that is sent"
