#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Nothing waits for ever: a pipe, socket or device in the place of a file is refused at once, by every
# program; a signal ends every tool that writes, wherever it waits.
# run: timeout=240
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"

# A program that waits is ended after a time that no refusal takes.
refuses() { # what it must say, program, arguments...
    local want=$1 status
    shift
    timeout -k 1 -s KILL 20 "$BIN/$@" >log 2>err </dev/null
    status=$?
    case $status in 1 | 2) holds err "$want" ;; *) echo "status $status" >>err && false ;; esac
}

# ---- in the place of a checkpoint's files -------------------------------------------------------------

mkfifo file.safetensors
mkdir dcp native index none
mkfifo dcp/.metadata native/manifest.json index/model.safetensors.index.json none/model.safetensors
touch index/model.safetensors
while read -r path file; do
    wrong=
    for tool in ckpt-info ckpt-verify 'ckpt-diff x' 'ckpt-merge -o out' 'ckpt-merge -o out.safetensors' \
        'ckpt-reshard --world 2 -o out' 'ckpt-cp -o out' 'fsdp-generate --prompt a --model'; do
        case $tool in
        ckpt-cp*) refuses "'$file' is a pipe" ckpt-cp "$path" out ;;
        ckpt-diff*) refuses "'$file' is a pipe" ckpt-diff "$path" "$path" ;;
        *) refuses "'$file' is a pipe" $tool "$path" ;;
        esac || wrong+=" $tool"
        [ -e out ] && wrong+=" ($tool wrote)"
    done
    ok "$([ -z "$wrong" ]; echo $?)" "a pipe as $file is refused by each tool$wrong"
done <<'END'
file.safetensors ./file.safetensors
dcp dcp/.metadata
native native/manifest.json
index index/model.safetensors.index.json
none none/model.safetensors
END


make_input 40
sound=$TOP/tests/data/llama-tiny
cat >run.yaml <<'END'
model: {path: model, init: random}
data: {path: text, seq_len: 32}
train: {steps: 1, global_batch_size: 2}
END
mkfifo pipe
ln -s /dev/zero device
perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0) && bind(S, sockaddr_un("socket")) || die $!'
for kind in pipe device socket; do
    want="'$kind' is a $kind, not a regular file"
    refuses "$want" ckpt-merge "$sound" -o out.safetensors --map $kind
    ok $? "a $kind as a map of names"
    refuses "$want" fsdp-launch $kind
    ok $? "a $kind as a configuration"
    refuses "$want" fsdp-launch -n 2 $kind
    ok $? "a $kind as a configuration of two ranks"
    for keys in data.path=$kind "data.format=jsonl data.path=$kind" "data.format=llmc data.path=$kind" \
        "data.eval_path=$kind"; do
        refuses "$want" fsdp-launch run.yaml $keys
        ok $? "$keys"
    done
done
refuses "pipe is a pipe or socket that nobody reads" fsdp-launch run.yaml log.metrics=pipe
ok $? "log.metrics=pipe that nobody reads"
rm model/config.json && mkfifo model/config.json
refuses "config.json' is a pipe" fsdp-launch -n 2 run.yaml
ok $? "a pipe as config.json, of two ranks"
refuses "config.json' is a pipe" fsdp-gradcheck --model model
ok $? "a pipe as config.json, of fsdp-gradcheck"

# ---- signals ------------------------------------------------------------------------------------------

head -c 3000000 /dev/zero >zeros
header='{"w":{"dtype":"F32","shape":[1000,750],"data_offsets":[0,3000000]}}'
{ printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header" && cat zeros; } >in.safetensors

# The Nth call of a tool's store never returns.
stops() { # signals, N, status, program, arguments...
    local signals=$1 at=$2 want=$3 pid status began
    shift 3
    CKPT_FAULT=hang:$at "$BIN/$@" >log 2>err &
    pid=$!
    for _ in $(seq 200); do [[ $(cat /proc/$pid/wchan 2>/dev/null)$(ps -o stat= -p $pid) == *S* ]] && break; sleep 0.02; done
    sleep 0.2
    began=$(date +%s%N)
    for signal in $signals; do kill -$signal $pid; sleep 0.05; done
    timeout 20 tail --pid=$pid -f /dev/null || kill -KILL $pid
    { wait $pid; } 2>/dev/null
    status=$?
    echo "status $status after $((($(date +%s%N) - began) / 1000000)) ms" >>err
    [ $status = "$want" ]
}
for at in 1 8 20; do
    stops TERM $at 143 ckpt-merge in.safetensors -o out.safetensors
    ok $? "SIGTERM ends a merge that hangs in call $at of its store"
    stops INT $at 130 ckpt-reshard in.safetensors -o out --world 2
    ok $? "Ctrl-C ends a reshard that hangs in call $at"
    stops 'TERM TERM' $at 143 ckpt-cp in.safetensors copy.safetensors
    ok $? "a second SIGTERM ends a copy that hangs in call $at"
done
stops HUP 20 129 ckpt-merge in.safetensors -o out.safetensors
ok "$([ $? = 0 ] && holds err 'ended while it waited; the same command resumes'; echo $?)" "it says that it was ended"
for tool in 'ckpt-info in.safetensors' 'ckpt-verify in.safetensors' 'ckpt-diff in.safetensors in.safetensors'; do
    stops TERM 2 143 $tool
    ok $? "SIGTERM ends $tool that hangs"
done
"$BIN/ckpt-merge" in.safetensors -o out.safetensors >log 2>err && tail -c 3000000 out.safetensors | cmp -s - zeros
ok $? "afterwards the same command finishes"

echo "1..$n"
exit $bad
