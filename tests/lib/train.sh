# SPDX-License-Identifier: Apache-2.0
# train.sh: what tests of whole runs share; `.` it after tap.sh, in the scratch folder. $launch is
# fsdp-launch; a test may replace run().
launch=$BIN/fsdp-launch
run() { "$launch" "$@" >log 2>err; }
holds() { grep -q -F -- "$2" "$1"; } # file, text

# The lines of metrics without what depends on the clock.
numbers() { sed -E 's/"tokens_per_s": .*"time": [^,}]*//; s/, "(sav|flush|wall|attempt|ranks|memory|slowest)[a-z_]*": [^,}]*//g' "$1"; }
# The tensors of a checkpoint with their fingerprints: of one kind, or of all.
prints() { grep -o "\"[^\"]*\": {\"kind\": \"${2:-[^\"]*}\".*\"fingerprint\": \"[^\"]*\"" "$1/manifest.json" | sort; }
# Do two checkpoints hold the same tensors, bit for bit? The kind may be given.
same() { [ -n "$(prints "$1" "${3:-}")" ] && cmp -s <(prints "$1" "${3:-}") <(prints "$2" "${3:-}"); }

# The process of a rank of the test's job.
rank_pid() { # rank
    local p
    for p in /proc/[0-9]*; do
        grep -z -q -x "RANK=$1" "$p/environ" 2>/dev/null && grep -z -q "^TEST_TMP=$TEST_TMP\$" "$p/environ" &&
            [ "$(cat "$p/comm")" = fsdp-launch ] && echo "${p#/proc/}" && return
    done
}

wait_for() { # file, pattern: until a line of it has come
    for _ in $(seq 3000); do
        grep -q -e "$2" "$1" 2>/dev/null && return 0
        sleep 0.1
    done
    return 1
}

# model: a tiny Llama; text: lines to train on, 400 or as many as given.
make_input() {
    install -D -m 644 "$TOP/examples/llama-tiny/config.json" model/config.json
    for i in $(seq "${1:-400}"); do
        echo "line $i of the text: $((i * i)) and $((i * 7919 % 1000))"
    done >text
}
