#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Transfers to and from a real S3 server on this machine, as ratios to curl moving the same parts and
# ranges in parallel, and to the AWS CLI's `cp`, taking turns in one run; the medians of ROUNDS (5).
# Over plain HTTP what we send is signed with its hash, which the store compares: that is held
# against a curl that is given the hashes, which openssl makes on all processors; and what we send
# with payload_signing_enabled = false against a curl that signs no more than we do then. CPU: what
# the client spends on a GB.
# `make bench-s3` starts the server. MB (256) is the size of the object. Nothing here is a test.
set -u
TOP=$(cd "$(dirname "$0")/.." && pwd)
BIN=${BIN:-$TOP/build/bin}
mb=${MB:-256} rounds=${ROUNDS:-5}
[ -n "${S3_TEST_URL:-}" ] || { echo "bench: no S3 server: make bench-s3" >&2; exit 1; }
tmp=/dev/shm
[ -w $tmp ] || tmp=${TMPDIR:-/tmp}
work=$(mktemp -d "$tmp/fsdp-bench.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

bucket=${S3_TEST_URL#s3://} key=bench-$$
at=$AWS_ENDPOINT_URL/$bucket/$key
part=$((8 << 20)) range=$((2 << 20)) nbytes=$((mb << 20))
sigv4=(-sS --fail --aws-sigv4 aws:amz:us-east-1:s3 --user "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY")
unsigned='x-amz-content-sha256: UNSIGNED-PAYLOAD'
signed=("${sigv4[@]}" -H "$unsigned")
aws() { AWS_DEFAULT_REGION=us-east-1 "$S3_PYTHON" -m awscli --endpoint-url "$AWS_ENDPOINT_URL" "$@"; }
# "SECONDS CPU-SECONDS" of a command, those of its children with it.
seconds() { # command...
    local TIMEFORMAT='%R %U %S' times
    times=$({ time "$@" >/dev/null 2>failed; } 2>&1) || { echo "bench: $1 failed: $(tail -n 3 failed)" >&2; exit 1; }
    awk '{ printf "%.3f %.3f\n", $1, $2 + $3 }' <<<"$times"
}

head -c $nbytes /dev/urandom >object
split -b $part -d -a 4 object part-
printf '[default]\ns3 =\n  payload_signing_enabled = false\n' >unsigned.conf
for ((p = 0; p < nbytes; p += range)); do
    printf 'url = "%s.curl"\nrange = "%d-%d"\noutput = "/dev/null"\n' "$at" $p $((p + range - 1))
done >ranges

curl_get() { curl "${signed[@]}" --no-progress-meter --parallel --parallel-max 16 --config ranges; }
# Parts alone: neither the beginning nor the end of the upload.
curl_put() { # how
    local f hash=UNSIGNED-PAYLOAD i=0
    [ "$1" = unsigned ] || printf '%s\n' part-* | xargs -n 4 -P "$(nproc)" openssl dgst -sha256 -r >hashes
    for f in part-*; do
        [ "$1" = unsigned ] || hash=$(sed -n "s/ .*$f\$//p" hashes)
        [ $i = 0 ] || echo next
        printf 'url = "%s.curl?partNumber=%d&uploadId=%s"\nupload-file = "%s"\noutput = "/dev/null"\n' "$at" $((++i)) "$upload" $f
        printf 'header = "x-amz-content-sha256: %s"\naws-sigv4 = "aws:amz:us-east-1:s3"\nuser = "%s:%s"\nsilent\nfail\n' \
            "$hash" "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY"
    done >parts
    curl --no-progress-meter --parallel --parallel-max 12 --config parts
}
begin_put() { upload=$(curl "${signed[@]}" -X POST "$at.curl?uploads=" | sed -n 's/.*<UploadId>\(.*\)<\/UploadId>.*/\1/p'); }
end_put() { curl "${signed[@]}" -X DELETE "$at.curl?uploadId=$upload" >/dev/null; }

"$BIN/tests/s3/bench_s3" put object "$S3_TEST_URL/$key.curl" >/dev/null || exit 1
for ((r = 0; r < rounds; r++)); do
    for how in unsigned signed; do
        begin_put
        echo "put curl-$how $(seconds curl_put $how)"
        end_put
    done
    echo "put ours-signed $("$BIN/tests/s3/bench_s3" put object "$S3_TEST_URL/$key")"
    echo "put ours-unsigned $(AWS_CONFIG_FILE=unsigned.conf "$BIN/tests/s3/bench_s3" put object "$S3_TEST_URL/$key")"
    echo "put aws $(seconds aws s3 cp object "$S3_TEST_URL/$key.aws")"
    echo "get curl $(seconds curl_get)"
    echo "get ours $("$BIN/tests/s3/bench_s3" get object "$S3_TEST_URL/$key")"
    echo "get aws $(seconds aws s3 cp "$S3_TEST_URL/$key.aws" copy)"
done >rows
[ -z "${ROWS:-}" ] || cp rows "$ROWS"
aws s3 rm --recursive "$S3_TEST_URL/" --exclude '*' --include "$key*" >/dev/null
/usr/bin/time -f %M -o memory "$BIN/tests/s3/bench_s3" put object "$S3_TEST_URL/$key" >/dev/null
aws s3 rm "$S3_TEST_URL/$key" >/dev/null

median() { # put or get, who, which column
    grep "^$1 $2 " rows | sort -k "$3" -n | awk -v c="$3" '{ v[NR] = $c } END { print v[int((NR + 1) / 2)] }'
}
compare() { # put or get, ours, curl
    awk -v w="$1 ($2)" -v o="$(median "$1" "$2" 3)" -v c="$(median "$1" "$3" 3)" -v a="$(median "$1" aws 3)" -v mb="$mb" \
        -v co="$(median "$1" "$2" 4)" -v cc="$(median "$1" "$3" 4)" -v ca="$(median "$1" aws 4)" 'BEGIN {
        printf "%s: %.0f MiB/s, %.2f x parallel curl, %.2f x aws s3 cp", w, mb / o, c / o, a / o
        gb = mb * 1048576 / 1e9
        printf "; CPU-s a GB: %.2f, curl %.2f, aws %.2f\n", co / gb, cc / gb, ca / gb }'
}
compare put ours-signed curl-signed
compare put ours-unsigned curl-unsigned
compare get ours curl
echo "peak memory of a put: $(($(cat memory) / 1024)) MiB, $mb of them the file that is sent"
