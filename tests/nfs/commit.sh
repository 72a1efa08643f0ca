#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The commit of a checkpoint on a real NFS server, mounted twice as two clients, over NFSv4.2 and NFSv3:
# kills, racing writers, a reader whose file is removed, a new name seen elsewhere, a server that restarts,
# a full disk. Runs in an emulated machine (lib/guest), as few hosts let a test mount anything. NFS_KILLS (4)
# of saves, from KILL_SEED; NFS_RACES (4); NFS_VERSIONS.
# run: timeout=3600
set -u
here=$(dirname "$(realpath "$0")")
if [ -z "${NFS_KERNEL:-}" ]; then
    cd "$TEST_TMP" || exit 1
    export GUEST_ENV='KILL_SEED NFS_KILLS NFS_RACES NFS_VERSIONS'
    TMPDIR=$TEST_TMP GUEST_TIMEOUT=3400 exec "$here/lib/guest" run bash "$here/commit.sh"
fi
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
launch=$BIN/fsdp-launch
run() { "$launch" -n 2 run.yaml "$@" >log 2>err; }
tool() { "$BIN/$1" "${@:2}" >log 2>err; }
holds() { grep -q -F -- "$2" "$1"; }
prints() { grep -o '"[^"]*": {"kind": .*"fingerprint": "[^"]*"' "$1/manifest.json" | sort; }
same() { [ -n "$(prints "$1")" ] && cmp -s <(prints "$1") <(prints "$2"); }

install -D -m 644 "$TOP/examples/llama-tiny/config.json" model/config.json
head -c 6000 "$TOP/README.md" >text
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 16}
train: {steps: 3, global_batch_size: 2, seed: 2, threads: 1}
optim: {lr: 3.0e-3, schedule: constant}
fsdp: {timeout: 600}
checkpoint: {path: ck, interval: 1, fsync: true, compress: none}
END
echo "# kernel $NFS_KERNEL"
run checkpoint.path=memory
ok $? "a run without NFS"

held() { # process: stopped, or at its end
    for _ in $(seq 600); do
        [ -e /proc/$1/status ] && ! grep -q '^State:.[TZ]' /proc/$1/status 2>noise || return 0
        sleep 0.1
    done
}

client() { # version
    local v=$1 a=/mnt/a$1 b=/mnt/b$1
    mkdir -p "$NFS_EXPORTS/v$v"
    guest mount "$v" "/v$v" "$a" && guest mount "$v" "/v$v" "$b"
    ok "$([ $? = 0 ] && grep -q " $a nfs4\? .*vers=$v" /proc/mounts; echo $?)" "NFS $v: mounted by two clients"

    run checkpoint.path="$a/ck"
    ok "$([ $? = 0 ] && same memory/step-00000003 "$a/ck/step-00000003"; echo $?)" "NFS $v: a run saves every step"
    tool ckpt-verify "$b/ck"
    ok $? "NFS $v: the other client reads it, every byte"
    run checkpoint.path="$a/behind" checkpoint.async=true
    ok "$([ $? = 0 ] && same memory/step-00000003 "$b/behind/step-00000003"; echo $?)" "NFS $v: and one in the background"
    run checkpoint.path="$a/staged" checkpoint.staging=/dev/shm/stage
    ok "$([ $? = 0 ] && same memory/step-00000003 "$b/staged/step-00000003"; echo $?)" "NFS $v: and one by way of the node's memory"

    # ---- kills
    local wrong='' i call nkilled=0
    RANDOM=${KILL_SEED:-5}
    for i in $(seq "${NFS_KILLS:-4}"); do
        call=$((10 + RANDOM % 200))
        CKPT_FAULT=kill:$call run checkpoint.path="$a/kill$i"
        holds err 'killed by signal 9' && nkilled=$((nkilled + 1))
        for step in "$b/kill$i"/step-????????; do
            [ ! -d "$step" ] || tool ckpt-verify "$step" || wrong="$wrong $call: $step is not whole;"
        done
        run checkpoint.path="$a/kill$i" && same memory/step-00000003 "$b/kill$i/step-00000003" ||
            wrong="$wrong $call: ends elsewhere;"
        tool ckpt-info --gc --older 0s "$b/kill$i" || wrong="$wrong $call: gc;"
        [ -z "$(find "$a/kill$i" -name '*.tmp.*')" ] || wrong="$wrong $call: remains;"
    done
    ok "$([ -z "$wrong" ] && [ $nkilled -gt 0 ]; echo $?)" "NFS $v: $nkilled kills: what is published is whole, the same command completes it$wrong"

    # ---- two clients
    ls "$b" >noise
    [ ! -e "$b/late" ] && ! tool ckpt-info "$b/late" && tool ckpt-cp "$a/ck/step-00000001" "$a/late/" && tool ckpt-info "$b/late"
    ok $? "NFS $v: a name once looked up as absent is seen as soon as it is there"
    local racers=8 nwon race at wins=''
    for race in $(seq "${NFS_RACES:-4}"); do
        for i in $(seq $racers); do
            [ $((i % 2)) = 0 ] && at=$a || at=$b
            ("$BIN/ckpt-reshard" "$a/ck/step-00000002" -o "$at/race$race" --world $((1 + i % 3)) --threads 1 --quiet >race$i.log 2>&1
                echo $? >race$i) &
        done
        wait
        nwon=0
        for i in $(seq $racers); do [ "$(cat race$i)" = 0 ] && nwon=$((nwon + 1)); done
        wins="$wins$nwon"
        [ $nwon = 1 ] && tool ckpt-verify "$b/race$race" && tool ckpt-diff "$b/race$race" memory/step-00000002 && rm -rf "$a/race$race" && continue
        wins="$wins!"
        cat race?.log >log && : >err
        break
    done
    ok "$([ "${wins%!}" = "$wins" ]; echo $?)" "NFS $v: $racers writers of one name on both, winners each time: $wins"

    # ---- the same command on both clients, each held for a while near its end: the one must not undo what the
    # other publishes. Of v3, locks (nolock) are known to one client only.
    local calls one other status
    wrong=
    for calls in '180 163' '175 164' '180 160' '170 168'; do
        CKPT_FAULT=stop:${calls% *} "$BIN/ckpt-reshard" "$a/ck/step-00000002" -o "$a/twice" --world 2 --threads 1 --quiet >log 2>err &
        one=$!
        held $one
        CKPT_FAULT=stop:${calls#* } "$BIN/ckpt-reshard" "$b/ck/step-00000002" -o "$b/twice" --world 2 --threads 1 --quiet >log2 2>err2 &
        other=$!
        held $other
        kill -CONT $one
        wait $one
        status=$?
        [ $status != 0 ] || "$BIN/ckpt-verify" "$a/twice" >noise 2>&1 || wrong="$wrong $calls: $(head -c 150 noise);"
        kill -CONT $other 2>noise
        wait $other
        [ $((status + $?)) = 1 ] && tool ckpt-verify "$b/twice" && tool ckpt-diff "$b/twice" memory/step-00000002 ||
            wrong="$wrong $calls: not one won, or not whole: $(head -qc 150 err err2);"
        rm -rf "$a/twice"
    done
    ok "$([ -z "$wrong" ]; echo $?)" "NFS $v: two of the same command on both clients: one ends, the other says why not$wrong"

    # ---- the server restarts while a file is written. The mounts are hard, so that all waits for it; a server of
    # v4 that does not know its clients again makes them lose what they had open. The same command continues then, at
    # the second try at the latest: what the kernel could not write is reported to the first that opens the file again.
    local pid fails='continues'
    { CKPT_FAULT=stop:70 "$BIN/ckpt-reshard" "$a/ck/step-00000003" -o "$a/restart" --world 2 --threads 1 --quiet >log 2>err & } 2>noise
    pid=$!
    held $pid
    ls "$a"/restart.tmp.*/journal >noise && rpc.nfsd 0 && sleep 1 && rpc.nfsd 4
    status=$?
    kill -CONT $pid
    again() {
        holds err /restart.tmp. && holds err 'nput/output error' &&
            tool ckpt-reshard "$a/ck/step-00000003" -o "$a/restart" --world 2 --threads 1 --quiet
    }
    wait $pid || { fails="fails, and continues when given again: $(head -c 150 err)" && again; } || again
    ok "$([ $? = 0 ] && [ $status = 0 ] && tool ckpt-verify "$b/restart" && tool ckpt-diff "$b/restart" memory/step-00000003; echo $?)" \
        "NFS $v: the server restarts in the middle of a reshard, which $fails"
    rm -rf "$a/restart"

    # ---- stale handles: a reader of files that the other client removes. A server of v4 keeps what is open.
    local shard
    cp -r "$a/ck/step-00000002" "$a/gone" && shard=$(cd "$a/gone" && echo model/shard-00001*)
    exec 8<"$b/gone/$shard"
    rm -r "$a/gone"
    echo 3 >/proc/sys/vm/drop_caches
    cat <&8 >read 2>err
    status=$?
    if [ "$v" = 3 ]; then
        ok "$([ $status != 0 ] && holds err 'tale file handle'; echo $?)" "NFS $v: a file removed elsewhere is a stale handle here"
    else
        ok "$([ $status = 0 ] && cmp -s read "$a/ck/step-00000002/$shard"; echo $?)" "NFS $v: a file removed elsewhere stays readable where it is open"
    fi
    exec 8<&-
    cp -r "$a/ck/step-00000002" "$a/going"
    { CKPT_FAULT=stop:12 "$BIN/ckpt-verify" "$b/going" >log 2>err & } 2>noise
    pid=$!
    held $pid
    rm -r "$a/going"
    echo 3 >/proc/sys/vm/drop_caches
    kill -CONT $pid
    wait $pid
    status=$?
    ok "$([ $status != 0 ] && [ $status -lt 128 ] && holds err going; echo $?)" \
        "NFS $v: a tool that meets one says which file, and fails: $(head -c 150 err | tr '\n' ' ')"

    # ---- a file that this client has open keeps a name, .nfs*, until it is closed (v4 of newer servers: none)
    local del=step-00000002.del.01234567-89ab-4def-8123-456789abcdef
    mkdir "$a/removed" && cp -r "$a/ck/step-00000002" "$a/removed/$del"
    exec 8<"$b/removed/$del/$shard"
    tool ckpt-info --gc "$b/removed"
    ok "$([ $? = 0 ] && [ ! -e "$b/removed/$del/$shard" ] && [ ! -e "$b/removed/$del/manifest.json" ] && cat <&8 >read 2>err; echo $?)" \
        "NFS $v: a checkpoint is removed while a file of it is open: $(cd "$b/removed" && find . -name '.nfs*' | head -c 100)"
    exec 8<&-
    tool ckpt-info --gc --older 0s "$b/removed"
    ok "$([ $? = 0 ] && [ -z "$(ls -A "$b/removed")" ]; echo $?)" "NFS $v: a later sweep removes the rest"

    # ---- a full disk
    cat /dev/zero >"$a/filler" 2>noise
    truncate -s -700K "$a/filler" && sync
    run checkpoint.path="$a/full"
    ok "$([ $? != 0 ] && holds err 'o space left'; echo $?)" "NFS $v: a full disk ends the run with its error: $(grep -o -i 'no space.*' err | head -n 1)"
    wrong=
    for step in "$b/full"/step-????????; do
        [ ! -d "$step" ] || tool ckpt-verify "$step" || wrong=1
    done
    ok "$([ -z "$wrong" ] && [ -z "$(find "$a/full" -name '*.tmp.*')" ]; echo $?)" "NFS $v: nothing half made is published, nothing is left over"
    rm "$a/filler"
    run checkpoint.path="$a/full"
    ok "$([ $? = 0 ] && same memory/step-00000003 "$b/full/step-00000003"; echo $?)" "NFS $v: with room again, the same command completes it"
    cd / && umount "$a" "$b" && cd "$TEST_TMP" && rm -rf "$NFS_EXPORTS/v$v"
}
for version in ${NFS_VERSIONS:-4.2 3}; do
    client $version
done
echo "1..$n"
exit $bad
