#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The same merge into one object, twice at once: one upload, which both write. Whoever comes second finds the object
# there; who fails does not end what the other sends. ROUNDS (3) of two that run side by side.
# run: timeout=900
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/s3/lib/one.sh"

become() { # name, a word for its files, CKPT_FAULT; $to: the store's address, if another
    exec env ${to:+AWS_ENDPOINT_URL=$to} ${3:+CKPT_FAULT=$3} \
        "$BIN/ckpt-merge" in.safetensors -o "$at/$1" --mem 64M --threads 2 >"log.$2" 2>"err.$2"
}
start() { (become "$@"); }
# One that is stopped by a signal to itself at so many calls; *pid.
stopped() { # name, word, call
    become "$1" "$2" "stop:$3" &
    pid=$!
    for ((try = 0; try < 600; try++)); do
        state=$(sed 's/.*) //; s/ .*//' "/proc/$pid/stat" 2>>noise)
        [ "$state" = T ] && return 0
        [ -n "$state" ] && [ "$state" != Z ] || return 1
        sleep 0.1
    done
    return 1
}
resume() { # pid; its status
    kill -CONT "$1"
    wait "$1"
}
clean() { # name: the object alone is there
    [ "$(s3 uploads "$1")" = 0 ] && [ "$(s3 left "$1")" = "$1" ]
}
# A store that refuses one part for good, to some.
to=
coproc PROXY { exec "$TOP/tests/s3/lib/proxy" 0 0 "${direct#http://}" parts; }
read -r port <&"${PROXY[0]}"
refusing=http://127.0.0.1:$port
fell() { # status, word
    [ "$1" = 1 ] && grep -q 'NotImplemented' "err.$2"
}

# Stopped in the middle, overtaken: its parts are refused, and the object is its own.
stopped over.safetensors a 60 && [ "$(s3 parts over.safetensors)" -gt 2 ]
ok $? "one is stopped in the middle"
first=$pid
start over.safetensors b && grep -q 'from an earlier run' err.b
ok $? "the second sends the rest: $(tail -n 1 err.b)"
resume "$first"
ok $? "the first finds the object: $(tail -n 1 err.a)"
grep -q 'by another process' err.a && equal over.safetensors && clean over.safetensors
ok $? "which is whole, and alone there"

# The second fails, in what the first has begun.
stopped second.safetensors a 60
first=$pid
to=$refusing start second.safetensors b
fell $? b
ok $? "the second fails: $(tail -n 1 err.b)"
resume "$first" && equal second.safetensors && clean second.safetensors
ok $? "the first completes: $(tail -n 1 err.a)"

# The first fails, in what it has begun itself and the second continues.
to=$refusing stopped first.safetensors a 60
first=$pid
stopped first.safetensors b 40
ok $? "two are stopped in one upload"
resume "$first"
fell $? a
ok $? "the first fails: $(tail -n 1 err.a)"
resume "$pid" && equal first.safetensors && clean first.safetensors
ok $? "the second completes: $(tail -n 1 err.b)"

# One alone fails: it ends what it began.
to=$refusing start alone.safetensors a
fell $? a && [ "$(s3 uploads alone.safetensors)" = 0 ] && [ -z "$(s3 left alone.safetensors)" ]
ok $? "one alone fails, and leaves neither upload nor notes: $(tail -n 1 err.a)"
exec {PROXY[1]}>&-
wait "$PROXY_PID"

# The upload is ended by somebody else: that is said, and the same command begins it anew.
stopped ended.safetensors a 60 && s3 abort ended.safetensors
ok $? "the upload of one is ended elsewhere"
resume "$pid"
ok "$([ $? = 1 ] && grep -q 'another process ended its upload' err.a; echo $?)" "it fails: $(tail -n 1 err.a)"
start ended.safetensors a && equal ended.safetensors && clean ended.safetensors
ok $? "the same command, again, completes"

# Side by side: from nothing, and behind a killed one.
well() { # status, word: it ended well, or says why it kept off
    [ "$1" = 0 ] || grep -q 'exists already\|already exists\|being written by another process' "err.$2"
}
for kind in new resumed; do
    bad_rounds=
    for ((round = 0; round < ${ROUNDS:-3}; round++)); do
        name=$kind-$round.safetensors
        [ $kind = new ] || killed "$name"
        start "$name" a &
        other=$!
        [ $kind = resumed ] || sleep "0.$round" # from 0: before, and while, the first writes
        start "$name" b
        rc_b=$?
        wait "$other"
        rc_a=$?
        well $rc_a a && well $rc_b b && { [ $rc_a = 0 ] || [ $rc_b = 0 ]; } && equal "$name" && clean "$name" && continue
        bad_rounds+=" $round"
        sed 's/^/# /' err.a err.b
        echo "# $rc_a $rc_b; $(s3 uploads "$name") uploads; $(s3 left "$name" | tr '\n' ' ')"
    done
    ok "$([ -z "$bad_rounds" ]; echo $?)" "two at once, $kind: an object that is whole (bad:$bad_rounds)"
done
echo "1..$n"
exit $bad
