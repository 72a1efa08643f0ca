#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ckpt-cp between folders: copies of every format, kills, damage, names that are taken.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
copy() { { "$BIN/ckpt-cp" "$@" >log 2>err; } 2>>noise; } # noise: the shell on what was killed
same() { diff -r "$1" "$2" >diff 2>&1; }
holds() { grep -q -F -- "$2" "$1"; }
alone() { [ "$(find . -maxdepth 1 -name "$1*" | tr '\n' ' ')" = "./$1 " ]; }
none() { [ -z "$(find . -maxdepth 1 -name "$1*")" ]; }

install -D -m 644 "$TOP/examples/llama-tiny/config.json" model/config.json
seq 2000 >text
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 4, global_batch_size: 4}
checkpoint: {path: ck, interval: 2, fsync: false}
END
"$BIN/fsdp-launch" -n 2 run.yaml >log 2>err || { cat err; exit 1; }
last=ck/step-00000004

copy ck out/
ok $? "a folder of checkpoints: the newest, under its own name"
ok "$(same $last out/step-00000004; echo $?)" "is equal to the last byte"
copy ck out/
ok "$([ $? = 0 ] && holds log 'this very checkpoint already'; echo $?)" "once more: nothing to do"
copy ck/step-00000002 out/step-00000004
ok "$([ $? = 1 ] && holds err "'out/step-00000004' already exists" &&
    same $last out/step-00000004; echo $?)" "another checkpoint does not take its name"
copy --dry-run ck/step-00000002 new && [ ! -e new ] && holds log 'nothing was written'
ok $? "--dry-run writes nothing"
copy --json ck/step-00000002 new
ok "$([ $? = 0 ] && holds log '"was_there": false' && holds log '"files": 4' &&
    same ck/step-00000002 new; echo $?)" "--json says what was done"

"$BIN/ckpt-merge" -q ck -o hf && "$BIN/ckpt-merge" -q --max-shard-size 200K ck -o split &&
    "$BIN/ckpt-merge" -q ck -o one.safetensors && "$BIN/ckpt-reshard" -q --world 3 ck -o three
ok $? "other formats of it"
for what in hf split three "$TOP"/tests/data/dcp-{mixed,hf-sharded}-2r/ckpt; do
    rm -rf of
    copy --verify "$what" of
    ok "$([ $? = 0 ] && same "$what" of; echo $?)" "a copy of ${what#"$TOP/tests/data/"}"
done
copy one.safetensors two.safetensors && cmp -s one.safetensors two.safetensors
ok $? "a copy of one file"

# ---- kills and failures ------------------------------------------------------------------------------

wrong=0 resumed=0
for at in 3 9 15 21 27 33 39 45 51 57 63 69 75 81; do
    CKPT_FAULT=kill:$at copy --threads 1 ck killed
    if [ -e killed ]; then same $last killed || wrong=$at; fi
    copy --threads 1 ck killed || wrong=$at
    holds log 'from an earlier run' && resumed=1
    same $last killed || wrong=$at
    alone killed || wrong=$at
    rm -rf killed
done
ok $wrong "killed at 14 moments: complete or not there, and completed by the same command"
ok $((1 - resumed)) "which does not begin anew"
for at in $(seq 70 130); do # a failure to look at something may not matter, nor one before there is a journal
    rm -rf failed failed.tmp.*
    CKPT_FAULT=fail:$at copy ck failed || { holds err 'the same command resumes' && break; }
done
ok "$([ ! -e failed ] && holds err 'the same command resumes'; echo $?)" \
    "after a failure it says how to continue"
copy ck failed && same $last failed && alone failed
ok $? "and does"

# Of other formats only the folder in which the copy grew tells a copy from somebody else's folder.
wrong=0 steps=0
for at in $(seq 1 200); do
    CKPT_FAULT=kill:$at copy --threads 1 one.safetensors killed.safetensors && break
    steps=$at
    if [ -e killed.safetensors ]; then
        cmp -s one.safetensors killed.safetensors || wrong=$at
        alone killed.safetensors || copy one.safetensors killed.safetensors || wrong=$at
        rm -f killed.safetensors
    else
        cp run.yaml killed.safetensors
        copy one.safetensors killed.safetensors && wrong=$at
        holds err "'killed.safetensors' already exists" && cmp -s run.yaml killed.safetensors || wrong=$at
    fi
    rm -rf killed*
done
ok $((steps < 10 ? 1 : wrong)) "killed at each of $steps steps: its own copy is known again, and nobody else's is taken for it"

# ---- damage, wrong use -------------------------------------------------------------------------------

cp -r $last damaged
file=$(find damaged/optim -name '*.safetensors' | sort | head -n 1)
printf x | dd of="$file" bs=1 seek=9000 conv=notrunc 2>noise
copy damaged taken
ok "$([ $? = 1 ] && holds err "$(basename "$file")" && holds err 'its checksum is' && none taken; echo $?)" \
    "a damaged file is named, and nothing is left"
truncate -s -1 "$file"
copy damaged taken
ok "$([ $? = 1 ] && holds err "$(basename "$file")" && none taken; echo $?)" "so is a truncated one"
# Lines, with every float as the number that it stands for.
exact() {
    awk '{while (match($0, /-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?/)) {
              token = substr($0, RSTART, RLENGTH)
              printf "%s%s", substr($0, 1, RSTART - 1), token ~ /[.eE]/ ? sprintf("%.17g", token) : token
              $0 = substr($0, RSTART + RLENGTH)
          }
          print}'
}
"$BIN/ckpt-info" --json $last | grep '^ "state": ' | exact >shown
grep '^ "state": ' $last/manifest.json | sed 's/,$//' | exact >stored
ok "$([ "$(wc -c <stored)" -gt 100 ] && cmp -s shown stored; echo $?)" \
    "ckpt-info --json has the state as it is saved, floats to the last bit"
false= # that a failure says "kept" where nothing is
for at in 1 2 3 4 5 6 8 10 12 15 20 30; do
    rm -rf early early.tmp.*
    { CKPT_FAULT=fail:$at "$BIN/ckpt-cp" -q $last early; } >log 2>err && continue
    said=$(sed -n "s/.*kept in '\(.*\)'; the same.*/\1/p" err)
    [ -z "$said" ] || [ -e "$said/journal" ] || false+=" $at"
    [ -n "$said" ] || none early || false+=" left $at"
done
ok "$([ -z "$false" ]; echo $?)" "what failed before it had begun is not said to be kept, and leaves nothing$false"
copy $last $last
ok "$([ $? = 1 ] && holds err 'are the same'; echo $?)" "not onto itself"
copy ck $last/below
ok "$([ $? = 1 ] && holds err 'lies in the input' && [ ! -e $last/below ]; echo $?)" "not into itself"
copy ck 'gopher://bucket/x'
ok "$([ $? = 1 ] && holds err "no store for 'gopher://'"; echo $?)" "an address without a store"
copy ck
ok "$([ $? = 2 ] && holds err 'give exactly one checkpoint and one copy'; echo $?)" "wrong usage"
echo "1..$n"
exit $bad
