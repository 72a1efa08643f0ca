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
[ "$(wc -w <<<"$parts")" = 12 ] || status=1
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

# What the GPU held next to CUDA's own 500 MiB is the plan of a run and its workspaces, to 2 %; 100 MiB were
# somebody's before. The program and the driver's are stand-ins, the arithmetic and the sampling are not.
printf '#!/bin/sh\necho "GPU 0" | grep -v "$1" || cat "%s/used"\n' "$PWD" >bin/nvidia-smi
cat >bin/fsdp-launch <<END
#!/bin/bash
mib=574 planned=10
[[ "\$*" != *model.path=* ]] || mib=\$LARGE planned=4000
[[ "\$*" =~ log.metrics=([^ ]*) ]] && echo '{"loss": 1}' >"\${BASH_REMATCH[1]}"
echo \$((100 + mib)) >$PWD/used
echo "device memory: \$((planned << 20)) bytes planned, \$((64 << 20)) of workspaces for libraries and sums"
sleep \${NAP:-1.5}
echo 100 >$PWD/used
END
chmod +x bin/*
measured() { # MiB of the large run, seconds of a part, verdict, pattern of the figures
    rm -rf memory && echo 100 >used
    PATH=$PWD/bin:$PATH BIN=$PWD/bin CUDA_HOME=$PWD/cuda TORCH_PYTHON=$PWD/bin/python RESULTS=$PWD/memory \
        LARGE=$1 PART_S=$2 "$TOP/scripts/check_gpu.sh" memory >log 2>&1
    grep -q "^memory .* $3 .*$4" memory/*.txt
}
measured 4584 60 ok 'planned 4.194 GB and 0.067 of workspaces, measured 4.282 (+0.49 %.*CUDA itself 0.524'
ok $? "memory: what was planned is what is held"
measured 4664 60 FAILED '+2.46 %'
ok $? "memory: more than was planned fails"
measured 4464 60 FAILED '-2.46 %'
ok $? "memory: less than was planned fails"
NAP=30 measured 4564 2 FAILED 'stopped after 2 s'
ok $? "a part that takes too long is stopped, and fails"

"$BIN/tests/gpu/bench_kernels" cpu small >log 2>&1 && tail -n 1 log | grep -q '^{"copy_TB_s": .*adamw.*}$'
ok $? "the table of operators, of small ones on the CPU"
echo "1..$n"
exit $bad
