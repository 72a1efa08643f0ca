#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run: timeout=1500
# SIGKILL at seeded moments of a save, a merge and a reshard, one to three times in a row: what is
# published verifies, and the same command completes and equals the undisturbed output. A moment is
# a call to the store, writes torn in the middle; KILLS of them (20), from KILL_SEED (1).
# KILL_TABLE=FILE gets the table of docs/results/kills.md.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
kills=${KILLS:-20} seed=${KILL_SEED:-1}
echo "# KILL_SEED=$seed"
RANDOM=$((seed % 32768))

make_input
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 3, global_batch_size: 6, seed: 2}
optim: {lr: 3.0e-3, schedule: constant}
fsdp: {timeout: 60}
checkpoint: {path: saved, interval: 1, fsync: false}
log: {metrics: ''}
END

# Each subject: its command, its output, and whether two outputs are equal.
save() { "$BIN/fsdp-launch" -n 2 run.yaml checkpoint.path="$1" checkpoint.async="$async"; }
merge() { "$BIN/ckpt-merge" source -o "$1" --max-shard-size 200K --mem 1M --threads 2 --quiet; }
reshard() { "$BIN/ckpt-reshard" source -o "$1" --world 3 --mem 1M --threads 2 --quiet; }
merge_same() { diff -r "$1" "$2" >&2; }
reshard_same() {
    diff -r -x manifest.json "$1" "$2" >&2 && cmp <(prints "$1") <(prints "$2") >&2 &&
        "$BIN/ckpt-verify" "$2" >/dev/null
}
save_same() {
    for step in 1 2 3; do
        cmp <(prints "$1/step-0000000$step") <(prints "$2/step-0000000$step") >&2 || return 1
    done
}
# What a user may find after a kill must be whole.
save_whole() {
    for step in "$1"/step-????????; do
        [ ! -d "$step" ] || "$BIN/ckpt-verify" "$step" >/dev/null || return 1
    done
}
merge_whole() { [ ! -e "$1" ] || merge_same undisturbed-merge "$1"; }
reshard_whole() { [ ! -e "$1" ] || reshard_same undisturbed-reshard "$1"; }

async=false
for subject in save merge reshard; do
    $subject undisturbed-$subject >log 2>err
    ok $? "an undisturbed $subject"
    [ $subject != save ] || cp -r undisturbed-save/step-00000003 source
done

# One subject, killed at a moment in 1..most; a moment that did not come narrows the range.
declare -A most=([save]=400 [merge]=200 [reshard]=400) nkilled npublished
strike() { # subject
    local subject=$1 at times=$((1 + RANDOM % 3)) i killed=0
    rm -rf out out.tmp.*
    async=$([ $((RANDOM % 2)) = 0 ] && echo true || echo false)
    for ((i = 0; i < times; i++)); do
        at=$((1 + (RANDOM * 32768 + RANDOM) % most[$subject]))
        if CKPT_FAULT=kill:$at $subject out >log 2>err; then
            most[$subject]=$((at > 20 ? at - 1 : most[$subject]))
            [ $killed = 0 ] && rm -rf out out.tmp.* && i=-1
            continue
        fi
        killed=$((killed + 1))
        "${subject}_whole" out || { echo "# call $at of $subject: what is published is not whole"; return 1; }
    done
    nkilled[$subject]=$((${nkilled[$subject]:-0} + killed))
    [ ! -e out ] || npublished[$subject]=$((${npublished[$subject]:-0} + 1))
    # Killed after its very last step, there is nothing left to do.
    if [ -e out ] && [ $subject != save ] && ! ls -d out.tmp.* >/dev/null 2>&1; then
        :
    elif ! $subject out >log 2>err; then
        echo "# call $at of $subject: the same command does not complete"
        return 1
    fi
    "${subject}_same" undisturbed-$subject out || { echo "# call $at of $subject: not equal"; return 1; }
    leftover=$(ls -d out.tmp.* 2>/dev/null)
    [ -z "$leftover" ] || { echo "# call $at of $subject: left over: $leftover"; return 1; }
}

declare -A rounds good
for ((round = 0; round < kills; round++)); do
    set -- merge reshard save
    subject=${*:1 + round % 3:1}
    rounds[$subject]=$((${rounds[$subject]:-0} + 1))
    strike $subject 2>why && good[$subject]=$((${good[$subject]:-0} + 1)) || sed 's/^/# /' why
done
{
    echo "| | rounds | kills | published when last killed | whole after each kill, completed, equal |"
    echo "| --- | --- | --- | --- | --- |"
    for subject in save merge reshard; do
        echo "| $subject | ${rounds[$subject]:-0} | ${nkilled[$subject]:-0} |" \
            "$([ $subject = save ] && echo - || echo "${npublished[$subject]:-0}") | ${good[$subject]:-0} |"
    done
} >"${KILL_TABLE:-table}"
sed 's/^/# /' "${KILL_TABLE:-table}"
# Each of the last steps of a merge: it is published, or being so, and only cleans up.
last=0 wrong=
for ((at = most[merge] + 8; last < 12; at--)); do
    rm -rf out out.tmp.*
    { CKPT_FAULT=kill:$at merge out >log 2>err && continue; } 2>noise
    last=$((last + 1))
    if [ -e out ] && ! compgen -G 'out.tmp.*' >noise; then continue; fi
    merge out >log 2>err && merge_same undisturbed-merge out && ! compgen -G 'out.tmp.*' >noise || wrong+=" $at"
done
ok "$([ -z "$wrong" ]; echo $?)" "killed at each of its last 12 steps, a merge completes (not: $wrong)"
for subject in save merge reshard; do
    ok "$([ "${rounds[$subject]:-0}" = "${good[$subject]:-0}" ] && [ "${nkilled[$subject]:-0}" -gt 0 ]; echo $?)" \
        "$subject: ${good[$subject]:-0} of ${rounds[$subject]:-0} rounds of kills end well (KILL_SEED=$seed)"
done
echo "1..$n"
exit $bad
