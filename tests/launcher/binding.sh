#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Which cores and cards ranks get, as a run and --check say it: on this machine, and on one with 8 GPUs
# that is described (machine.awk); its GPUs and NVML are stand-ins (tests/opaque, tests/nvml).
# run: timeout=400
. "$TOP/tests/lib/tap.sh"
cd "$TEST_TMP" || exit 1
launch=$BIN/fsdp-launch
cat >run.yaml <<END
model: {path: $TOP/examples/llama-tiny, init: random}
data: {path: $TOP/README.md, seq_len: 32}
train: {steps: 2, global_batch_size: 8}
checkpoint: {path: ''}
log: {metrics: ''}
END
run() { # arguments of fsdp-launch...: rc, log, err
    timeout 120 "$launch" -v "$@" >log 2>err
    rc=$?
}

run -n 2 run.yaml train.bind=none
[ $rc = 0 ] && grep -q -E "on .*  not bound: (train.bind is none|built without hwloc)" log
ok $? "train.bind=none: nothing is bound"
run -n 2 run.yaml
if grep -q "not bound: built without hwloc" log; then
    [ $rc = 0 ] && grep -q "^  ranks 0 to 1 on .*  not bound: built without hwloc" log
    ok $? "without hwloc a run says so"
    run -n 2 --check
    [ $rc = 0 ] && grep -q "not bound: built without hwloc" log
    ok $? "and --check, too"
    echo "1..$n"
    exit $bad
fi
# The cores that this test may use, one for each rank where there are two.
ncores=$(env -u OMP_NUM_THREADS nproc)
if [ "$ncores" -ge 2 ]; then expected="^  rank 1 on .*  [0-9]* whole core.*: "; else expected="not bound: 1 core, and 2 ranks on its machine"; fi
[ $rc = 0 ] && grep -q "$expected" log
ok $? "ranks of this machine get cores of their own"
run -n 1 run.yaml
[ $rc = 0 ] && grep -q "^  rank 0 on .*  not bound: the only rank of its machine" log
ok $? "a rank alone is left where it is"
core=$(taskset -pc $$ | sed 's/.*: \([0-9]*\).*/\1/')
timeout 120 taskset -c "$core" "$launch" -v -n 2 run.yaml >log 2>err
rc=$?
[ $rc = 0 ] && grep -q "^  ranks 0 to 1 on .*  not bound: 1 core, and 2 ranks on its machine" log
ok $? "more ranks than cores share them"

awk -f "$TOP/tests/launcher/machine.awk" >machine.xml
export HWLOC_XMLFILE=$PWD/machine.xml
run -n 4 run.yaml train.threads=1 fsdp.device=cpu
[ $rc = 0 ] && grep -q "^  rank 0 on .*  16 whole cores: 0-15,64-79, 2 NUMA nodes, package 0" log &&
    grep -q "^  rank 3 on .*  16 whole cores: 48-63,112-127, 2 NUMA nodes, package 1" log
ok $? "4 ranks on 2 packages of 4 NUMA nodes"

# GPUs in the bus's order, each rank near its own.
export FSDP_CUDA_LIBRARY=$BIN/tests/libfsdp-opaque.so LD_LIBRARY_PATH=$BIN/tests/nvml
unset CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER
run -n 8 run.yaml train.threads=1 fsdp.device=cuda
[ $rc = 0 ] && grep -q "^  rank 0 on .*  4 whole cores: 24-27,88-91, NUMA node 3, package 0; GPU 0000:07:00.0 with network card mlx5_0" log &&
    grep -q "^  rank 5 on .*  4 whole cores: 60-63,124-127, NUMA node 7, package 1; GPU 0000:8f:00.0 with network card mlx5_5" log &&
    [ "$(grep -c "^  rank . on .*whole cores" log)" = 8 ]
ok $? "8 GPUs: the cores and the network card near each"
CUDA_VISIBLE_DEVICES=GPU-6,GPU-1 run -n 2 run.yaml train.threads=1 fsdp.device=cuda
[ $rc = 0 ] && grep -q "^  rank 0 on .*  8 whole cores: 40-47,104-111, NUMA node 5, package 1; GPU 0000:c7:00.0 with network card mlx5_6" log &&
    grep -q "^  rank 1 on .*  8 whole cores: 24-31,88-95, .*; GPU 0000:0f:00.0 with network card mlx5_1" log
ok $? "CUDA_VISIBLE_DEVICES by name"
NVML_SIM=3:free=10 run -n 8 --check
[ $rc = 0 ] && grep -q "^  rank 7 on .*  4 whole cores: 44-47,108-111, .*; GPU 0000:cf:00.0 with network card mlx5_7" log &&
    grep -q "GPUs with 10.0 GiB and 12 NVLinks at least" log &&
    grep -q "warning: .*: GPU 0000:4f:00.0 has 10.0 GiB of 80.0 GiB free: another process?" err
ok $? "--check says it too, and what memory is taken"
NVML_SIM=6:links=11 run -n 8 --check
[ $rc = 0 ] && grep -q "warning: .*: GPU 0000:c7:00.0: 11 of 12 NVLinks work" err
ok $? "an NVLink that does not work"
NVML_SIM=1:lanes=8 run -n 8 --check
[ $rc = 0 ] && grep -q "warning: .*: GPU 0000:0f:00.0 uses 8 of 16 lanes of PCIe" err
ok $? "lanes that are not used"
echo "1..$n"
exit $bad
