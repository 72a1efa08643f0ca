#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The scripts for a GPU machine, as far as they go without one.
. "$TOP/tests/lib/tap.sh"

parts=$(sed -n 's/^#   \([a-z]*\)  .*/\1/p' "$TOP/scripts/check_gpu.sh")
"$TOP/scripts/check_gpu.sh" --dry-run >log 2>&1
status=$?
for part in $parts; do
    # Between a part's first line and its last there is something that would run.
    sed -n "/^== $part\$/,/^== $part: /p" log | grep -q '^would run: ' || status=1
done
[ "$(wc -w <<<"$parts")" = 9 ] || status=1
ok $status "a dry run of each part says what would run: $(tr '\n' ' ' <<<"$parts")"

status=0
for program in $(grep -o 'tests/[a-z]*/test_[a-z_]*\.c' log | sort -u); do
    [ -e "$TOP/$program" ] || status=1
done
ok $status "the tests that it names are there"

for script in check_gpu bench_gpu; do
    "$TOP/scripts/$script.sh" nonsense >log 2>&1
    [ $? = 2 ] && grep -q 'PART' log
    ok $? "$script.sh refuses a part that it does not have"
done

# A machine whose driver shows none.
mkdir -p bin cuda/bin cuda/include
printf '#!/bin/sh\nexit 9\n' | tee bin/nvidia-smi >cuda/bin/nvcc
chmod +x bin/nvidia-smi cuda/bin/nvcc
touch cuda/include/nccl.h cuda/include/cudnn.h
PATH=$PWD/bin:$PATH CUDA_HOME=$PWD/cuda "$TOP/scripts/check_gpu.sh" device >log 2>&1
[ $? = 1 ] && grep -q 'nvidia-smi shows no GPU' log
ok $? "without a GPU it says so"

# Where what a part runs fails, the part fails, and the table says so.
printf '#!/bin/sh\nexit 2\n' >bin/make
printf '#!/bin/sh\necho "ERROR SUMMARY: 1 error"\nexit 9\n' >bin/compute-sanitizer
printf '#!/bin/sh\n[ "$1" = -c ] || { echo "mean of losses"; exit 1; }\n' >bin/python
printf '#!/bin/sh\necho "GPU 0"\n' >bin/nvidia-smi
chmod +x bin/*
for part in build sanitizer torch; do
    PATH=$PWD/bin:$PATH CUDA_HOME=$PWD/cuda TORCH_PYTHON=$PWD/bin/python RESULTS=$PWD/$part \
        "$TOP/scripts/check_gpu.sh" $part >log 2>&1
    [ $? = 1 ] && grep -q "^$part .* FAILED " "$part"/*.txt && grep -q '"verdict": "FAILED"' "$part"/*.json
    ok $? "$part: a failure is a failure"
done

"$BIN/tests/gpu/bench_kernels" cpu small >log 2>&1 && tail -n 1 log | grep -q '^{"copy_TB_s": .*adamw.*}$'
ok $? "the table of operators, of small ones on the CPU"
echo "1..$n"
exit $bad
