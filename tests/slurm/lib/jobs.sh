# SPDX-License-Identifier: Apache-2.0
# jobs.sh: jobs of slurm/train.sbatch in folders of their own; `.` it after cluster.sh. Each folder gets
# the run.yaml of the scratch folder.
export FSDP_ENV=$TOP/slurm/env.sh FSDP_BIN=$BIN
losses() { sed 's/.*"step": \([0-9]*\), "loss": \([^,]*\),.*/\1 \2/' "$1/metrics.jsonl"; }
fresh() { # name
    mkdir "$1" && cp run.yaml "$1"
}
submit() { # name, arguments of sbatch..., -- , of the script
    local dir=$1 args=()
    shift
    while [ "${1:-}" != -- ] && [ $# -gt 0 ]; do args+=("$1") && shift; done
    [ $# = 0 ] || shift
    job=$(sbatch --parsable --chdir="$PWD/$dir" --output="$PWD/$dir/out" -N2 --ntasks-per-node=2 "${args[@]}" \
        "$TOP/slurm/${script:-train.sbatch}" run.yaml "$@")
}
said() { scontrol -o show job "$job" | sed -n "1s/.* $1=\([^ ]*\).*/\1/p"; }
state() { said JobState; }
steps() { [ -e "$1/metrics.jsonl" ] && wc -l <"$1/metrics.jsonl" || echo 0; }
at_step() { # name, step: waits until the run is there
    local i
    for i in $(seq 1200); do
        [ "$(steps "$1")" -lt "$2" ] || return 0
        sleep 0.1
    done
    return 1
}
ends() { # name: waits for the job's end; its output becomes err
    local i
    for i in $(seq 3000); do
        case $(state) in COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL) break ;; esac
        sleep 0.1
    done
    cp "$1/out" err
}
as_if_nothing() { # name, text
    ends "$1"
    [ "$(state)" = COMPLETED ] && cmp -s <(losses calm) <(losses "$1")
    ok $? "$2: resumed, bit-equal"
}

# The job's ranks on this machine, which may run other clusters with jobs of the same number.
is_rank() { # /proc/PID
    [ "$(cat "$1/comm" 2>/dev/null)" = fsdp-launch ] && grep -z -q -x "SLURM_JOB_ID=$job" "$1/environ" 2>/dev/null &&
        grep -z -q -x "SLURM_CONF=$SLURM_CONF" "$1/environ" 2>/dev/null
}
ranks() { # the pids of all
    local p
    for p in /proc/[0-9]*; do
        is_rank "$p" && echo "${p#/proc/}"
    done
}
rank_pid() { # rank: by its place among all, rank 0 is first
    local p
    for p in /proc/[0-9]*; do
        is_rank "$p" && grep -z -q -x "SLURM_PROCID=$1" "$p/environ" 2>/dev/null && echo "${p#/proc/}" && return
    done
}
