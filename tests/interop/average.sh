#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ckpt-merge --average against torch: sums in double precision of files of every floating type and format, rounded once.
. "$TOP/tests/lib/python.sh"
need_python 'torch, safetensors'
. "$TOP/tests/lib/tap.sh"
python() { "$PYTHON" -W ignore "$TOP/tests/interop/average.py" "$@" 2>&1; }
python make >log
ok $? "torch saves three models in each of four types and three formats"
merge() { "$BIN/ckpt-merge" --quiet --average "$@" >>log 2>err; }
wanted() { echo "$*" >>wanted; } # file, weights, types
for from in f32 bf16 f16 f64; do
    for to in stored float32 bfloat16 float16; do
        dtype="--dtype $to"
        [ $to != stored ] || dtype=
        merge a-$from.safetensors b-$from.pt c-$from -o mean-$from-$to.safetensors $dtype &&
            merge a-$from.safetensors=2 b-$from.pt=0.5 c-$from=-0.75 -o sum-$from-$to.safetensors $dtype
        ok $? "$from to $to"
        wanted mean-$from-$to.safetensors 1 1 1 $from
        wanted sum-$from-$to.safetensors 2 0.5 -0.75 $from
    done
done
merge a-bf16.safetensors=1 b-f32.pt=3 -o mixed.safetensors
ok $? "bf16 and fp32: the first one's type"
wanted mixed.safetensors 1 3 0 bf16 f32
python check <wanted >checked 2>err
ok $? "torch says of each whether it is the average"
ok_lines checked
ok "$([ "$(grep -c '^ok' checked)" = 33 ]; echo $?)" "of all 33"
echo "1..$n"
exit $bad
