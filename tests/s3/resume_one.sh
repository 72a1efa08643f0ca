#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A merge into one large object, killed in the middle: the same command sends only the parts that the store does not
# have, and the object is equal to the bit. Parts of other bytes under the same name are sent again.
# run: timeout=900
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
at=$S3_TEST_URL/resume-one-$$
direct=$AWS_ENDPOINT_URL listed=
quiet() { { "$BIN/$@" >log 2>err; } 2>>noise; } # noise: the shell on what was killed
s3() { # operation, further arguments of the client; the answer's words
    "$S3_PYTHON" - "$at" "$@" <<'PYTHON'
import sys
import botocore.session
bucket, prefix = sys.argv[1][len("s3://"):].split("/", 1)
s3 = botocore.session.get_session().create_client("s3")
key = prefix + "/" + sys.argv[3]
if sys.argv[2] == "uploads":
    found = [u for u in s3.list_multipart_uploads(Bucket=bucket, Prefix=key).get("Uploads", []) if u["Key"] == key]
    print(len(found))
elif sys.argv[2] == "spoil":  # one part gets other bytes of the same size
    u = s3.list_multipart_uploads(Bucket=bucket, Prefix=key)["Uploads"][0]["UploadId"]
    part = s3.list_parts(Bucket=bucket, Key=key, UploadId=u)["Parts"][1]
    s3.upload_part(Bucket=bucket, Key=key, UploadId=u, PartNumber=part["PartNumber"], Body=b"x" * part["Size"])
elif sys.argv[2] == "parts":
    u = s3.list_multipart_uploads(Bucket=bucket, Prefix=key)["Uploads"][0]["UploadId"]
    print(len(s3.list_parts(Bucket=bucket, Key=key, UploadId=u)["Parts"]))
elif sys.argv[2] == "left":
    for o in s3.list_objects_v2(Bucket=bucket, Prefix=key).get("Contents", []):
        print(o["Key"][len(prefix) + 1:])
PYTHON
}
count() { # a command through the proxy, with what it lists ($listed); *parts: how many parts it sent
    coproc PROXY { exec "$TOP/tests/s3/lib/proxy" 0 0 "${direct#http://}" $listed; }
    read -r port <&"${PROXY[0]}"
    AWS_ENDPOINT_URL=http://127.0.0.1:$port "$@"
    local rc=$?
    exec {PROXY[1]}>&-
    read -r told <&"${PROXY[0]}"
    wait "$PROXY_PID"
    parts=$(sed -n 's/.* \([0-9]*\) parts.*/\1/p' <<<"$told")
    parts=${parts:-0}
    return $rc
}

# 96 MiB of random numbers: 20 parts of 5 MiB, by --mem.
header='{"w":{"dtype":"U8","shape":[96,1048576],"data_offsets":[0,100663296]}}'
{
    printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header"
    head -c 100663296 /dev/urandom
} >in.safetensors
merge() { quiet ckpt-merge in.safetensors -o "$at/$1" --mem 64M --threads 2; }
quiet ckpt-merge in.safetensors -o plain.safetensors
equal() { rm -rf got && mkdir got && quiet ckpt-cp -q "$at/$1" got/ && cmp got/* plain.safetensors; }

count merge whole.safetensors && equal whole.safetensors
ok $? "an undisturbed merge"
all=$parts
ok "$([ "$all" -ge 15 ]; echo $?)" "sends $all parts"

# Killed when it has sent about half: a count of calls to the store.
killed() { # name: killed in the middle, so that some parts are there
    local at_call=40
    for _ in 1 2 3 4 5 6; do
        CKPT_FAULT=kill:$at_call merge "$1" && return 1
        have=$(s3 parts "$1" 2>>noise) && [ "${have:-0}" -gt 2 ] && return 0
        at_call=$((at_call + 8))
    done
    return 1
}
killed one.safetensors
ok $? "killed, ${have:-0} parts are there"
count merge one.safetensors
said=$(grep 'from an earlier run' err) && equal one.safetensors
ok $? "the same command completes, equal to the bit: $said"
# One more where the store tells no checksums, and a part is sent to see what its ETags are.
ok "$([ "$parts" -le $((all - have + 1)) ]; echo $?)" "it sent $parts parts, $all without the $have"
ok "$([ "$(s3 uploads one.safetensors)" = 0 ] && [ "$(s3 left one.safetensors)" = one.safetensors ]; echo $?)" "nothing else is left"

killed two.safetensors && s3 spoil two.safetensors
ok $? "killed, and one of ${have:-0} parts has other bytes"
count merge two.safetensors && equal two.safetensors
ok $? "which is sent again"
ok "$([ "$parts" -ge $((all - have + 1)) ] && [ "$parts" -lt $all ]; echo $?)" "it sent $parts parts"

# A store that lists checksums, as AWS does: no part is sent for a trial.
listed=checksums
killed_and_again() { killed five.safetensors && merge five.safetensors; }
count killed_and_again
said=$(sed -n 's/.*: \([0-9]*\) of [0-9]* parts were there.*/\1/p' err)
equal five.safetensors
ok $? "a store that lists checksums: completed, equal"
ok "$([ "$said" = "$have" ]; echo $?)" "all $have parts that were there are proved, without one sent for a trial (${said:-none})"
listed=

killed three.safetensors
quiet ckpt-merge in.safetensors -o "$at/three.safetensors" --mem 48M --exclude nothing
ok $? "with less memory, and so other parts, it completes, too" # the blocks are the same: so is the job
equal three.safetensors
ok $? "equal"
killed four.safetensors
echo 'w -> v' >other.map
quiet ckpt-merge in.safetensors -o "$at/four.safetensors" --mem 64M --map other.map
ok "$([ $? = 1 ] && grep -q 'begun by another command' err; echo $?)" "another command does not continue it"
merge four.safetensors && equal four.safetensors
ok $? "the same does"
echo "1..$n"
exit $bad
