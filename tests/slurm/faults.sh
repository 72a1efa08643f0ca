#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What clusters do to jobs, on nodes with networks of their own: each job of slurm/train.sbatch continues
# by itself after its fault, leaves nothing behind, and ends with the losses of a run that nothing
# happened to, to the last digit. FAULT_TABLE=FILE gets the rows of docs/results/faults.md; FAULTS='cut
# stop' chooses some.
# run: timeout=2400
if [ "$(id -u)" != 0 ] || ! ip link add fsprobe type bridge 2>/dev/null; then
    echo "1..0 # SKIP no network namespaces here"
    exit 0
fi
ip link del fsprobe
export MODE=net NODES=4
. "$TOP/tests/slurm/lib/cluster.sh"
. "$TOP/tests/slurm/lib/jobs.sh"
faults=${FAULTS:-requeue signal limit kill stop down slurmd power cut late name}
cat >run.yaml <<END
model: {path: $TOP/examples/llama-tiny, init: random}
data: {path: [$TOP/README.md, $TOP/docs], seq_len: 64}
train: {steps: 400, global_batch_size: 8}
optim: {schedule: constant}
fsdp: {sharding_strategy: HYBRID_SHARD, hang_timeout: 8}
checkpoint: {path: ck, interval: 50}
log: {metrics: metrics.jsonl, interval: 100}
END
# In the second of three lives: a task that does not start, or sees another name of the first node.
cat >unwell.sh <<'END'
#!/bin/sh
[ "${SLURM_RESTART_COUNT:-0}" = 1 ] || exec "$@"
case $UNWELL in
late) [ "$SLURM_PROCID" != 3 ] || exec sleep 600 ;;
name)
    unset SLURM_LAUNCH_NODE_IPADDR
    [ "$SLURM_PROCID" = 0 ] || export SLURM_STEP_NODELIST=nowhere.invalid
    ;;
esac
exec "$@"
END
chmod +x unwell.sh
await() { # seconds, command...
    local i
    for i in $(seq $((10 * $1))); do
        "${@:2}" && return
        sleep 0.1
    done
    return 1
}
again() { [ "$(state)" = RUNNING ] && [ "$(said Restarts)" -gt "$1" ]; }
begun() { [ -n "$(ranks)" ]; }
gone() { # pids: one that is stopped may wait for its end
    local p
    for p in $1; do
        [[ $(sed 's/.*) //;s/ .*//' "/proc/$p/stat" 2>/dev/null || echo Z) == [ZT] ]] || return 1
    done
}
since() { awk -v a="$1" -v b="$(date +%s.%N)" 'BEGIN { printf "%.0f", b - a }'; }

declare -A texts
# What follows the name strikes its job, which runs. Leaves the seconds until the ranks that ran then have
# ended and until the job runs again, and in NAME/words what its user saw in between.
strike() { # name, command...
    local name=$1 begin before nlines nrestarts # nlines: or the caller's $from
    shift
    before=$(ranks)
    nrestarts=$(said Restarts)
    nlines=${from:-$(wc -l <"$name/out")}
    begin=$(date +%s.%N)
    "$@"
    await 300 gone "$before"
    ended=$(since "$begin")
    ${after:-:}
    await 300 again "$nrestarts"
    resumed=$(since "$begin")
    tail -n +$((nlines + 1)) "$name/out" | sed '/^environment$/,$d;/^step \|^saved \|^slurmstepd\|^srun: [gfJF]/d' | awk '!seen[$0]++' >"$name/words"
}
row() { # name, what happened
    local words
    ends "$1"
    [ "$(state)" = COMPLETED ]
    ok $? "$2: continues by itself"
    texts[$1]=$2
    [ -z "$(ranks)" ] && ! compgen -G "$1/ck/*.tmp.*" >noise && "$BIN/ckpt-verify" "$(compgen -G "$1/ck/step-*" | sort | tail -n 1)" >log 2>err
    ok $? "$2: nothing is left behind"
    echo "# ranks ended after $ended s, running again after $resumed s"
    sed 's/^/#     /' "$1/words"
    [ -n "${FAULT_TABLE:-}" ] || return 0
    words=$(sed 's/|/\\|/g;s/.*/`&`/' "$1/words" | sed ':a;N;$!ba;s/\n/<br>/g')
    echo "| $2 | $ended | $resumed | $words |" >>"$FAULT_TABLE"
}
node() { said NodeList | sed 's/n\[\([0-9]\)[-,]\([0-9]\)\]/n\1 n\2/' | cut -d' ' -f"$1"; } # of the job

at_requeue() {
    strike requeue scontrol requeue "$job"
    row requeue '`scontrol requeue`'
}
at_signal() {
    strike signal scancel --signal=USR1 "$job"
    row signal '`scancel --signal=USR1`'
}
# Slurm looks at limits every half minute, and at nodes as rarely, so how far these jobs come is not
# known: they learn their last step when their ranks have ended.
last_step() { sed -i "s/steps: [0-9]*/steps: $(($(steps "$fault") + 50))/" "$fault/run.yaml"; }
at_limit() {
    after=last_step strike limit true
    row limit 'the time limit, with `--signal=USR1@45`'
}
at_kill() {
    strike kill kill -KILL "$(rank_pid 3)"
    grep -q "rank 3 on $second is lost" kill/words
    ok $? "the lost rank is named"
    row kill "SIGKILL of a rank"
}
at_stop() {
    strike stop kill -STOP "$(rank_pid 3)"
    grep -q "no sign of life .*rank 3 on $second" stop/words
    ok $? "the stopped rank is named"
    row stop "SIGSTOP of a rank"
}
at_down() {
    strike down scontrol update nodename="$second" state=down reason=test
    row down '`scontrol update state=down` of a node'
    scontrol update nodename="$second" state=resume 2>noise # it may have come back by itself
}
at_slurmd() {
    after=last_step strike slurmd kill -KILL "$(cat "slurm/pids/slurmd.$second")"
    row slurmd "SIGKILL of a node's slurmd, not of its ranks"
    cluster start "$second"
}
at_power() {
    strike power cluster kill "$second"
    row power "power cut: SIGKILL of all that runs on a node"
    cluster start "$second"
}
at_cut() {
    strike cut cluster cut "$second"
    grep -q "no sign of life .* on $second" cut/words
    ok $? "what is behind it is named"
    row cut "the link of a node cut"
    cluster fix "$second"
}
unwell() { # name: queued again, cannot start then, and is queued again
    local from
    from=$(wc -l <"$1/out") # what it says may come before anybody looks
    scontrol requeue "$job"
    await 300 again 0
    await 60 begun
    strike "$1" true
    sed -i '/^stopped on request/d;/was ended from outside/d;/exit code 75$/d' "$1/words" # the first life's
}
at_late() {
    unwell late
    grep -q "for rank 3 on n. (never connected)" late/words && grep -q "queueing job $job again" late/words
    ok $? "the rank is named"
    row late "a rank that never starts"
}
at_name() {
    unwell name
    grep -q "nowhere.invalid, does not resolve here" name/words
    ok $? "the name is said"
    row name "a name that does not resolve"
}

for fault in $faults; do
    unset FSDP_RUN FSDP_MPI
    args=()
    case $fault in
    late | name)
        export UNWELL=$fault FSDP_RUN=$PWD/unwell.sh FSDP_MPI=none
        args=(-- --timeout 15)
        ;;
    esac
    fresh "$fault"
    case $fault in limit | slurmd) sed -i 's/steps: 400/steps: 100000/' "$fault/run.yaml" ;; esac
    [ "$fault" != limit ] || args=(-t 1 --signal=USR1@45 -- checkpoint.before_end=0)
    submit "$fault" "${args[@]}"
    at_step "$fault" 70
    second=$(node 2)
    at_$fault
    echo "# $fault: $SECONDS s"
done

# Nothing happens to this one, which is as long as the longest.
fresh calm
for fault in "${!texts[@]}"; do steps "$fault"; done | sort -n | sed -n '$s/.*/s,steps: 400,steps: &,/p' >longest
sed -i -f longest calm/run.yaml
submit calm
ends calm
for fault in "${!texts[@]}"; do
    cmp -s <(losses calm | head -n "$(steps "$fault")") <(losses "$fault")
    ok $? "${texts[$fault]}: bit-equal"
done
echo "1..$n"
exit $bad
