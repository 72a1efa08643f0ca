#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The checkpoint tools from the command line: output, exit statuses, signals, faults. Prints TAP.
# BIN (default build/bin) holds the programs.
BIN=${BIN:-build/bin}
dir=$(mktemp -d "${TMPDIR:-/tmp}/ckpt-tools-XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
n=0
failed=0
check() { # status, text
    n=$((n + 1))
    if [ "$1" -eq 0 ]; then
        echo "ok $n - $2"
    else
        echo "not ok $n - $2"
        sed 's/^/# /' "$dir/out" "$dir/err" 2>/dev/null
        failed=1
    fi
}
run() { # status, program, arguments: did it exit so?
    want=$1
    shift
    "$BIN/$@" >"$dir/out" 2>"$dir/err"
    test $? -eq "$want"
}
says() { grep -qF -- "$1" "$dir/out" "$dir/err"; }

for tool in ckpt-merge ckpt-reshard ckpt-info ckpt-verify ckpt-diff; do
    "$BIN/$tool" --help >"$dir/out" 2>"$dir/err" && says "Usage: $tool"
    check $? "$tool --help"
    "$BIN/$tool" --version >"$dir/out" 2>"$dir/err" && says "$tool "
    check $? "$tool --version"
    run 2 "$tool" 2>/dev/null
    check $? "$tool without arguments: wrong usage"
    run 2 "$tool" --no-such-option x
    check $? "$tool with an unknown option: wrong usage"
done

# A safetensors file: one F32 tensor of 1,000,000 ones, made with what a shell has.
header='{"w":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4000000]}}'
{
    printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header"
    yes "$(printf '\001\001\001\001')" | tr -d '\n' | head -c 4000000
} >"$dir/in.safetensors"

run 0 ckpt-info "$dir/in.safetensors" && says "[1000, 1000]" && says "1000000 parameters"
check $? "ckpt-info prints a table"
run 0 ckpt-info --json "$dir/in.safetensors" && says '"dtype": "F32"' && says '"nbytes": 4000000'
check $? "ckpt-info --json"
run 1 ckpt-info "$dir/missing" && says "$dir/missing"
check $? "ckpt-info of nothing"
run 0 ckpt-verify "$dir/in.safetensors" && says "no checksums"
check $? "ckpt-verify says what it could not check"
head -c 3000000 "$dir/in.safetensors" >"$dir/cut.safetensors"
run 1 ckpt-verify "$dir/cut.safetensors" && says "truncated" && says "cut.safetensors"
check $? "ckpt-verify of a truncated file"

"$BIN/ckpt-diff" "$dir/in.safetensors" "$dir/in.safetensors" >/dev/full 2>"$dir/err"
test $? = 2 && says "cannot write the output"
check $? "ckpt-diff to a full disk says so"
run 2 ckpt-merge "$dir/in.safetensors" && says "-o"
check $? "ckpt-merge without an output: wrong usage"
run 2 ckpt-merge "$dir/in.safetensors" -o "$dir/x.safetensors" --mem much && says "much"
check $? "ckpt-merge --mem much: wrong usage"
run 2 ckpt-merge "$dir/in.safetensors" -o "$dir/x.safetensors" --dtype f33 && says "f33"
check $? "ckpt-merge --dtype f33: wrong usage"
run 0 ckpt-merge "$dir/in.safetensors" -o "$dir/out.safetensors" --mem 1M && says "1 tensor,"
check $? "ckpt-merge"
tail -c 4000000 "$dir/in.safetensors" >"$dir/a" && tail -c 4000000 "$dir/out.safetensors" >"$dir/b"
cmp -s "$dir/a" "$dir/b"
check $? "its bytes"
run 1 ckpt-merge "$dir/in.safetensors" -o "$dir/out.safetensors" && says "already exists"
check $? "ckpt-merge does not overwrite"
run 0 ckpt-merge "$dir/in.safetensors" -o "$dir/out.safetensors" --overwrite --quiet --dtype bf16 &&
    test ! -s "$dir/out"
check $? "ckpt-merge --overwrite --quiet --dtype"
run 0 ckpt-merge "$dir/in.safetensors" -o "$dir/folder" --max-shard-size 1MB &&
    test -f "$dir/folder/model.safetensors"
check $? "ckpt-merge into a folder"

# What is easily mistaken for a checkpoint, or for the name of one.
mkdir "$dir/runs" "$dir/runs/step-9" "$dir/runs/step-10" "$dir/torch"
touch "$dir/runs/step-9/.metadata" "$dir/runs/step-10/.metadata" "$dir/torch/pytorch_model.bin"
run 1 ckpt-info "$dir/runs" && says "holds some of torch's: name one of them, such as '$dir/runs/step-10'"
check $? "a folder of torch's checkpoints: the newest is named"
run 1 ckpt-info "$dir/torch" && says "'$dir/torch/pytorch_model.bin' does not begin as a file of torch.save does"
check $? "a folder whose weights are an empty file"
mkdir "$dir/other"
touch "$dir/other/weights.pt"
run 1 ckpt-info "$dir/other" && says "name the file itself: '$dir/other/weights.pt'"
check $? "a folder with what torch.save may have written"
printf 'PK\3\4 and more' >"$dir/full.pt"
printf '\200\2\212\n and more' >"$dir/old.pt"
cp "$dir/full.pt" "$dir/spoiled.safetensors"
cp "$dir/full.pt" "$dir/runs/__0_0.distcp"
run 1 ckpt-merge "$dir/full.pt" -o "$dir/x.safetensors" && says "too few for a zip archive"
check $? "a damaged file of torch.save"
run 1 ckpt-merge "$dir/old.pt" -o "$dir/x.safetensors" && says "it is damaged, or has the name of another format"
check $? "one of before torch 1.6"
run 1 ckpt-info "$dir/spoiled.safetensors" && says "given a Python value"
check $? "a spoiled safetensors file"
run 1 ckpt-info "$dir/runs/__0_0.distcp" && says "name its folder"
check $? "a .distcp file in place of its folder"
run 1 ckpt-merge "$dir/in.safetensors" -o "$dir/model.ckpt" && says "ends in .safetensors, or a folder" &&
    test ! -e "$dir/model.ckpt"
check $? "an output that only Lightning could have written"
run 0 ckpt-merge "$dir/in.safetensors" -o "$dir/same.safetensors" --map torchtitan-to-hf &&
    says "map 'torchtitan-to-hf' changes nothing: it fits no name, such as 'w'"
check $? "a map that fits nothing is a warning"
echo 'w -> v' >"$dir/rules"
run 0 ckpt-merge "$dir/in.safetensors" -o "$dir/other.safetensors" --map "$dir/rules" && ! says "changes nothing" &&
    run 0 ckpt-info "$dir/other.safetensors" && grep -q '^v ' "$dir/out"
check $? "one that fits is none"

# Killed at a store call: the output does not exist; killed later, with all written, it may.
CKPT_FAULT=kill:9 "$BIN/ckpt-merge" "$dir/in.safetensors" -o "$dir/killed.safetensors" --mem 1M \
    >"$dir/out" 2>"$dir/err"
test $? -ne 0 && test ! -e "$dir/killed.safetensors"
check $? "killed half-way: no output under its name"
CKPT_FAULT=fail:24 "$BIN/ckpt-merge" "$dir/in.safetensors" -o "$dir/failed.safetensors" --mem 1M \
    >"$dir/out" 2>"$dir/err"
test $? -eq 1 && says "injected" && says "resumes from there" && test ! -e "$dir/failed.safetensors"
check $? "failed half-way: it says how to continue"
run 0 ckpt-merge "$dir/in.safetensors" -o "$dir/failed.safetensors" --mem 1M &&
    tail -c 4000000 "$dir/failed.safetensors" | cmp -s - "$dir/a" && test -z "$(ls "$dir" | grep failed.*tmp)"
check $? "and continues"

# A signal, which comes when there is still much to do: the program stops itself half-way.
header='{"w":{"dtype":"F32","shape":[1000,16000],"data_offsets":[0,64000000]}}'
printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header" >"$dir/large.safetensors"
truncate -s $((64000000 + 8 + ${#header})) "$dir/large.safetensors"
run 0 ckpt-info "$dir/large.safetensors"
check $? "a large sparse file"
CKPT_FAULT=stop:60 "$BIN/ckpt-merge" "$dir/large.safetensors" -o "$dir/slow.safetensors" --mem 1M \
    >"$dir/out" 2>"$dir/err" &
pid=$!
until [[ $(ps -o stat= -p $pid) == T* ]] || ! kill -0 $pid 2>/dev/null; do sleep 0.02; done
run 1 ckpt-merge "$dir/large.safetensors" -o "$dir/slow.safetensors" --mem 1M && says "being written by another process"
check $? "the same command next to it is refused, and takes nothing away from it"
kill -TERM $pid
kill -CONT $pid
wait $pid 2>/dev/null
status=$?
test $status -eq 143 && says "stopped" && says "resumes from there" && test ! -e "$dir/slow.safetensors"
check $? "SIGTERM: stops, says so and how to continue (status $status)"
run 0 ckpt-merge "$dir/large.safetensors" -o "$dir/slow.safetensors" --mem 1M && says "from an earlier run" &&
    test -z "$(ls "$dir" | grep slow.safetensors.tmp)"
check $? "the same command resumes"
head -c 64000000 /dev/zero | cmp -s - <(tail -c 64000000 "$dir/slow.safetensors")
check $? "and its output is whole"
rm -f "$dir/slow.safetensors"

echo "1..$n"
exit $failed
