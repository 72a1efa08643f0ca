#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What the machine code of every kernel contains, for the newest architecture of the build: no access of
# local memory, no call but of the paths that quotients and roots seldom take, and accesses of 128 bits
# where the source has packs. Kernels for fp16 are those for bf16 with another type, and left out: nvdisasm
# needs 14 s for the others. Spills and registers: registers.sh.
# run: timeout=600
. "$TOP/tests/lib/tap.sh"

report=$BIN/../lib/libfsdp-cuda.ptxas library=$BIN/../lib/libfsdp-cuda.so
if [ ! -f "$report" ]; then
    echo "1..0 # SKIP built without CUDA"
    exit 0
fi
nvcc=${NVCC:-nvcc}
PATH=$PATH:$(dirname "$(command -v "$nvcc" || echo "$nvcc")")
for folder in "$TOP"/build/venv-sass/lib*/python3*/site-packages/nvidia/*/bin; do
    PATH=$PATH:$folder
done
if ! command -v cuobjdump >/dev/null || ! command -v nvdisasm >/dev/null; then
    echo "1..0 # SKIP no cuobjdump and nvdisasm here (scripts/with_python.sh sass true fetches them)"
    exit 0
fi

# A kernel (a pattern of its name with types, without blanks), the least number of loads of 128 bits from
# global memory, of loads from shared memory, of stores to global memory, and what that is. The first row
# that fits holds. A kernel without a row needs one wide load or store.
# Where a row has zeros, each thread takes single elements, and those of a warp are neighbours.
vectors='
adamw_kernel*                 1  0 0  gradients or moments; packs of four 16-bit elements are 64 bits
attention_delta_kernel*       2  0 0  gradients and results
attention_*_kernel\<*         3 16 0  tiles of a head
collect_kernel*               2  0 1  rows
columns_kernel*               2  0 1  rows
copy_blocks_kernel\<fsdp_pack* 1 0 1  four words
copy_blocks_kernel*           0  0 0  what is not aligned to four words
cross_entropy_kernel*         2  0 2  logits
dequantize_kernel*            0  0 1  results; codes are 8 bytes or fewer
embedding_backward_kernel*    1  0 1  rows
embedding_forward_kernel*     1  0 1  rows
f8_block_kernel*              1  0 0  rows; codes are 8 bytes
f8_columns_amax_kernel*       1  0 0  rows; one value of a column a warp
f8_row_kernel*                4  0 1  rows, twice, and 16 codes or values
f8_square_kernel*             2  1 1  rows, and 16 codes or values
f8_amax_kernel*               1  0 0  rows
f8_decode_kernel*             1  0 1  rows
f8_encode_kernel*             2  0 1  rows, and 16 codes
f8_scale_kernel               0  0 0  one number
f8_turn_codes_kernel          1  1 1  16 codes
f8_turn_kernel*               1  1 1  rows, and 16 codes
f8_value_kernel               0  0 1  results; codes are 8 bytes
glu_backward_kernel*          3  0 3  gate, up and the gradient
glu_forward_kernel*           2  0 1  gate and up
grouped_kernel*               4  2 2  tiles of a product
init_kernel                   1  0 0  sources
layernorm_*_kernel*           4  0 4  rows and weights
lengths_kernel*               4  0 0  four rows at a time
logits_kernel*                1  0 1  logits
map_kernel*                   1  0 1  packs
nf4_decode_kernel*            0  0 1  results; codes are 4 bytes
order_kernel                  0  1 0  words of several warps
pointwise_backward_kernel*    2  0 2  values and the gradient
pointwise_forward_kernel*     1  0 1  values
quantize_kernel*              2  0 0  values; codes are 8 bytes
rmsnorm_*_kernel*             4  0 4  rows and weights
rope_kernel*                  2  0 2  both halves of a head
scale_add_kernel*             2  0 1  both terms
spread_kernel*                1  0 1  rows
sum_rows_kernel*              4  0 0  rows
weigh_kernel*                 2  0 1  rows
adafactor_*                   0  0 0  rows and columns of a matrix in one pass
adamw8bit_kernel              2  0 1  masters and gradients; codes are 4 bytes
ema_kernel                    0  0 0  optimizers of one element a thread
lion_kernel                   0  0 0  the same
sgd_kernel                    0  0 0  the same
schedulefree_*kernel*         0  0 0  the same
narrow_kernel                 0  0 0  the same
reduce_kernel*                0  0 0  the order of sums is of single elements
*join_kernel*                 0  0 0  sums of blocks
muon_*kernel                  0  0 0  matrices of any width, sums of single elements
matmul_kernel                 0  0 0  tiles of a matrix of any width
max_rows_kernel               0  0 0  a column a thread
column_lengths_kernel*        0  0 0  the same
split_kernel*                 0  0 0  the same
store_kernel*                 0  0 0  the same
add_row_kernel*               0  0 0  the same
dropout_kernel*               0  0 0  words of one counter lie eight elements apart
attention_dsinks_kernel       0  0 0  one value of a head
route_*kernel*                0  0 0  few experts
route_kernel*                 0  0 0  the same
load_kernel                   0  0 0  the same
balance_kernel                0  0 0  the same
count_kernel                  0  0 0  the same
begin_kernel                  0  0 0  the same
positions_kernel              0  0 0  one number of a token
split_tokens_kernel           0  0 0  the same
documents_kernel              0  0 0  the same
seeds_kernel                  0  0 0  two numbers
rope_table_kernel             0  0 0  sines of one angle
clip_kernel                   0  0 0  one number
loss_*_kernel                 0  0 0  the same
split_kernel                  0  0 0  the same
'
# Kernels whose sines reduce large angles in an array.
local_memory='init_kernel rope_table_kernel'
# What the assembler calls for arguments that its short code does not cover: subnormal, infinite, or of more
# than 32 bits. "div_rn_f64_full" is the quotient of doubles as a whole.
rare='__cuda_sm[0-9a-z]*_(div|rcp|sqrt|dsqrt|drsqrt|dblrcp)_(rn|rn_noftz|rn_f64)_[a-z0-9_]*(slowpath|mediumpath|full)[a-z0-9_]*|__cuda_sm[0-9a-z]*_dblrcp_rn_[a-z0-9_]*|__cuda_sm[0-9a-z]*_(div|rem)_[us]64'
# Others, by kernel: powers of betas, and sines of large angles.
calls='
adamw_kernel*          accurate_pow
adamw8bit_kernel       accurate_pow
adafactor_*            accurate_pow
schedulefree_kernel*   accurate_pow
init_kernel            trig_reduction_slowpathd
rope_table_kernel      trig_reduction_slowpathd
'

# Of cubins: a line for each kernel with its accesses of local memory, wide loads (global, shared), wide
# stores, calls (- or names with commas), its name.
kernels() { # cubin...
    local cubin symbols
    for cubin in "$@"; do
        symbols=$(readelf -sW "$cubin" 2>/dev/null |
            awk '$4 == "FUNC" && $NF !~ /6__half|^\$/ { sub(":", "", $1); printf "%s%s", comma, $1; comma = "," }')
        nvdisasm -c -fun "$symbols" "$cubin" || return
    done | awk '
        /^\.text\./ {
            name = substr($1, 7)
            sub(/:$/, "", name)
            if (!(name in calls)) { calls[name] = ""; names[++n] = name }
            next
        }
        /^ *\/\*[0-9a-f]+\*\// {
            op = $2 ~ /^@/ ? $3 : $2
            if (op ~ /^(LDL|STL)/) local[name]++
            else if (op ~ /^LDG?\..*128/) loads[name]++
            else if (op ~ /^LDS(M|\..*128)/) shared[name]++
            else if (op ~ /^STG?\..*128/) stores[name]++
            else if (op ~ /^CALL/) {
                callee = $0
                sub(/^.*CALL[A-Z.]* */, "", callee)
                gsub(/[`(); ]/, "", callee)
                sub(/^.*__internal_([0-9]+_\$)?/, "", callee)
                if (index("," calls[name] ",", "," callee ",") == 0) calls[name] = calls[name] "," callee
            }
        }
        END {
            for (i = 1; i <= n; i++) {
                k = names[i]
                print local[k] + 0, loads[k] + 0, shared[k] + 0, stores[k] + 0, \
                    calls[k] == "" ? "-" : substr(calls[k], 2), k
            }
        }' | while read -r a b c d e name; do
        name=$(c++filt "$name")
        name=${name#void } name=${name%%(*}
        echo "$a $b $c $d $e ${name// /}"
    done
}

row_of() { # table, name: what follows the first pattern that fits
    local pattern rest
    while read -r pattern rest; do
        # shellcheck disable=SC2053
        [[ $pattern && $2 == $pattern ]] && echo "$rest" && return
    done <<<"$1"
    return 1
}

# Those that break a rule, one a line.
faults() {
    local where loads shared stores called name row least callee
    while read -r where loads shared stores called name; do
        [ "$where" = 0 ] || [[ " $local_memory " == *" $name "* ]] ||
            echo "$name: $where accesses of local memory (an array whose indices are not constant?)"
        for callee in ${called//,/ }; do
            [ "$callee" = - ] || [[ $callee =~ ^($rare)$ ]] || [ "$(row_of "$calls" "$name")" = "$callee" ] ||
                echo "$name: calls $callee (inline it)"
        done
        if row=$(row_of "$vectors" "$name"); then
            read -r -a least <<<"$row"
            [ "$loads" -ge "${least[0]}" ] && [ "$shared" -ge "${least[1]}" ] && [ "$stores" -ge "${least[2]}" ] ||
                echo "$name: $loads wide loads, $shared of shared memory, $stores stores; ${least[*]:0:3} are needed"
        elif [ $((loads + shared + stores)) = 0 ]; then
            echo "$name: no access of 128 bits (name it among vectors, with the reason)"
        fi
    done
}

# A kernel that breaks every rule.
cat >planted.cu <<'END'
static __device__ __noinline__ float called(float x, float y)
{
    return x > y ? x * y + 3.0f : y;
}
extern "C" __global__ void planted_kernel(float *x, const int *at, int n)
{
    float array[64];
    for (int i = 0; i < 64; i++)
        array[i] = x[i * n];
    for (int i = 0; i < n; i++)
        array[at[i] & 63] = called(array[at[i + 1] & 63], x[i]);
    for (int i = 0; i < 64; i++)
        x[i * n] = array[i];
}
END
arch=$(grep -o "sm_[0-9]*[a-z]*" "$report" | sort -u -t_ -k2n | tail -n 1)
"$nvcc" -O3 -arch="$arch" -cubin -o planted.cubin planted.cu >log 2>err && kernels planted.cubin >planted && faults <planted >log
ok $? 'a kernel with faults is compiled'
grep -q '^planted_kernel: [1-9][0-9]* accesses of local memory' log
ok $? 'an array in local memory is seen'
grep -q '^planted_kernel: calls .*called' log
ok $? 'a call is seen'
grep -q '^planted_kernel: no access of 128 bits' log
ok $? 'single elements are seen'
faults <<<'0 1 0 0 - spread_kernel<__nv_bfloat16>' | grep -q '0 stores; 1 0 1 are needed'
ok $? 'a store that is narrow next to a wide load is seen'

cuobjdump -xelf "$arch" "$library" >log 2>err && rm planted.cubin && kernels ./*.cubin >all 2>err
test $? = 0 && test "$(grep -c . all)" = "$(grep "Compiling entry function .* for '$arch'" "$report" | grep -c -v 6__half)"
ok $? "$(grep -c . all) kernels of $arch, all that were compiled for other types than fp16"
faults <all >log
test ! -s log
ok $? 'no local memory, no calls, wide accesses'
echo "1..$n"
exit $bad
