#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Nothing is removed through a link, on another mount, or because it lies where a checkpoint lies.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
holds() { grep -q -F -- "$2" "$1"; }
gc() { "$BIN/ckpt-info" --gc --older 0s "$@" >log 2>err; }
uuid=01234567-89ab-4def-8123-456789abcdef
shard=shard-00001-model-00001-of-00001.safetensors

make_input
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 2, global_batch_size: 2}
checkpoint: {path: ck, interval: 1, fsync: false}
log: {metrics: ''}
END
"$BIN/fsdp-launch" run.yaml >log 2>err || { cat err; exit 1; }
home() { # a folder of the user's that must survive
    rm -rf home && mkdir -p home/papers && echo thesis >home/papers/thesis.tex && echo t >home/tokenizer.json
}
home_stays() { [ "$(cat home/papers/thesis.tex home/tokenizer.json | tr '\n' ' ')" = 'thesis t ' ]; }

# ---- leftovers -----------------------------------------------------------------------------------
home
ln -s "$PWD/home" ck/step-00000001.tmp.$uuid
ln -s "$PWD/home" ck/step-00000003.del.$uuid
ln -s "$PWD/home" ck/merged.tmp.0123456789abcdef
mkdir -p ck/step-00000004.tmp.$uuid ck/other.tmp.0123456789abcdef ck/loop.tmp.0123456789abcdef
ln -s "$PWD/home" ck/step-00000004.tmp.$uuid/model
ln -s . ck/loop.tmp.0123456789abcdef/out
ln -s "$PWD/home" ck/other.tmp.0123456789abcdef/out
ln -s "$PWD/home/papers/thesis.tex" ck/other.tmp.0123456789abcdef/journal
gc --dry-run ck
ok "$([ $? = 0 ] && [ "$(grep -c '^would go' log)" = 6 ] && ! holds log '7 bytes'; echo $?)" \
    "links among leftovers: their targets are neither measured"
gc ck
ok "$([ $? = 0 ] && home_stays && [ "$(ls ck | tr '\n' ' ')" = 'status.json step-00000001 step-00000002 ' ]; echo $?)" \
    "nor removed: the links go"
mkdir -p ck/step-00000004.tmp.$uuid/model
echo code >ck/step-00000004.tmp.$uuid/model/mine.py
echo data >ck/step-00000004.tmp.$uuid/model/$shard
gc ck
ok "$([ $? = 1 ] && holds err "'model/mine.py'" && [ -e ck/step-00000004.tmp.$uuid/model/$shard ]; echo $?)" \
    "a file of the user's stops the removal of a leftover, and is named"
rm -rf ck/*.tmp.*

# ---- checkpoint.keep -----------------------------------------------------------------------------
more() { "$BIN/fsdp-launch" run.yaml "$@" >log 2>&1 || cat log; }
mkdir archive && mv ck/step-00000001 archive/ && ln -s "$PWD/archive/step-00000001" ck/step-00000001
more train.steps=4 checkpoint.keep=2
ok "$([ -e archive/step-00000001/manifest.json ] && [ -L ck/step-00000001 ] && [ ! -e ck/step-00000002 ] &&
    [ -d ck/step-00000003 ] && [ -d ck/step-00000004 ]; echo $?)" \
    "checkpoint.keep: a link in the place of a step is neither counted nor removed"
home
rm -r ck/step-00000003/hf && ln -s "$PWD/home" ck/step-00000003/hf
echo notes >ck/step-00000004/model/notes.txt
more train.steps=7 checkpoint.keep=2
ok "$([ "$(grep -c 'stays.*model/notes.txt' log)" = 1 ] && [ -e ck/step-00000004/manifest.json ] &&
    [ -d ck/step-00000007 ]; echo $?)" "a file of the user's keeps its checkpoint: one warning, and the run ends well"
ok "$([ ! -e ck/step-00000003 ] && [ ! -e ck/step-00000005 ] && home_stays; echo $?)" \
    "others go, and a link in one is not followed"
# ---- outputs -------------------------------------------------------------------------------------
"$BIN/ckpt-merge" ck -o source -q >log 2>err && echo '{}' >source/tokenizer.json || { cat err; exit 1; }
merge() { "$BIN/ckpt-merge" source -q -o "$@" >log 2>err; }
reshard() { "$BIN/ckpt-reshard" source -q --world 2 -o "$@" >log 2>err; }
dcp() { "$BIN/ckpt-merge" source -q --dcp -o "$@" >log 2>err; }
same() { "$BIN/ckpt-diff" -q "$1" "$2" >log2 2>&1; }
alone() { ! compgen -G "$1.tmp.*" >/dev/null; }

home
reshard native && rm -r native/hf && ln -s "$PWD/home" native/hf
reshard native --overwrite
ok "$([ $? = 0 ] && home_stays && same native source && alone native; echo $?)" "a link in the old output is not followed"
cp -r source old && rm old/tokenizer.json && ln -s "$PWD/home" old/tokenizer.json
merge old --overwrite
ok "$([ $? = 0 ] && home_stays && [ -f old/tokenizer.json ] && [ ! -L old/tokenizer.json ]; echo $?)" \
    "nor one in the place of a companion"

cp -r source input && ln -s "$PWD/input" same
for out in same input "$PWD/same/" ./same/../input; do
    "$BIN/ckpt-merge" input -o $out --overwrite --include '*norm*' >log 2>err
    ok "$([ $? = 1 ] && holds err 'are the same' && same input source; echo $?)" "the input as output, named $out"
done
ln -s "$PWD" above
for out in above/input/new same/new input/no/new; do
    merge_rc=$("$BIN/ckpt-merge" input -o $out >log 2>err; echo $?)
    ok "$([ $merge_rc = 1 ] && holds err 'lies in the input' && same input source; echo $?)" "an output in the input: $out"
done
mkdir held && mv input/model.safetensors held/ && ln -s "$PWD/held/model.safetensors" input/model.safetensors
"$BIN/ckpt-merge" input -o held --overwrite >log 2>err
ok "$([ $? = 1 ] && holds err 'has files in the output' && same input source; echo $?)" "an output that holds a file of the input"
"$BIN/ckpt-merge" input -o held/model.safetensors --overwrite >log 2>err
ok "$([ $? = 1 ] && holds err "is the input's file" && same input source; echo $?)" "an output that is a file of the input"
mkdir upper && cp -r native upper/ck
"$BIN/ckpt-reshard" upper/ck -o upper --world 1 --overwrite >log 2>err
ok "$([ $? = 1 ] && holds err 'lies in the output' && same upper/ck source; echo $?)" "an output above the input"

mkdir disk && cp -r source disk/real && ln -s disk/real link
merge link --overwrite --dtype bf16 && merge link --overwrite --dtype bf16
ok "$([ $? = 0 ] && [ -L link ] && [ -d disk/real ] && alone link && alone disk/real &&
    "$BIN/ckpt-info" disk/real | grep -q BF16; echo $?)" "a link as output: its target is replaced, time and again"
cp source/model.safetensors disk/one.safetensors && ln -s disk/one.safetensors one.safetensors
merge one.safetensors --overwrite
ok "$([ $? = 0 ] && [ -L one.safetensors ] && same disk/one.safetensors source; echo $?)" "also of one file"
merge link
ok "$([ $? = 1 ] && holds err 'already exists'; echo $?)" "without --overwrite it is not"
ln -s nowhere/at/all dangling && ln -s loop loop
for out in dangling loop; do
    for command in merge reshard; do
        $command $out --overwrite
        ok "$([ $? = 1 ] && holds err "'$out' is a symbolic link to nothing" && alone $out && [ ! -e nowhere ]; echo $?)" \
            "$command to $out: refused before any work"
    done
    "$BIN/ckpt-cp" source $out >log 2>err
    ok "$([ $? = 1 ] && holds err 'is a symbolic link to nothing' && alone $out; echo $?)" "cp to $out, too"
done
ln -s disk/real dir && rm -r disk/real && mkdir disk/real
"$BIN/ckpt-cp" source dir >log 2>err
ok "$([ $? = 1 ] && holds err 'already exists'; echo $?)" "a copy to a link: what is there stays"

# ---- what --overwrite takes for an output --------------------------------------------------------
refuses() { # command and output, what err holds, text
    $1 --overwrite
    ok "$([ $? = 1 ] && holds err "$2" && alone "${1#* }"; echo $?)" "$3"
}
mkdir -p project/model && echo code >project/model/mine.py
refuses 'reshard project' "it holds 'model'" "a folder that has a folder 'model' is no checkpoint"
ok "$([ -e project/model/mine.py ]; echo $?)" "its files stay"
cp -r native mine && echo code >mine/model/mine.py && touch mine/{a,b,c,d,e}.txt mine/model/shard-00009-model-00001-of-00001.safetensors
refuses 'reshard mine' "'a.txt', 'b.txt', 'c.txt', 'd.txt', 'e.txt' and 2 more, which do not belong" \
    "a checkpoint with files that its manifest does not list: some are named, and the others counted"
cp -r native broken && sed -i 's/"step"/"stop"/' broken/manifest.json
refuses 'reshard broken' 'damaged or edited' "a manifest that cannot be parsed proves nothing"
"$BIN/ckpt-merge" source -q -o sharded --max-shard-size 300K >log 2>err
cp -r sharded adapter && cp source/model.safetensors adapter/adapter_model.safetensors
refuses 'merge adapter' "'adapter_model.safetensors', which does not belong" "weights that the index does not list"
cp -r sharded index && echo '{"weight_map": 1}' >index/model.safetensors.index.json
refuses 'merge index' 'has no weight_map' "an index that is none"
cp -r source notes && echo notes >notes/notes.txt && mkdir notes/src
refuses 'merge notes' "'notes.txt', 'src', which do not belong" "a model folder with files of the user's"
"$BIN/ckpt-merge" notes -q -o notes2 >log 2>err && "$BIN/ckpt-merge" notes -q -o notes2 --overwrite >log 2>err
ok "$([ $? = 0 ] && [ -e notes2/notes.txt ]; echo $?)" "a file that goes along is replaced with the output it came with"
mkdir texts && echo text >texts/model.safetensors
refuses 'merge texts' 'it is no safetensors model' "weights that cannot be parsed"
cp "$TOP/README.md" readme.safetensors
refuses 'merge readme.safetensors' 'it is no safetensors model' "a file that is no safetensors"
: >empty.safetensors && merge empty.safetensors --overwrite
ok $? "an empty file is nothing to lose"
dcp torch && cp -r torch torch2 && echo junk >torch2/.metadata
refuses 'dcp torch2' 'no torch checkpoint' "torch's: .metadata that cannot be parsed"
dcp torch --overwrite
ok $? "one that can be is replaced"
echo mine >torch/__7_3.distcp
refuses 'dcp torch' "'__7_3.distcp', which does not belong" "a .distcp that .metadata does not name"
ok "$([ "$(cat torch/__7_3.distcp)" = mine ]; echo $?)" "it stays"
rm torch/__7_3.distcp
refuses 'merge native' 'it is no safetensors model' "a checkpoint of another format"

merge special.safetensors # a merge makes it; then pipes, sockets and devices of that name
mkfifo pipe.safetensors && python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket.safetensors")'
ln -s pipe.safetensors tied.safetensors
for name in pipe socket tied; do
    refuses "merge $name.safetensors" 'a pipe, a socket or a device' "a $name has no bytes and is not overwritten"
done
ok "$([ -p pipe.safetensors ] && [ -S socket.safetensors ]; echo $?)" "they are there"
cp -r source given && rm -f given/tokenizer.json && "$BIN/ckpt-merge" source -q -o given2 >log 2>err
echo mine >given2/vocab.json
refuses 'merge given2' "'vocab.json', which does not belong" "a tokenizer that the new output lacks"

# ---- temporary folders ---------------------------------------------------------------------------
# A link in the place of a temporary folder, as of work that was moved to another disk.
stopped() { # output, tool...: a run that is stopped half-way; its temporary folder, on standard output
    local at
    for at in {70..20}; do
        rm -rf "$1" "$1".tmp.*
        { CKPT_FAULT=fail:$at "${@:2}" -o "$1" --threads 1; } >log 2>&1 && continue
        compgen -G "$1.tmp.*" && return
    done
    false
}
for tool in "ckpt-merge native -q" "ckpt-reshard native --world 2"; do
    # shellcheck disable=SC2086
    rm -rf far && mkdir far && temp=$(stopped away $BIN/$tool) && mv "$temp" far/ && ln -s "far/$temp" "$temp"
    (cd "far/$temp" && find . | sort) >before
    # shellcheck disable=SC2086
    ! $BIN/$tool -o away >log 2>err && holds err 'is a symbolic link in the place of a temporary folder' &&
        [ -L "$temp" ] && (cd "far/$temp" && find . | sort) | cmp -s - before
    ok "$([ $? = 0 ] && [ -s before ]; echo $?)" "${tool%% *}: a link in the place of its temporary folder is refused, and stays with its target"
    rm -f "$temp" && echo mine >"$temp"
    # shellcheck disable=SC2086
    ok "$(! $BIN/$tool -o away >log 2>err && [ "$(cat "$temp")" = mine ]; echo $?)" "${tool%% *}: so does a file of that name"
    rm -f "$temp"
done
temp=$(stopped mix "$BIN/ckpt-reshard" native --world 1) && echo thesis >"$temp/out/thesis.txt"
! "$BIN/ckpt-reshard" native -o mix --world 1 >log 2>err
ok "$([ $? = 0 ] && holds err "'thesis.txt', which does not belong" && [ ! -e mix ] && [ "$(cat "$temp/out/thesis.txt")" = thesis ]; echo $?)" \
    "a file of the user's in a temporary folder is not made part of the output, nor removed"
gc .
ok "$([ -e "$temp/out/thesis.txt" ]; echo $?)" "nor by --gc"
rm "$temp/out/thesis.txt" && "$BIN/ckpt-reshard" native -o mix --world 1 >log 2>err
ok $? "without it the same command resumes"

temp=$(stopped linked.safetensors "$BIN/ckpt-merge" native) && rm -f "$temp/out.safetensors" &&
    echo thesis >thesis.tex && ln thesis.tex "$temp/out.safetensors"
! "$BIN/ckpt-merge" native -o linked.safetensors >log 2>err
ok "$([ $? = 0 ] && holds err "out.safetensors' is also a file of another name (a hard link)" && [ "$(cat thesis.tex)" = thesis ]; echo $?)" \
    "a merge that resumes does not write through a hard link"
rm -f "$temp/out.safetensors" && "$BIN/ckpt-merge" native -o linked.safetensors >log 2>err
ok $? "without it the same command resumes"

# ---- kills ---------------------------------------------------------------------------------------
# At every seventh call of a replacement: what has the name is the old output or the new one, and the
# same command completes it.
dcp new --dtype bf16 && wrong= nkilled=0
for ((at = 3; at < 400; at += 7)); do
    rm -rf out out.tmp.* && cp -r torch out
    { CKPT_FAULT=kill:$at dcp out --dtype bf16 --threads 1 --overwrite; } 2>noise && break
    nkilled=$((nkilled + 1))
    same out source || same out new || wrong+=" $at: neither;"
    dcp out --dtype bf16 --threads 1 --overwrite && same out new && alone out || wrong+=" $at: $(cat err);"
done
ok "$([ -z "$wrong" ] && [ $nkilled -gt 10 ]; echo $?)" "--overwrite, killed at $nkilled of its calls:$wrong"
echo "1..$n"
exit $bad
