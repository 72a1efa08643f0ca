#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Draws the loss curve of a metrics file (log.metrics), a level to compare it with, and marks:
#
#   plot.sh METRICS.jsonl OUT.png [LEVEL:LABEL [STEP:LABEL...]]
set -u -o pipefail
[ $# -ge 2 ] || { sed -n '3,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
metrics=$1 out=$2 level=${3:-}
shift $(($# < 3 ? $# : 3))
command -v gnuplot >/dev/null || { echo "plot.sh: no gnuplot here (scripts/deps.sh demo)" >&2; exit 1; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

pick() { # key: "step value" lines
    awk -v key="$1" '
        function value(name) {
            if (!match($0, "\"" name "\": *[-+.0-9eE]+"))
                return ""
            return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3)
        }
        value(key) != "" { print value("step") + 0, value(key) + 0 }' "$metrics"
}
pick loss >"$work/loss"
pick eval_loss >"$work/eval"
[ -s "$work/loss" ] || { echo "plot.sh: no loss in $metrics" >&2; exit 1; }

plots="'$work/loss' with lines lw 2 lc rgb '#2060c0' title 'training'"
[ ! -s "$work/eval" ] || plots+=", '$work/eval' with points pt 7 ps 1.4 lc rgb '#d03020' title 'held out'"
[ -z "$level" ] || plots+=", ${level%%:*} with lines dt 2 lc rgb '#606060' title '${level#*:}'"
marks=
for mark; do
    step=${mark%%:*}
    marks+="set arrow from $step, graph 0 to $step, graph 1 nohead dt 3 lc rgb '#909090'"$'\n'
    marks+="set label ' ${mark#*:}' at $step, graph 0.95"$'\n'
done

gnuplot <<END
set terminal pngcairo size 960,600 font "sans,12"
set output "$out"
set xlabel "optimizer step"
set ylabel "loss (nats per token)"
set grid lc rgb '#e0e0e0'
set xrange [0:*] noextend
set key at graph 0.98, 0.88
$marks
plot $plots
END
