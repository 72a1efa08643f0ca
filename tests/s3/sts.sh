#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A role taken from a real STS, that of Ceph's gateway: by another profile's keys, and what it may not. It
# is a gateway of its own before the same store, as one with an STS has other words for refusals.
# run: timeout=300
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
server=$TOP/tests/s3/lib/server
at=$S3_TEST_URL/sts-$$
bucket=${S3_TEST_URL#s3://}
"$BIN/tests/s3/test_save" make "$at/allowed" >log 2>err && "$BIN/ckpt-cp" -q "$at/allowed" "$at/denied" >log 2>err
ok $? "two checkpoints"

url=http://127.0.0.1:$S3_FREE_PORT
radosgw -f -n client.rgw --rgw_s3_auth_use_sts=true --rgw_sts_key=sixteen-letters! --rgw_frontends="beast endpoint=${url#http://}" \
    --log_file="$PWD/gateway.log" --pid_file="$PWD/gateway.pid" </dev/null >gateway.out 2>&1 &
gateway=$!
trap 'kill $gateway 2>/dev/null; wait' EXIT
for i in $(seq 1200); do curl -s -o answer "$url/" && break; sleep 0.1; done

# A user who may do nothing but take a role, which may do all but one prefix.
user=taker$$
"$server" admin user create --uid=$user --display-name=$user --access-key=AKIDTAKER$$ --secret-key=TAKERSECRET >log 2>err &&
    "$server" admin role create --role-name=role$$ --path=/ --assume-role-policy-doc='{"Version": "2012-10-17", "Statement": [
        {"Effect": "Allow", "Principal": {"AWS": ["arn:aws:iam:::user/'$user'"]}, "Action": ["sts:AssumeRole"]}]}' >log 2>err &&
    "$server" admin role-policy put --role-name=role$$ --policy-name=all --policy-doc='{"Version": "2012-10-17", "Statement": [
        {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::'$bucket'", "arn:aws:s3:::'$bucket'/*"]},
        {"Effect": "Deny", "Action": ["s3:GetObject", "s3:PutObject"], "Resource": ["arn:aws:s3:::'$bucket'/sts-'$$'/denied/*"]}]}' >log 2>err
ok $? "a role that a user may take"
cat >config <<END
[profile taker]
aws_access_key_id = AKIDTAKER$$
aws_secret_access_key = TAKERSECRET
[profile job]
role_arn = arn:aws:iam:::role/role$$
source_profile = taker
[profile stranger]
aws_access_key_id = $AWS_ACCESS_KEY_ID
aws_secret_access_key = $AWS_SECRET_ACCESS_KEY
[profile not-trusted]
role_arn = arn:aws:iam:::role/role$$
source_profile = stranger
[profile no-role]
role_arn = arn:aws:iam:::role/nothing$$
source_profile = taker
END
unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY
export AWS_CONFIG_FILE=$PWD/config AWS_ENDPOINT_URL=$url AWS_ENDPOINT_URL_STS=$url
with() { # profile, tool...
    AWS_PROFILE=$1 timeout 120 "$BIN/$2" "${@:3}" >log 2>err
    local rc=$?
    ! grep -qE 'TAKERSECRET|SECRETTEST' log err || return 99
    return $rc
}
with taker ckpt-verify "$at/allowed"
ok $(($? != 1)) "the user itself may not read: $(cat err)"
with job ckpt-verify "$at/allowed"
ok $? "by the role it may: $(tail -n 1 log)"
with job ckpt-reshard -q "$at/allowed" --world 3 -o "$at/new" && with job ckpt-verify "$at/new" && with job ckpt-diff "$at/allowed" "$at/new"
ok $? "and write"
with job ckpt-verify "$at/denied"
ok "$([ $? = 1 ] && grep -qF 'access denied' err; echo $?)" "not what is denied to the role: $(cat err)"
with not-trusted ckpt-verify "$at/allowed"
ok "$([ $? = 1 ] && grep -qF "for role 'arn:aws:iam:::role/role$$'" err; echo $?)" "a role that does not trust the user: $(cat err)"
with no-role ckpt-verify "$at/allowed"
ok "$([ $? = 1 ] && grep -qF "for role 'arn:aws:iam:::role/nothing$$'" err; echo $?)" "a role that is not there: $(cat err)"
"$server" admin role-policy delete --role-name=role$$ --policy-name=all >log 2>err
"$server" admin role rm --role-name=role$$ >log 2>err
"$server" admin user rm --uid=$user >log 2>err
echo "1..$n"
exit $bad
