#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The AWS CLI reads what we wrote and we read what it wrote; botocore signs as we do.
# run: timeout=300
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
at=$S3_TEST_URL/cli-$$
aws() { AWS_DEFAULT_REGION=us-east-1 timeout 120 "$S3_PYTHON" -m awscli --endpoint-url "$AWS_ENDPOINT_URL" "$@" >log 2>err; }

# 24 MiB: several parts on both sides.
header='{"w":{"dtype":"F32","shape":[6291456],"data_offsets":[0,25165824]}}'
{ printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header" && head -c 25165824 /dev/urandom; } >one.safetensors
"$BIN/ckpt-merge" -q one.safetensors -o "$at/ours.safetensors" >log 2>err && aws s3 cp "$at/ours.safetensors" back.safetensors &&
    "$BIN/ckpt-diff" --data back.safetensors one.safetensors >log 2>err
ok $? "it reads an object of several parts"
"$BIN/ckpt-reshard" -q one.safetensors --world 3 -o "$at/n3" >log 2>err && aws s3 sync "$at/n3" n3 &&
    "$BIN/ckpt-verify" n3 >log 2>err
ok $? "and a checkpoint, which is one on disk, too"
aws s3 cp one.safetensors "$at/theirs.safetensors" && "$BIN/ckpt-diff" --data "$at/theirs.safetensors" one.safetensors >log 2>err
ok $? "we read an object of its parts"
"$BIN/ckpt-reshard" -q one.safetensors --world 2 -o n2 >log 2>err && aws s3 sync n2 "$at/n2" && "$BIN/ckpt-verify" "$at/n2" >log 2>err
ok $? "and a checkpoint that it carried there"
name='a key+with=odd%25 &signs/ä.safetensors'
aws s3 cp one.safetensors "$at/$name" && "$BIN/ckpt-merge" -q "$at/$name" -o "$at/again $name" >log 2>err &&
    aws s3 cp "$at/again $name" odd.safetensors && "$BIN/ckpt-diff" one.safetensors odd.safetensors >log 2>err
ok $? "names with signs of all kinds"
aws s3api list-multipart-uploads --bucket "${S3_TEST_URL#s3://}" --prefix "cli-$$" && ! grep -q UploadId log
ok $? "no upload is left open"

"$BIN/tests/ckpt/test_s3_sign" sign >ours 2>err && "$S3_PYTHON" "$TOP/tests/s3/lib/sign.py" <ours >theirs 2>err && cmp <(cut -f 6 ours) theirs 2>err
ok $? "botocore signs $(wc -l <ours) requests as we do"
echo "1..$n"
exit $bad
