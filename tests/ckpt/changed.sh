#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A checkpoint that changes while a tool reads it, or between a kill and the next run: the tool says
# so and publishes nothing. Changes that cannot matter are no failure.
# run: timeout=240
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"

# name, byte: 8 tensors of 1,000,000 such bytes.
make_weights() {
    local header= i
    for i in 0 1 2 3 4 5 6 7; do
        header+="${header:+,}\"w$i\":{\"dtype\":\"F32\",\"shape\":[500,500],\"data_offsets\":[$((i * 1000000)),$(((i + 1) * 1000000))]}"
    done
    header="{$header}"
    while [ $((${#header} % 8)) != 0 ]; do header+=' '; done
    {
        printf "\\x$(printf %02x $((${#header} % 256)))\\x$(printf %02x $((${#header} / 256)))\\0\\0\\0\\0\\0\\0%s" "$header"
        head -c 8000000 /dev/zero | tr '\0' "$2"
    } >"$1"
}
make_weights A a
make_weights B b
head -c 500 B >short
mkdir hf dcp native
cp A hf/model.safetensors && echo '{"model_type": "llama"}' >hf/config.json
"$BIN/ckpt-reshard" A -o dcp --world 2 --format dcp --overwrite -q || "$BIN/ckpt-reshard" A -o dcp2 --world 2 --format dcp -q
[ -f dcp/.metadata ] || { rm -rf dcp && mv dcp2 dcp; }
rmdir native && "$BIN/ckpt-reshard" A -o native --world 2 -q
"$BIN/ckpt-reshard" B -o other-native --world 2 -q
"$BIN/ckpt-reshard" B -o other-dcp --world 2 --format dcp -q

# Stops a tool after so many store calls, changes something, and lets it run on: its status.
during() { # change, calls, tool, arguments...
    local change=$1 calls=$2 pid
    shift 2
    CKPT_FAULT=stop:$calls "$BIN/$@" >log 2>err &
    pid=$!
    for _ in $(seq 600); do
        [[ $(ps -o stat= -p $pid) == T* ]] && break
        kill -0 $pid 2>/dev/null || break
        sleep 0.02
    done
    [[ $(ps -o stat= -p $pid) == T* ]] || { echo "it ended before call $calls" >>err && kill -KILL $pid; }
    eval "$change"
    kill -CONT $pid 2>/dev/null
    wait $pid
}
fresh() { # what, from what
    rm -rf "$1" out out.safetensors out.safetensors.tmp.* out.tmp.*
    cp -rp "$2" "$1"
}
refused() { # what is said, what the output would be
    [ "$1" = 1 ] && grep -q "changed while it was read: $2" err && [ ! -e out ] && [ ! -e out.safetensors ]
}

merge='ckpt-merge s.safetensors -o out.safetensors --mem 1M --threads 1'
while IFS='|' read -r what change said; do
    fresh s.safetensors A
    during "$change" 30 $merge
    refused $? "$said"
    ok $? "merge of a file that is $what: $said"
done <<'END'
rewritten in place|cat B >s.safetensors|its modification time
rewritten in place, with its time put back|touch -r s.safetensors t; cat B >s.safetensors; touch -r t s.safetensors|its status
truncated and grown again|truncate -s 600 s.safetensors; truncate -s $(stat -c %s A) s.safetensors|its modification time
appended to|echo more >>s.safetensors|its size
replaced by another|cp B n; mv n s.safetensors|another file has its name
removed|rm s.safetensors|it is not there any more
made a link to another|ln -sf B s.safetensors|another file has its name
END

fresh s.safetensors A
during 'cat s.safetensors >/dev/null' 30 $merge
ok "$([ $? = 0 ] && tail -c 8000000 out.safetensors | tr -d a | wc -c | grep -q -x 0; echo $?)" "reading it elsewhere is no change"

for tool in 'ckpt-reshard s.safetensors -o out --world 2 --mem 1M --threads 1' 'ckpt-cp s.safetensors out.safetensors --mem 1M --threads 1'; do
    fresh s.safetensors A
    during 'cat B >s.safetensors' 30 $tool
    refused $? 'its modification time'
    ok $? "${tool%% *} of a file that is rewritten"
done
fresh s.safetensors A
during 'cat B >s.safetensors' 8 ckpt-diff s.safetensors A --threads 1
ok "$([ $? = 2 ] && holds err 'changed while it was read'; echo $?)" "ckpt-diff of a file that is rewritten"
fresh s.safetensors A
during 'cat B >s.safetensors' 6 ckpt-verify s.safetensors
ok "$([ $? = 1 ] && holds err 'changed while it was read'; echo $?)" "ckpt-verify of a file that is rewritten"

fresh d dcp
during 'cp other-dcp/*.distcp d/' 30 ckpt-merge d -o out.safetensors --mem 1M --threads 1
refused $? 'its modification time'
ok $? "merge of a DCP whose data files are written again"
fresh d dcp
during 'cp other-dcp/.metadata d/n; mv d/n d/.metadata' 30 ckpt-merge d -o out.safetensors --mem 1M --threads 1
refused $? 'another file has its name'
ok $? "merge of a DCP whose .metadata is replaced"
fresh d dcp
during 'mv d gone; cp -rp other-dcp d' 30 ckpt-merge d -o out.safetensors --mem 1M --threads 1
refused $? 'another file has its name'
ok $? "merge of a folder that is replaced by another"
rm -rf gone
fresh d dcp
during 'mv d/__0_0.distcp n; mv d/__1_0.distcp d/__0_0.distcp; mv n d/__1_0.distcp' 30 ckpt-merge d -o out.safetensors --mem 1M --threads 1
refused $? 'another file has its name'
ok $? "merge of a DCP whose files are swapped"
fresh d dcp
during 'chmod 600 d/__0_0.distcp' 30 ckpt-merge d -o out.safetensors --mem 1M --threads 1
ok $? "checksums prove the bytes: other permissions are no change"
fresh d native
during 'touch d/model/*; cp d/manifest.json n; mv n d/manifest.json' 30 ckpt-merge d -o out.safetensors --mem 1M --threads 1
ok "$([ $? = 0 ] && tail -c 8000000 out.safetensors | tr -d a | wc -c | grep -q -x 0; echo $?)" \
    "fingerprints prove the bytes of a native checkpoint: other times and equal files are no change"
fresh d native
during 'for f in model/*; do :; done; cp other-native/model/* d/model/' 30 ckpt-merge d -o out.safetensors --mem 1M --threads 1
ok "$([ $? = 1 ] && [ ! -e out.safetensors ]; echo $?)" "and other bytes are found"

# ---- between a kill and the next run -----------------------------------------------------------------------

for put in 'cp B s.safetensors' 'cat B >s.safetensors'; do
    fresh s.safetensors A
    touch -d @1000 s.safetensors
    CKPT_FAULT=kill:30 "$BIN"/$merge >log 2>err
    eval "$put" && touch -d @1000 s.safetensors
    "$BIN"/$merge >log 2>err
    ok "$([ $? = 0 ] && ! holds log 'from an earlier run' && tail -c 8000000 out.safetensors | tr -d b | wc -c | grep -q -x 0; echo $?)" \
        "another file of the same size and time after a kill: the merge starts again ($put)"
done
fresh d dcp
touch -d @1000 d/* d/.metadata
CKPT_FAULT=kill:30 "$BIN/ckpt-merge" d -o out.safetensors --mem 1M --threads 1 >log 2>err
rm -rf d && cp -r other-dcp d && touch -d @1000 d/* d/.metadata
"$BIN/ckpt-merge" d -o out.safetensors --mem 1M --threads 1 >log 2>err
ok "$([ $? = 0 ] && ! holds log 'from an earlier run' && tail -c 8000000 out.safetensors | tr -d b | wc -c | grep -q -x 0; echo $?)" \
    "another DCP of the same sizes and times after a kill"
fresh s.safetensors A
CKPT_FAULT=kill:30 "$BIN"/$merge >log 2>err
"$BIN"/$merge >log 2>err
ok "$([ $? = 0 ] && holds log 'from an earlier run'; echo $?)" "an unchanged source is resumed"

# ---- data of two saves in one DCP folder ----------------------------------------------------------------------

fresh d dcp
touch -d @2000 d/.metadata && touch -d @1000 d/__0_0.distcp && touch -d @3000 d/__1_0.distcp
for tool in ckpt-info ckpt-verify 'ckpt-merge -o out.safetensors' 'ckpt-reshard --world 2 -o out'; do
    "$BIN"/$tool d >log 2>err
    ok "$([ $? = 0 ] && holds err "1 data file is newer than 'd/.metadata', such as '__1_0.distcp'"; echo $?)" "$tool warns"
    rm -rf out out.safetensors
done
"$BIN/ckpt-verify" d >log 2>err
ok "$(holds log "each archive's checksum is right (that all are of one save is not proved)"; echo $?)" "ckpt-verify says what it proved"
"$BIN/ckpt-verify" native >log 2>err
ok "$(holds log 'checksums and fingerprints prove every byte'; echo $?)" "also of a native checkpoint"
"$BIN/ckpt-info" dcp >log 2>err
ok "$([ ! -s err ]; echo $?)" "data files older than .metadata warn of nothing"

echo "1..$n"
exit $bad
