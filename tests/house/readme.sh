#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What README.md says to type works: its run.yaml (made shorter) and, in order, its commands.
cd "$TEST_TMP" || exit 1
mkdir build
ln -s "$BIN" build/bin
ln -s "$TOP/examples" "$TOP/docs" "$TOP/README.md" .
n=0 bad=0

shorter() {
    sed -e 's/steps: 200/steps: 4/' -e 's/steps: 20$/steps: 1/' -e 's/interval: 50/interval: 2/' \
        -e 's/seq_len: 256/seq_len: 64/' -e 's/step-00000200/step-00000004/' -e 's/train.steps=300/train.steps=6/' README.md
}
shorter | awk '/^    # run.yaml/ { on = 1 } on && /^$/ { exit } on { print substr($0, 5) }' >run.yaml
commands=$(shorter | sed -n 's/^    \(build\/bin\/.*\)/\1/p')

while IFS= read -r command; do
    n=$((n + 1))
    # Each on a fresh set of checkpoints, except those that use what is there.
    case $command in *" -n 2 run.yaml" | *HYBRID_SHARD*) rm -rf checkpoints ;; esac
    if bash -c "$command" </dev/null >log 2>&1; then
        echo "ok $n - $command"
    else
        echo "not ok $n - $command"
        tail -n 10 log | sed 's/^/# /'
        bad=1
    fi
done <<<"$commands"

n=$((n + 1))
if [ $n -ge 9 ] && [ -s checkpoints/step-00000004/manifest.json ] && [ -s merged/config.json ]; then
    echo "ok $n - they left a checkpoint and a model"
else
    echo "not ok $n - they left a checkpoint and a model"
    bad=1
fi
echo "1..$n"
exit $bad
