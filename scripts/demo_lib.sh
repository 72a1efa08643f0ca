# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the demos share: how they speak, and the numbers of a run. `.` it with $demo, the demo's folder.
bold= plain=
[ -t 1 ] && bold=$'\e[1m' plain=$'\e[0m'
heading() {
    printf '\n%s== %s%s\n\n' "$bold" "$1" "$plain"
}
tell() {
    echo "$*" | fold -s -w 96
}
say() { # a command as one would type it
    local word line=
    for word; do
        [[ $word == *[[:space:]]* ]] && word="\"$word\""
        line+=" $word"
    done
    printf '%s$%s%s\n' "$bold" "$line" "$plain"
}
show() { # a command: shown, then run
    say "$@"
    "$@"
}
fail() {
    printf '\n%s: %s\n' "$(basename "$0" .sh)" "$*" >&2
    exit 1
}
# Value of a key in the last line of the metrics that has it.
metric() { # key
    sed -n "s/.*\"$1\": *\([-+.0-9eE]*\).*/\1/p" "$demo/metrics.jsonl" 2>/dev/null | tail -n 1
}
grouped() { # a whole number: 13123 as 13,123
    sed -E ':a; s/([0-9])([0-9]{3})($|,)/\1,\2\3/; ta' <<<"$1"
}
