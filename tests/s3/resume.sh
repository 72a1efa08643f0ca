#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A merge or reshard of several files to a store, killed at any step, continues when the same command
# is given again: with the files that are done, and with the bytes of an undisturbed run. Nothing of
# it is left at the end. KILLS rounds (8) for each, from KILL_SEED (1).
# run: timeout=1200
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
at=$S3_TEST_URL/resume-$$
kills=${KILLS:-8} seed=${KILL_SEED:-1}
echo "# KILL_SEED=$seed"
RANDOM=$((seed % 32768))
aws() { AWS_DEFAULT_REGION=us-east-1 timeout 120 "$S3_PYTHON" -m awscli --endpoint-url "$AWS_ENDPOINT_URL" "$@" >log 2>err; }
quiet() { { "$BIN/$@" >log 2>err; } 2>>noise; } # noise: the shell on what was killed
resumed() { sed -n 's/^ "bytes_resumed": \([0-9]*\).*/\1/p' log; }
left() { # what lies below an address besides the folder of the output
    "$S3_PYTHON" - "$1" <<'PYTHON'
import sys
import botocore.session
bucket, prefix = sys.argv[1][len("s3://"):].split("/", 1)
s3 = botocore.session.get_session().create_client("s3")
for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
    for o in page.get("Contents", []):
        print(o["Key"][len(prefix):])
PYTHON
}

"$BIN/tests/s3/test_save" make "$at/run" >log 2>err && quiet ckpt-cp -q "$at/run" source
ok $? "a checkpoint of four ranks"

merge() { quiet ckpt-merge source -o "$1" --max-shard-size 8K --json --quiet; }
dcp() { quiet ckpt-reshard source -o "$1" --world 3 --format dcp --json --quiet; }
reshard() { quiet ckpt-reshard source -o "$1" --world 3 --json --quiet; }
packed() { quiet ckpt-reshard source -o "$1" --world 3 --compress zstd --json --quiet; }
same() { # subject, output
    case $1 in
    merge | dcp) quiet ckpt-diff --data "$2" plain-$1 ;;
    *) quiet ckpt-verify "$2" && quiet ckpt-diff "$2" plain-$1 ;;
    esac
}
for subject in merge dcp reshard packed; do
    $subject plain-$subject
    ok $? "an undisturbed $subject, to a folder"
done

# One command, struck up to three times at one of the first $most steps.
strike() { # subject, output
    local i k
    for ((i = 0; i <= RANDOM % 3; i++)); do
        k=$((1 + RANDOM % most))
        if CKPT_FAULT=kill:$k $1 "$2"; then
            most=$((k > 20 ? k - 1 : most)) # that step did not come
            return 0
        fi
    done
    $1 "$2" && return 0
    # Killed behind its very last step, there was nothing left to do.
    grep -q 'already exists' err && [ -z "$(left "$2.tmp.")" ]
}
for subject in merge dcp reshard packed; do
    most=160 bad_rounds=
    for ((round = 0; round < kills; round++)); do
        strike $subject "$at/$subject-$round" && same $subject "$at/$subject-$round" && continue
        bad_rounds+=" $round"
        sed 's/^/# /' err
    done
    ok "$([ -z "$bad_rounds" ]; echo $?)" "$subject: killed, and given again: the same (bad:$bad_rounds)"
done
for subject in merge dcp; do
    ok "$([ "$(left "$at/$subject-0/" | sort)" = "$(ls -A plain-$subject)" ]; echo $?)" "$subject: no other file is there"
done
quiet ckpt-info --gc --older 0s --dry-run --json "$at"
ok "$(grep -q '"remains": \[\]' log && grep -q '"uploads": 0' log; echo $?)" "no notes, attempts or uploads are left"

# The same command twice at once: one of them may keep off, the result is right.
for subject in merge reshard; do
    (mkdir twin-$subject && ln -s ../source twin-$subject && cd twin-$subject && $subject "$at/twice-$subject") &
    $subject "$at/twice-$subject"
    wait $!
    $subject "$at/twice-$subject"
    same $subject "$at/twice-$subject" && [ -z "$(left "$at/twice-$subject.tmp.")" ]
    ok $? "$subject: twice at once"
done

# Stops a command when so many of its files are noted; its output is $half.
stop_behind() { # subject, how many files
    local k
    for k in $(seq 40 6 400); do
        half=$at/half-$1-$2-$k
        if CKPT_FAULT=kill:$k $1 "$half"; then return 1; fi
        if [ "$(left "$half.tmp." | grep -c done-)" -ge "$2" ]; then return 0; fi
    done
    return 1
}
for subject in dcp reshard packed; do
    stop_behind $subject 1 && $subject "$half" && [ "$(resumed)" -gt 0 ]
    ok $? "$subject: continues, $(resumed) bytes are there"
    same $subject "$half"
    ok $? "$subject: the same"
done
stop_behind merge 2
ok $? "a merge is stopped behind its second file"
object=$(left "$half/" | sort | head -n 1)
first=$(stat -c %s "plain-merge/$object")

# Another command of the same output keeps off; gc leaves young notes, and takes old ones.
quiet ckpt-merge source -o "$half" --max-shard-size 20K
ok "$([ $? = 1 ] && grep -q 'begun by another command' err; echo $?)" "another command does not mix with it: $(cat err)"
quiet ckpt-info --gc "$at"
ok "$([ $? = 0 ] && grep -q "^stays  *$half.tmp" log; echo $?)" "gc leaves its notes, which are young"
# What lies there now was not sent by the earlier run: it is not believed.
head -c "$first" /dev/urandom >other
aws s3 cp other "$half/$object"
merge "$half"
ok "$([ $? = 0 ] && [ "$(resumed)" -gt 0 ]; echo $?)" "the same command resumes: $(resumed) bytes are there"
same merge "$half"
ok $? "a file that was replaced meanwhile was written again"
stop_behind merge 1
ok $? "a merge is stopped behind its first file"
quiet ckpt-info --gc --older 0s "$at" && [ -z "$(left "$half.tmp.")" ]
ok $? "gc takes notes that are old"
merge "$half"
ok "$([ $? = 1 ] && grep -q 'already exists' err; echo $?)" "whose files are nobody's then"

echo "1..$n"
exit $bad
