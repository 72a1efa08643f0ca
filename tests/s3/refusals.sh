#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What a user is told when a real store refuses: who, what, where, and what to do; no secret in it.
# run: timeout=300
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
server=$TOP/tests/s3/lib/server
at=$S3_TEST_URL/refusals-$$
aws() { AWS_DEFAULT_REGION=us-east-1 timeout 120 "$S3_PYTHON" -m awscli --endpoint-url "$AWS_ENDPOINT_URL" "$@" >log 2>err; }
"$BIN/tests/s3/test_save" make "$at" >log 2>err
ok $? "a checkpoint"

# The error has all these texts, and no secret.
refused() { # texts...; of: program arguments in `call`
    local text
    timeout 120 "$BIN/${call[0]}" "${call[@]:1}" >log 2>err
    [ $? = 1 ] || return 1
    ! grep -qE 'SECRETTEST|NOTTHESECRET' err || return 1
    for text; do grep -qF -- "$text" err || return 1; done
}

call=(ckpt-info "$at")
(export AWS_SECRET_ACCESS_KEY=NOTTHESECRET; refused "$at" 'the secret key does not belong to the access key' AKIDTEST "$AWS_ENDPOINT_URL")
ok $? "a wrong secret: $(cat err)"
(export AWS_ACCESS_KEY_ID=AKIDNOBODY; refused 'does not know the access key' AKIDNOBODY)
ok $? "an unknown key: $(cat err)"
call=(ckpt-info s3://no-such-bucket/x)
refused s3://no-such-bucket 'there is no such bucket'
ok $? "a missing bucket: $(cat err)"
call=(ckpt-reshard "$at" --world 2 -o s3://no-such-bucket/x)
refused s3://no-such-bucket 'there is no such bucket'
ok $? "one to write to: $(cat err)"
call=(ckpt-info s3://x/y)
refused "is not a name of a bucket"
ok $? "a name that no bucket has: $(cat err)"

# Another user, who may read and write everything but one prefix.
CEPH_ARGS=$CEPH_ARGS "$server" admin user create --uid="other$$" --display-name=other --access-key="AKIDOTHER$$" \
    --secret-key=NOTTHESECRET >log 2>err
bucket=${S3_TEST_URL#s3://}
cat >policy <<END
{"Version": "2012-10-17", "Statement": [
 {"Effect": "Allow", "Principal": {"AWS": ["arn:aws:iam:::user/other$$"]}, "Action": "s3:*",
  "Resource": ["arn:aws:s3:::$bucket", "arn:aws:s3:::$bucket/*"]},
 {"Effect": "Deny", "Principal": {"AWS": ["arn:aws:iam:::user/other$$"]}, "Action": ["s3:GetObject", "s3:PutObject"],
  "Resource": ["arn:aws:s3:::$bucket/refusals-$$/*"]}]}
END
aws s3api put-bucket-policy --bucket "$bucket" --policy file://policy
ok $? "another user is denied a prefix"
export AWS_ACCESS_KEY_ID=AKIDOTHER$$ AWS_SECRET_ACCESS_KEY=NOTTHESECRET
call=(ckpt-info "$at")
refused "$at" 'access denied' AKIDOTHER
ok $? "reading there: $(cat err)"
"$BIN/ckpt-info" "$S3_TEST_URL/open-$$" >log 2>err
grep -q 'no such object' err
ok $? "but not elsewhere"
export AWS_ACCESS_KEY_ID=AKIDTEST AWS_SECRET_ACCESS_KEY=SECRETTEST
"$BIN/ckpt-merge" -q "$at" -o full.safetensors 2>err
export AWS_ACCESS_KEY_ID=AKIDOTHER$$ AWS_SECRET_ACCESS_KEY=NOTTHESECRET
call=(ckpt-reshard full.safetensors --world 2 -o "$at/denied")
refused "$at/denied" 'access denied'
ok $? "writing there: $(cat err)"
"$BIN/ckpt-reshard" full.safetensors --world 2 -o "$S3_TEST_URL/open-$$" >log 2>err
ok $? "but elsewhere"
export AWS_ACCESS_KEY_ID=AKIDTEST AWS_SECRET_ACCESS_KEY=SECRETTEST
aws s3api delete-bucket-policy --bucket "$bucket"
"$server" admin user rm --uid="other$$" >log 2>err

call=(ckpt-info "$at")
(export AWS_ENDPOINT_URL=http://127.0.0.1:1; refused '127.0.0.1:1' '4 tries')
ok $? "nobody at home: $(cat err)"
(export AWS_ENDPOINT_URL=https://${AWS_ENDPOINT_URL#http://}; refused "$AWS_ENDPOINT_URL")
ok $? "TLS where there is none: $(cat err)"
echo "1..$n"
exit $bad
