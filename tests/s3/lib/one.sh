# SPDX-License-Identifier: Apache-2.0
# A merge into one object of 20 parts, sourced by tests in their scratch folder: the input, the command, what the store
# has of it.
at=$S3_TEST_URL/one-$$
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
elif sys.argv[2] == "abort":
    u = s3.list_multipart_uploads(Bucket=bucket, Prefix=key)["Uploads"][0]["UploadId"]
    s3.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=u)
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
