#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A program of somebody else's on fsdp/launch.h under srun: by Slurm's PMIx and by Slurm's own
# environment, on several nodes; and its end where a node's rank is killed.
. "$TOP/tests/slurm/lib/cluster.sh"
LIB=$BIN/../lib
build() { # out, source
    cc -O2 -Wall -Wextra -Werror -o "$1" "$2" -I"$TOP/libfsdp/include" -I"$TOP/launcher/include" -L"$LIB" \
        -lfsdp-launch -lfsdp -lm -Wl,-rpath,"$LIB"
}
build mlp "$TOP/examples/mlp/mlp.c" && ./mlp | sed 's/ gradient.*//' >alone && [ -s alone ]
ok $? "the example builds, and runs alone"
methods="none"
srun --mpi=list 2>&1 | grep -q pmix && fsdp-launch -n 1 --print-config 2>&1 | grep -q . && methods="none pmix"
for mpi in $methods; do
    for ranks in 1 2 3; do
        step -N"$ranks" -n"$ranks" --cpu-bind=none --mpi=$mpi ./mlp
        [ $rc = 0 ] && cmp -s alone <(sed 's/ gradient.*//' log)
        ok $? "srun --mpi=$mpi, $ranks ranks on as many nodes: its losses"
    done
done
sed 's/STEPS = 300/STEPS = 300000000/; s/step % 50 == 0/step % 1000 == 0/; s/    struct job job = {0};/&\n    setvbuf(stdout, NULL, _IOLBF, 0);/' "$TOP/examples/mlp/mlp.c" >long.c
build long long.c
timeout -k 5 60 srun --quiet -N3 -n3 --cpu-bind=none --mpi=none --kill-on-bad-exit=0 ./long >log 2>err &
for i in $(seq 300); do
    [ -s log ] && break
    sleep 0.1
done
for p in /proc/[0-9]*; do
    [ "$(readlink "$p/exe")" = "$PWD/long" ] && grep -z -q -x SLURM_PROCID=1 "$p/environ" && kill -KILL "${p#/proc/}"
done 2>/dev/null
wait $!
rc=$?
# Where the network is faster than the job's channel, another rank may have given up before rank 0 heard of the loss.
[ $rc != 0 ] && [ $rc != 124 ] && [ "$(grep -cE '^long: rank (1 on n[0-9]* is lost|2 on n[0-9]* gave up .*rank 1 on n)' err)" = 1 ]
ok $? "a rank that is killed is named with its node, once, and the others end"
echo "1..$n"
exit $bad
