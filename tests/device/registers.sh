#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What the assembler says of every kernel, on every architecture: none spills registers, and none takes
# more of them, or of the stack, than the table allows. More registers mean fewer threads at a time.
report=$BIN/../lib/libfsdp-cuda.ptxas
if [ ! -f "$report" ]; then
    echo "1..0 # SKIP built without CUDA"
    exit 0
fi

# A kernel (a pattern of its name, without types), registers, bytes of stack, and why. The first row that
# fits holds; the last is for all others. With 64 registers an SM has 1024 threads at a time, which
# memory-bound kernels need.
limits='
init_kernel   40  40  sine and cosine reduce large angles in an array
rope_table_kernel      40  40  the same
layernorm_forward_kernel 84 0  a row is in registers, read once
*norm_backward_kernel 128   0  and the sums of the gradients of its weights
grouped_kernel        128   0  a tile of a product; two blocks an SM
lengths_kernel        112   0  four rows of a weight at a time; products bound it, not memory
attention_dkv_kernel  255   0  both gradients of a tile; shared memory bounds the blocks of an SM first
attention_d*_kernel   240   0  sums over a head, and few rows where it is wide
attention_*_kernel    168   0  the same
*             64   0  memory-bound
'

# architecture, registers, stack, spilt bytes, name
kernels() {
    awk '
        /Compiling entry function/ {
            match($0, /sm_[0-9]+[a-z]*/)
            arch = substr($0, RSTART, RLENGTH)
            split($0, part, "\047")
            name = part[2]
        }
        /bytes stack frame/ && name { stack = $1; spills = $5 + $9 }
        /Used [0-9]+ registers/ && name {
            match($0, /Used [0-9]+/)
            print arch, substr($0, RSTART + 5, RLENGTH - 5), stack, spills, name
            name = ""
        }' "$1" | c++filt
}

# Those over their limit, one a line.
excess() {
    while read -r arch registers stack spills name; do
        short=${name%%[\<\(]*} short=${short##*[ :]}
        while read -r pattern most_registers most_stack _; do
            # shellcheck disable=SC2053
            [[ $short == $pattern ]] && break
        done < <(sed '/^$/d' <<<"$limits")
        if [ "$spills" != 0 ] || [ "$registers" -gt "$most_registers" ] || [ "$stack" -gt "$most_stack" ]; then
            echo "$arch $name: $registers registers (at most $most_registers)," \
                "$stack bytes of stack (at most $most_stack), $spills bytes spilt"
        fi
    done
}

n=0 bad=0
check() { # text, offenders
    n=$((n + 1))
    if [ -z "$2" ]; then
        echo "ok $n - $1"
    else
        echo "not ok $n - $1"
        sed 's/^/# /' <<<"$2"
        bad=1
    fi
}
all=$(kernels "$report")
check "the assembler's report was read" "$([ "$(wc -l <<<"$all")" -ge 20 ] || echo "$all")"
check "registers, stack and spills of $(wc -l <<<"$all") kernels" "$(excess <<<"$all")"
check "a spill would be seen" "$(excess <<<'sm_90 20 0 8 void some_kernel<float>(float*)' | grep -q '8 bytes spilt' || echo missed)"
check "many registers would be seen" \
    "$(excess <<<'sm_90 65 0 0 void some_kernel<float>(float*)' | grep -q '65 registers (at most 64)' || echo missed)"
echo "1..$n"
exit $bad
