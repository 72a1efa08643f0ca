#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Submit, kill at a seeded moment, resume on another number of ranks, CYCLES times (5): after each kill
# what is published verifies; at the end the losses are as near those of undisturbed runs as these are
# to each other, and nothing is left. CYCLE_SEED (1) chooses them; CYCLE_TABLE=FILE gets the
# table of docs/results/cycles.md.
# run: timeout=3600
. "$TOP/tests/slurm/lib/cluster.sh"
. "$TOP/tests/slurm/lib/jobs.sh"
cycles=${CYCLES:-5} seed=${CYCLE_SEED:-1}
echo "# CYCLE_SEED=$seed"
RANDOM=$((seed % 32768))
cat >run.yaml <<END
model: {path: $TOP/examples/llama-tiny, init: random}
data: {path: $TOP/README.md, seq_len: 32}
train: {steps: 1000000, global_batch_size: 12}
optim: {schedule: constant}
checkpoint: {path: ck, interval: 10, keep: 2, fsync: false}
log: {metrics: metrics.jsonl, interval: 1000}
END
cat >job.sh <<'END'
#!/bin/bash
. "$FSDP_ENV"
fsdp_srun fsdp-launch run.yaml
END
start() { # folder, ranks: 3 and 4 on two nodes
    job=$(sbatch --parsable --no-requeue --open-mode=append --chdir="$PWD/$1" --output="$PWD/$1/out" \
        -N $(($2 > 2 ? 2 : 1)) -n "$2" job.sh)
}
# The three ways to die; each returns once the job has ended.
kill_rank() { kill -KILL "$victim"; }
kill_all() { scancel --signal=KILL "$job"; }
kill_job() { scancel "$job"; }
ways=(kill_rank kill_all kill_job)
declare -A count
fresh struck
whole=0 left=0 missed=0
for ((i = 1; i <= cycles; i++)); do
    ranks=$((1 + RANDOM % 4)) way=${ways[RANDOM % 3]} moment=$(($(steps struck) + 3 + RANDOM % 25))
    start struck $ranks
    [ $((RANDOM % 5)) != 0 ] || moment=0 # while it starts
    victim=$((RANDOM % ranks))
    for t in $(seq 3000); do pid=$(rank_pid $victim) && [ -n "$pid" ] && break || sleep 0.02; done
    victim=$pid
    at_step struck $moment
    sleep 0.0$((RANDOM % 10))
    $way 2>>err
    ends struck
    count[$way]=$((${count[$way]:-0} + 1)) count[$ranks]=$((${count[$ranks]:-0} + 1))
    [ "$(state)" != COMPLETED ] || missed=$((missed + 1))
    for t in $(seq 100); do [ -n "$(ranks)" ] && sleep 0.1 || break; done
    [ -z "$(ranks)" ] || left=$((left + 1))
    for step in $(compgen -G 'struck/ck/step-????????'); do
        "$BIN/ckpt-verify" --quiet "$step" >>log 2>>err && whole=$((whole + 1)) || {
            echo "# cycle $i, $way of $ranks ranks at step $moment: $step is not whole"
            bad=1
        }
    done
done
[ $missed = 0 ]
ok $? "$cycles jobs were struck while they ran ($missed were not)"
[ $left = 0 ]
ok $? "no rank outlived its job"
[ $bad = 0 ] && [ $whole -gt 0 ]
ok $? "every published checkpoint verified, $whole times"
# It, and those that nothing happens to, end a little later.
nsteps=$(($(steps struck) + 20))
sed -i "s/steps: 1000000/steps: $nsteps/" run.yaml struck/run.yaml
start struck 4
ends struck
[ "$(state)" = COMPLETED ] && [ "$(steps struck)" = $nsteps ] && ! compgen -G "struck/ck/*.tmp*" >noise && [ -z "$(ranks)" ]
ok $? "the last one comes to the end, and leaves nothing behind"
for ranks in 1 2 3 4; do
    fresh "calm$ranks"
    start "calm$ranks" $ranks
    ends "calm$ranks"
    [ "$(state)" = COMPLETED ] && [ "$(steps "calm$ranks")" = $nsteps ]
    ok $? "undisturbed, $ranks ranks"
done
# Spread of the undisturbed: the largest there is, and not less than what rounding makes of any sum.
paste -d' ' <(losses calm1) <(losses calm2) <(losses calm3) <(losses calm4) <(losses struck) | awk '
    { lo = hi = $2; for (i = 4; i <= 8; i += 2) { if ($i < lo) lo = $i; if ($i > hi) hi = $i } }
    { if (hi - lo > spread) spread = hi - lo; off = $10 - (lo + hi) / 2; if (off < 0) off = -off }
    { if (off > most) most = off }
    $1 != $9 { bad = 1 }
    END { if (spread < 1e-5) spread = 1e-5; printf "%.2f %.2g\n", most / spread, spread; exit bad || most > 3 * spread }' >spread
ok $? "its losses stay within 3 spreads of undisturbed runs"
read -r most spread <spread
echo "# at most $most of the spread away; the spread is up to $spread"
[ -z "${CYCLE_TABLE:-}" ] || cat >"$CYCLE_TABLE" <<END
| cycles | a rank killed | all killed | \`scancel\` | on 1, 2, 3, 4 ranks | checkpoints verified | farthest from undisturbed runs, in their spread |
| --- | --- | --- | --- | --- | --- | --- |
| $cycles | ${count[kill_rank]:-0} | ${count[kill_all]:-0} | ${count[kill_job]:-0} | ${count[1]:-0}, ${count[2]:-0}, ${count[3]:-0}, ${count[4]:-0} | $whole of $whole | $most (limit 3) |
END
echo "1..$n"
exit $bad
