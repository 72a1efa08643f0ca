#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Where credentials come from, against a small server in place of STS, a container's endpoint and an
# instance's metadata; that they are renewed; that no secret is ever printed. And what else a store may
# answer: slow down, half an answer, another region.
# run: timeout=300
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
for v in $(compgen -e AWS_); do unset "$v"; done
unset S3_TEST_URL
export HOME=$TEST_TMP AWS_EC2_METADATA_DISABLED=true AWS_REGION=us-east-1

header='{"w":{"dtype":"F32","shape":[1000],"data_offsets":[0,4000]}}'
{ printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header" && head -c 4000 /dev/zero; } >object
cp object object.safetensors
echo 'AKIDFAKE SECRET-OF-THE-SERVER' >keys
echo identity-token >identity
python3 "$TOP/tests/s3/lib/fake.py" . object >fake.log 2>&1 &
fake=$!
trap 'kill $fake 2>/dev/null; wait' EXIT
for i in $(seq 600); do [ -s port ] && break; sleep 0.1; done
at=http://127.0.0.1:$(cat port)
export AWS_ENDPOINT_URL=$at

# Reads the object of a bucket; what is printed must hold none of the secrets.
reads() { # bucket
    : >requests
    "$BIN/ckpt-info" "s3://$1/w.safetensors" >log 2>err
    local rc=$?
    ! grep -E 'OF-THE-SERVER|TOPSECRET|-token|token-[0-9]' log err >leak || { echo "leak: $(cat leak)" >>err; return 99; }
    return $rc
}
refused() { # text of the error
    reads bucket
    [ $? = 1 ] && grep -qF -- "$1" err
}

refused 'no credentials for S3'
ok $? "none: $(cat err)"
AWS_ACCESS_KEY_ID=AKIDENV AWS_SECRET_ACCESS_KEY=TOPSECRET reads bucket
ok $? "environment"
(export AWS_ACCESS_KEY_ID=AKIDENV; refused 'AWS_SECRET_ACCESS_KEY')
ok $? "half of it: $(cat err)"

mkdir .aws
printf '[default]\naws_access_key_id = AKIDDEF\naws_secret_access_key = TOPSECRET\n' >.aws/credentials
reads bucket
ok $? "the default profile"
printf '[profile other]\nregion = eu-north-7\nendpoint_url = %s\ns3 =\n  addressing_style = path\ncredential_process = %s\n' \
    "$at" "cat $TEST_TMP/printed" >.aws/config
printf '{"Version": 1, "AccessKeyId": "AKIDPROC", "SecretAccessKey": "TOPSECRET", "SessionToken": "token-9"}' >printed
(unset AWS_ENDPOINT_URL AWS_REGION; AWS_PROFILE=other reads elsewhere) && ! grep -q GET.*sts requests
ok $? "another profile: its command, endpoint and region"
(export AWS_PROFILE=nobody; refused "there is no profile 'nobody'")
ok $? "no such profile: $(cat err)"
echo 'no TOPSECRET json' >printed
(export AWS_PROFILE=other; refused 'credential_process are no JSON')
ok $? "what a command prints is not repeated: $(cat err)"
sed -i 's/^credential_process.*/credential_process = exit 3/' .aws/config
(export AWS_PROFILE=other; refused 'failed (status 3)')
ok $? "a command that fails: $(cat err)"

# A sign-in by browser: what to do instead.
printf '[profile sso]\nsso_session = work\nsso_account_id = 1\n[sso-session work]\nsso_region = us-east-1\n' >.aws/config
asks_cli='`credential_process = aws configure export-credentials --profile sso --format process`'
(export AWS_PROFILE=sso; refused "profile 'sso' has sso_session" && grep -qF -- "$asks_cli" err && ! grep -q GET requests)
ok $? "a profile that signs in with SSO: $(cat err)"
printf 'credential_process = cat %s\n[profile job]\nrole_arn = arn:role\nsource_profile = sso\n' "$TEST_TMP/printed" >>.aws/config
(export AWS_PROFILE=job; refused "profile 'sso' has sso_session")
ok $? "and one that takes a role by it"
printf '{"Version": 1, "AccessKeyId": "AKIDPROC", "SecretAccessKey": "TOPSECRET"}' >printed
sed -i '/^sso_account_id/a credential_process = cat '"$TEST_TMP/printed" .aws/config
(AWS_PROFILE=sso reads bucket)
ok $? "with the command, it is read"

# A role that another profile takes.
export AWS_ENDPOINT_URL_STS=$at/sts
role() { # lines of the profile
    printf '[profile job]\nrole_arn = arn:role\n%b\n[profile src]\naws_access_key_id = AKIDSRC\naws_secret_access_key = TOPSECRET\n' "$1" >.aws/config
}
role 'source_profile = src\nexternal_id = agreed'
AWS_PROFILE=job reads bucket && grep -q 'POST /sts' requests
ok $? "a role, by another profile's keys"
role 'source_profile = src'
(export AWS_PROFILE=job; refused "AccessDenied, for role 'arn:role'")
ok $? "which STS refuses: $(cat err)"
role 'external_id = agreed'
(export AWS_PROFILE=job; refused 'no source_profile')
ok $? "with nobody to take it: $(cat err)"
role 'source_profile = nobody'
(export AWS_PROFILE=job; refused "source_profile: there is no profile 'nobody'")
ok $? "by somebody who is not there: $(cat err)"
role 'source_profile = job'
(export AWS_PROFILE=job; refused 'leads in a circle')
ok $? "by itself, without keys: $(cat err)"
unset AWS_ENDPOINT_URL_STS

# What is sent over plain HTTP is hashed, unless the profile says otherwise.
printf '[default]\ns3 =\n  addressing_style = path\n  payload_signing_enabled = false\nregion = us-east-1\n' >.aws/config
export AWS_ACCESS_KEY_ID=AKIDENV AWS_SECRET_ACCESS_KEY=TOPSECRET
: >requests
"$BIN/ckpt-reshard" -q object.safetensors --world 1 -o s3://ignoring/unsigned 2>err && grep -q '^PUT.* unsigned$' requests
ok $? "payload_signing_enabled = false"
rm .aws/config
: >requests
"$BIN/ckpt-reshard" -q object.safetensors --world 1 -o s3://ignoring/signed 2>err && grep -q '^PUT' requests && ! grep -q unsigned requests
ok $? "and without"
unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY
rm -r .aws

export AWS_ENDPOINT_URL_STS=$at/sts AWS_ROLE_ARN=arn:role
AWS_WEB_IDENTITY_TOKEN_FILE=$PWD/identity reads bucket && grep -q 'POST /sts' requests
ok $? "web identity"
echo wrong >wrong
(export AWS_WEB_IDENTITY_TOKEN_FILE=$PWD/wrong; refused 'InvalidIdentityToken')
ok $? "which STS refuses: $(cat err)"
(export AWS_WEB_IDENTITY_TOKEN_FILE=$PWD/nothing; refused "$PWD/nothing")
ok $? "whose file is not there: $(cat err)"

echo container-token >token
AWS_CONTAINER_CREDENTIALS_FULL_URI=$at/container AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=$PWD/token reads bucket
ok $? "a container's endpoint"
(export AWS_CONTAINER_CREDENTIALS_FULL_URI=$at/container; refused 'HTTP 403')
ok $? "which refuses: $(cat err)"
(export AWS_CONTAINER_CREDENTIALS_FULL_URI=http://192.0.2.1/x; refused 'neither https')
ok $? "which is somewhere else: $(cat err)"
export AWS_EC2_METADATA_SERVICE_ENDPOINT=$at AWS_EC2_METADATA_DISABLED=false
reads bucket && grep -q 'PUT /latest/api/token' requests
ok $? "an instance's metadata"

reads bucket && [ "$(grep -c the-role requests)" = 1 ]
ok $? "which is asked once"
echo -5 >lifetime
reads bucket && [ "$(grep -c the-role requests)" -ge 2 ]
ok $? "and again when what it gave has expired"
echo 3600 >lifetime
seq -f token-%g 1 200 >expired
(reads expiring; [ $? = 1 ] && grep -q 'session token has expired' err && [ "$(grep -c the-role requests)" -ge 2 ])
ok $? "an expired token: $(cat err)"
: >expired
reads expiring
ok $? "one that is good"

# Short-lived ones are renewed while they are good, behind the transfers, of every source that can give
# others: no request has any that have expired. Each answer takes a second there.
renew() { # source, what is done when the first have been given out
    mkdir "$1" && echo 32 >"$1/lifetime"
    python3 "$TOP/tests/s3/lib/fake.py" "$1" object >"$1/fake.log" 2>&1 &
    local server=$! rc
    for i in $(seq 600); do [ -s "$1/port" ] && break; sleep 0.1; done
    export AWS_ENDPOINT_URL=http://127.0.0.1:$(cat "$1/port") HOME=$PWD/$1 AWS_EC2_METADATA_DISABLED=true
    case $1 in
    container*) export AWS_CONTAINER_CREDENTIALS_FULL_URI=$AWS_ENDPOINT_URL/container AWS_CONTAINER_AUTHORIZATION_TOKEN=container-token ;;
    instance) export AWS_EC2_METADATA_DISABLED=false AWS_EC2_METADATA_SERVICE_ENDPOINT=$AWS_ENDPOINT_URL ;;
    identity-of-web) export AWS_WEB_IDENTITY_TOKEN_FILE=$PWD/identity AWS_ENDPOINT_URL_STS=$AWS_ENDPOINT_URL/sts && cp identity "$1/" ;;
    process) mkdir "$1/.aws" && printf '[default]\ncredential_process = curl -sS %s/process\n' "$AWS_ENDPOINT_URL" >"$1/.aws/config" ;;
    esac
    "$BIN/ckpt-merge" -q s3://renewing/w.safetensors -o "$1/out.safetensors" >"$1/log" 2>"$1/err" &
    local tool=$!
    for i in $(seq 600); do [ -s "$1/lives" ] && break; sleep 0.1; done
    ${2:-true}
    wait $tool
    rc=$?
    kill $server
    cp "$1/err" err
    ! grep -E 'OF-THE-SERVER|TOPSECRET|token-[0-9]' "$1/err" "$1/log" && [ $rc = 0 ] && "$BIN/ckpt-diff" object.safetensors "$1/out.safetensors" >"$1/log"
}
lives() { # source: how many were used; none after its end, the second asked for in the first's life
    awk '$1 == "used" && ($2 == "none" || $3 <= 0) { exit 1 }
        $1 == "given" && $2 == "token-2" && $3 <= 0 { exit 1 }
        $1 == "used" { n += !seen[$2]++ }
        END { print n + 0 }' "$1/lives"
}
pids=()
for source in container instance identity-of-web process; do
    (renew $source) & pids+=($!)
done
(renew container-that-fails 'touch container-that-fails/broken') & pids+=($!)
i=0
for source in container instance identity-of-web process; do
    wait ${pids[i]}
    ok $(($? || $(lives $source || echo 0) < 2)) "renewed early, $source: $(grep -c ^used $source/lives) requests, by $(lives $source) credentials"
    i=$((i + 1))
done
wait ${pids[i]} && [ "$(lives container-that-fails)" = 1 ] && grep -q 'the old ones are good for' container-that-fails/err
ok $? "and where that fails the old ones are used: $(head -n 1 container-that-fails/err)"

reads throttled
ok $? "a store that says slow down is asked again"
reads torn
ok $? "half an answer is asked for again"
reads elsewhere
ok $? "a bucket in another region is found"
AWS_ENDPOINT_URL=http://user@127.0.0.1 refused 'AWS_ENDPOINT_URL'
ok $? "an endpoint that is none: $(cat err)"

export AWS_ACCESS_KEY_ID=AKIDENV AWS_SECRET_ACCESS_KEY=TOPSECRET
# Stores without conditions: seen by a probe, said once; what is there is not overwritten.
for how in refusing:refuses ignoring:ignores; do
    "$BIN/ckpt-reshard" object.safetensors --world 1 -o s3://${how%:*}/out >log 2>err && grep -q "${how#*:} If-None-Match" err &&
        [ "$(grep -c If-None-Match err)" = 1 ] && "$BIN/ckpt-verify" s3://${how%:*}/out >log 2>err
    ok $? "a store that ${how#*:} conditions"
    "$BIN/ckpt-reshard" object.safetensors --world 1 -o s3://${how%:*}/out >log 2>err
    [ $? = 1 ] && grep -q 'already exists' err
    ok $? "which keeps what it has"
done

# TLS: only with a certificate that somebody vouches for, for this very name.
mkdir tls
openssl req -x509 -newkey rsa:2048 -nodes -keyout tls/key -out tls/cert -days 2 -subj /CN=127.0.0.1 \
    -addext subjectAltName=IP:127.0.0.1 >log 2>&1
python3 "$TOP/tests/s3/lib/fake.py" tls object tls/cert tls/key >tls.log 2>&1 &
fake="$fake $!"
for i in $(seq 600); do [ -s tls/port ] && break; sleep 0.1; done
export AWS_ENDPOINT_URL=https://127.0.0.1:$(cat tls/port)
refused 'certificate'
ok $? "a certificate that nobody vouches for: $(cat err)"
AWS_CA_BUNDLE=$PWD/tls/cert reads bucket
ok $? "AWS_CA_BUNDLE vouches"
(export AWS_CA_BUNDLE=$PWD/tls/nothing; refused tls/nothing)
ok $? "a bundle that is not there: $(cat err)"
echo "1..$n"
exit $bad
