#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The peak memory of ckpt-merge and ckpt-reshard on checkpoints of 8 GB from 2, 8 and 64 ranks, plain
# and compressed: at most --mem and 32 MiB. And of fsdp-tokenize on 100 MB and on a text ten times as
# long: 32 MiB more at most. Prints a table; fails if a run takes more.
#
#   scripts/check_memory.sh [GB] [RANKS...]
#
# Needs four times GB (8) on the disk under TMPDIR (/var/tmp), and GNU time.
set -u
TOP=$(cd "$(dirname "$0")/.." && pwd)
BIN=${BIN:-$TOP/build/bin}
gb=${1:-8} mem=256 slack=32
[ $# = 0 ] || shift
ranks=${*:-2 8 64}

die() {
    echo "check_memory: $*" >&2
    exit 1
}
work=$(mktemp -d "${TMPDIR:-/var/tmp}/fsdp-memory.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

# A safetensors file of matrices of 64 MiB in bf16. Their bytes take six bits each, as text of base 64
# does: they compress about as well as weights.
make_source() {
    local n=$((gb * 1000000000 / (64 << 20))) header nbytes i
    header=$(awk -v n=$n 'BEGIN {
        for (i = 0; i < n; i++)
            printf "%s\"model.layers.%d.weight\":{\"dtype\":\"BF16\",\"shape\":[8192,4096]," \
                "\"data_offsets\":[%.0f,%.0f]}", i ? "," : "{", i, i * 67108864, (i + 1) * 67108864
        print "}"
    }')
    nbytes=${#header}
    for i in 0 8 16 24 32 40 48 56; do
        printf "\\x$(printf %02x $((nbytes >> i & 255)))"
    done >source.safetensors
    printf %s "$header" >>source.safetensors
    head -c $((48 << 20)) /dev/urandom | base64 -w 0 >matrix
    for ((i = 0; i < n; i++)); do
        cat matrix || return 1
    done >>source.safetensors
    rm matrix
}

failed=0
run() { # text COMMAND...: a row
    local text=$1 peak
    shift
    /usr/bin/time -o peak -f %M "$@" --mem ${mem}M --threads 8 --quiet || die "$* failed"
    peak=$(($(tail -n 1 peak) / 1024))
    [ $peak -le $((mem + slack)) ] || failed=1
    printf '| %s | %d |%s\n' "$text" $peak "$([ $peak -le $((mem + slack)) ] || echo ' too much |')"
}

[ -x /usr/bin/time ] || die 'GNU time is not there: scripts/deps.sh bench'
compress='none zstd'
"$BIN/ckpt-reshard" --help | grep -q zstd || compress=none
make_source || die 'cannot write the source'
echo "$(stat -c %s source.safetensors) bytes, --mem ${mem}M --threads 8, $(nproc) processors: MiB at the peak, at most $((mem + slack))"
echo
echo '| what | MiB |'
echo '| --- | --- |'
for n in $ranks; do
    for how in $compress; do
        name="$n ranks"
        [ "$how" = none ] || name+=", $how"
        run "reshard of one file to $name" "$BIN/ckpt-reshard" source.safetensors -o sharded --world "$n" --compress "$how"
        run "merge of $name" "$BIN/ckpt-merge" sharded -o out.safetensors
        rm -f out.safetensors
        run "reshard of $name to 6 ranks, $how" "$BIN/ckpt-reshard" sharded -o out --world 6 --compress "$how"
        rm -rf out sharded
    done
done

# A text of the documents of this tree, again and again.
peak_of_text() { # MB: the peak in MiB
    local nbytes=$(($1 * 1000000))
    while cat "$TOP"/docs/*.md; do :; done 2>/dev/null | head -c $nbytes >text
    /usr/bin/time -o peak -f %M "$BIN/fsdp-tokenize" text -o text.u16 --tokenizer "$TOP/tests/tokens/data/bytes.json" \
        --special model --threads 2 --overwrite 2>log || die "fsdp-tokenize failed: $(tail -n 1 log)"
    echo $(($(tail -n 1 peak) / 1024))
}
small=$(peak_of_text 100) && large=$(peak_of_text 1000) || exit 1
echo "| fsdp-tokenize of 100 MB, 2 threads | $small |"
echo "| fsdp-tokenize of 1 GB, 2 threads | $large |"
[ "$large" -le $((small + slack)) ] || failed=1
exit $failed
