#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Bad values and strange names on the command line of the checkpoint tools: the exit status, what is
# said, and that nothing is written.
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
model=$TOP/tests/data/llama-tiny
tool() { "$BIN/$@" >log 2>err </dev/null; }

# Name and line of what tool "$@" refuses with a status, and the text that says why.
refused() { # status, text, what, tool, arguments...
    local want=$1 text=$2 what=$3 before
    shift 3
    before=$(ls -A)
    tool "$@"
    [ $? = "$want" ] && holds err "$text" && [ "$(ls -A)" = "$before" ]
    ok $? "$what"
}
touch log err
for write in 'ckpt-merge -o' 'ckpt-reshard --world 2 -o'; do
    refused 2 'the name of the output is empty' "$write with an empty name" $write '' "$model"
    refused 2 'cannot be standard output' "$write -" $write - "$model"
    refused 2 "I8, which is not a floating type" "$write, cast to int8" $write x "$model" --dtype int8
    refused 2 'is too small; at least' "$write with 1K of memory" $write x "$model" --mem 1K
    refused 2 'of memory of this machine' "$write with more memory than the machine" $write x "$model" --mem 99999T
    refused 2 'expected a whole number from 1 to 256' "$write with 100,000 threads" $write x "$model" --threads 100000
    refused 1 "'s3:' is not an address; write s3://BUCKET/PREFIX" "$write s3:" $write s3: "$model"
    refused 1 "'s3://' names no bucket" "$write s3://" $write s3:// "$model"
    long=$(printf 'n%.0s' $(seq 240))
    refused 1 "has 240 bytes; at most 234" "$write with a long name" $write $long "$model"
done
refused 2 'the name of the output is empty' 'ckpt-cp with an empty name' ckpt-cp "$model" ''
refused 2 'cannot be standard output' 'ckpt-cp to -' ckpt-cp "$model" -
refused 2 'is too small; at least' 'ckpt-cp with 1K of memory' ckpt-cp "$model" x --mem 1K
refused 2 'is too small; at least' 'ckpt-diff with 1K of memory' ckpt-diff "$model" "$model" --mem 1K
mkfifo pipe
for to in /dev/null pipe; do
    for write in 'ckpt-merge -o' 'ckpt-merge --overwrite -o' 'ckpt-merge --dcp -o' 'ckpt-reshard --world 2 -o'; do
        refused 1 'is a pipe, a socket or a device, and no output' "$write $to" $write $to "$model"
    done
    refused 1 'is a pipe, a socket or a device, and no output' "ckpt-cp to $to" ckpt-cp "$model/model.safetensors" $to
done
"$BIN/ckpt-merge" "$model" -o /dev/stdout 2>err </dev/null | cat >log
holds err 'is a pipe, a socket or a device' && [ ! -s log ]
ok $? 'ckpt-merge -o /dev/stdout'
rm pipe
for read in ckpt-info ckpt-verify 'ckpt-merge -o x' 'ckpt-merge --check' 'ckpt-diff -'; do
    refused $([ "$read" = 'ckpt-diff -' ] && echo 2 || echo 1) 'cannot come from standard input' "$read -" $read -
done
for end in ckpt CKPT npz onnx; do
    refused 1 'name a file that ends in .safetensors, or a folder' "ckpt-merge -o x.$end" ckpt-merge "$model" -o x.$end
done
for option in '--then true' '--poll 1' '--end-after 0'; do
    # shellcheck disable=SC2086
    refused 2 "${option% *} is of --watch" "ckpt-merge ${option% *} without --watch" ckpt-merge "$model" -o x $option
done
refused 2 'a GGUF file has --type' 'ckpt-merge --watch with --type and --quantize' ckpt-merge --watch "$model" -o x --type q8_0 --quantize w8a16
tool ckpt-merge "$model" -o a/b/c.safetensors && cmp -s <(tail -c 1000 a/b/c.safetensors) <(tail -c 1000 "$model/model.safetensors")
ok $? 'folders above a single output file are made'
# A path says what is written by its end alone: its name may be hidden, and it may begin with a dot.
mkdir -p below whole
install -m 644 "$model"/{config.json,model.safetensors} "$TOP/examples/llama-tiny/tokenizer.json" whole
for end in safetensors gguf pt SafeTensors; do
    tool ckpt-merge whole -o plain.$end
    for at in .x.$end ./x.$end ../"${PWD##*/}"/x.$end below/.x.$end .$end; do
        tool ckpt-merge whole -o "$at" && cmp -s "$at" plain.$end && tool ckpt-merge whole -o "$at" --overwrite &&
            cmp -s "$at" plain.$end && rm "$at"
        ok $? "ckpt-merge -o ${at/${PWD##*/}/.}"
    done
    left=1
    for at in 20 30 40; do
        { CKPT_FAULT=kill:$at tool ckpt-merge whole -o .x.$end; } 2>noise
        compgen -G ".x.$end.tmp.*" >noise && left=0
    done
    [ $left = 0 ] && tool ckpt-merge whole -o .x.$end && cmp -s .x.$end plain.$end && ! compgen -G ".x.$end.tmp.*" >noise
    ok $? "ckpt-merge -o .x.$end, killed and resumed"
    rm -f .x.$end plain.$end
done
tool ckpt-merge "$model" -o .x.safetensors && tool ckpt-info .x.safetensors && tool ckpt-verify .x.safetensors &&
    tool ckpt-diff .x.safetensors "$model"
ok $? 'a hidden file is read'
rm .x.safetensors
tool ckpt-merge "$model" -o .x && cmp -s .x/config.json "$model/config.json" && rm -r .x
ok $? 'a hidden folder'
fits=$(printf 'n%.0s' $(seq 234))
tool ckpt-merge "$model" -o $fits && rm -r $fits
ok $? 'the longest name that fits'

# ---- names that a terminal would obey, and that are not UTF-8 ------------------------------------------

evil=$(printf 'x\033]0;title\007\302\233y\377\342\200\256z')
cp -r "$model" "$evil"
clean() { ! LC_ALL=C grep -q -a -P '[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xff|\xe2\x80\xae' log err; }
# A reader of config.json says whether a file is one JSON object; nothing else here can be counted on.
is_json() {
    "$BIN/fsdp-gradcheck" --model log >json 2>&1
    ! grep -q -e 'not valid JSON' -e 'not a JSON object' json && grep -q model_type json
}
name=0
while read -r -a command; do
    command=("${command[@]//EVIL/$evil}")
    tool "${command[@]}"
    clean
    ok $? "no command to the terminal: ${command[*]//$evil/EVIL}"
    rm -rf out* "$evil".out
    tool "${command[@]}" --json
    status=$?
    clean && { is_json || { [ $status = 1 ] && [ ! -s log ]; }; }
    ok $? "the same with --json is JSON"
    rm -rf out* "$evil".out
done <<'END'
ckpt-info EVIL
ckpt-info -a EVIL
ckpt-info EVIL/none
ckpt-verify EVIL
ckpt-verify none-EVIL
ckpt-diff EVIL EVIL
ckpt-merge EVIL -o out
ckpt-merge EVIL -o EVIL.out
ckpt-merge EVIL -o EVIL
ckpt-merge EVIL -o EVIL.out --dry-run
ckpt-reshard EVIL -o EVIL.out --world 2
ckpt-cp EVIL EVIL.out
END
header='{"e\u001b[31m\u009b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
{ printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header" && printf '\1\1\1\1'; } >names.safetensors
for arguments in ckpt-info 'ckpt-info --json' 'ckpt-merge -o out' 'ckpt-merge -o out --include x' 'ckpt-diff names.safetensors --all'; do
    tool $arguments names.safetensors
    clean
    ok $? "a tensor's name commands nothing: $arguments"
    rm -rf out
done
tool ckpt-reshard "$model" -o state --world 1 && sed -i 's/"state": null/"state": {"x": 1e999}/' state/manifest.json
tool ckpt-info state # which names the checksum of the edited manifest
sed -i "s/$(sed 's/.*it says \([0-9a-f]*\).*/\1/' err)/$(sed 's/.*its checksum is \([0-9a-f]*\).*/\1/' err)/" state/manifest.json
tool ckpt-info --json state && holds log '"x": 1e999'
ok $? 'a number beyond doubles stays as it is stored'

# ---- progress --------------------------------------------------------------------------------------------

if script --version >/dev/null 2>&1; then
    on_terminal() { script -q -e -c "stty cols $2; TERM=$1 '$BIN/ckpt-merge' '$model' -o out.safetensors" typescript >/dev/null 2>&1; }
    on_terminal dumb 80 && ! grep -q -a $'\033' typescript
    ok $? 'no escape sequences on a dumb terminal'
    rm -f out.safetensors
    on_terminal xterm 30 && tr '\r' '\n' <typescript | sed 's/\x1b\[K//g' |
        awk '/%,/ && length > 30 { bad = 1 } /%,/ { n++ } END { exit bad || !n }'
    ok $? 'progress fits a narrow terminal'
else
    n=$((n + 1)); echo "ok $n - # SKIP no script(1) for a terminal"
fi

echo "1..$n"
exit $bad
