#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# slurm/train.sbatch with stand-ins for srun and scontrol: when it queues itself again.
n=0 bad=0
ok() { # status, text
    n=$((n + 1))
    if [ "$1" = 0 ]; then
        echo "ok $n - $2"
    else
        echo "not ok $n - $2"
        sed 's/^/# /' log
        bad=1
    fi
}
mkdir bin
cat >bin/srun <<'END'
#!/bin/sh
echo "srun $*" >>log
exit "$STATUS"
END
cat >bin/scontrol <<'END'
#!/bin/sh
echo "scontrol $*" >>log
END
chmod +x bin/srun bin/scontrol
export PATH=$PWD/bin:$PATH SLURM_JOB_ID=17
unset SLURM_RESTART_COUNT

batch() { # status of srun, times that the job was started again, arguments...
    export STATUS=$1 SLURM_RESTART_COUNT=$2
    shift 2
    [ -n "$SLURM_RESTART_COUNT" ] || unset SLURM_RESTART_COUNT
    : >log
    bash "$TOP/slurm/train.sbatch" "$@" >out 2>&1
    rc=$?
}
again() {
    grep -q -x "scontrol requeue 17" log
}

batch 0 "" run.yaml "a.b=c d"
[ $rc = 0 ] && ! again && grep -q "fsdp-launch run.yaml a.b=c d" log
ok $? "a job that is done stays done"
grep -q -e "--kill-on-bad-exit=0" log
ok $? "one rank's status kills no other rank"
batch 1 "" run.yaml
[ $rc = 1 ] && ! again
ok $? "a failure is not repeated"
batch 75 "" run.yaml && batch 75 30 run.yaml
[ $rc = 75 ] && again
ok $? "stopped on request: again, as often as it takes"
batch 76 "" run.yaml
[ $rc = 76 ] && again
ok $? "a rank was lost: again"
batch 137 4 run.yaml
[ $rc = 137 ] && again
ok $? "and again"
batch 76 5 run.yaml
[ $rc = 76 ] && ! again
ok $? "but not for ever"
batch 0 ""
[ $rc = 2 ] && [ ! -s log ]
ok $? "no configuration: no job"
echo "1..$n"
exit $bad
