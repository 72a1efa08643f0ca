#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Training data in a store: the rows of the same files in a folder, packed ones too; what is not there is named.
# run: timeout=300
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
at=$S3_TEST_URL/data-$$
put() { # file, name below $at
    "$S3_PYTHON" -m awscli s3 cp "$1" "$at/$2"
}

make_input 3000
mkdir folder folder/deep && head -c 60000 text >folder/a.txt && tail -c +60001 text >folder/deep/b.txt
echo '{"text": "one line of text, and some more of it"}' | tee lines.jsonl | gzip >lines.jsonl.gz
cat >run.yaml <<'END'
model: {path: model, init: random, seed: 1}
data: {path: folder, seq_len: 32}
train: {steps: 4, global_batch_size: 6, seed: 2, threads: 1}
optim: {lr: 3.0e-3, schedule: constant}
log: {metrics: m.jsonl}
END
{ put folder/a.txt folder/a.txt && put folder/deep/b.txt folder/deep/b.txt && put lines.jsonl.gz lines.jsonl.gz; } >log 2>err
ok $? "files are put into the store"
run run.yaml && numbers m.jsonl >want
ok $? "a run on a folder"
run -n 2 run.yaml data.path="$at/folder"
sed -E 's/.*"loss": ([^,]*),.*/\1/' m.jsonl want | awk '{ x[NR] = $1 } END { for (i = 1; i <= 4; i++) { d = x[i] - x[i + 4]; bad += !(d * d < 1e-10) } exit NR != 8 || bad }'
ok $? "two ranks on the same files in a store have its losses"
run run.yaml data.path="$at/folder" && cmp -s <(numbers m.jsonl) want
ok $? "one rank, bit for bit"
run run.yaml data.path=lines.jsonl data.format=jsonl && numbers m.jsonl >want &&
    run run.yaml data.path="$at/lines.jsonl.gz" data.format=jsonl && cmp -s <(numbers m.jsonl) want
ok $? "a packed file of lines"
run run.yaml "data.path=$at/nothere"
ok "$([ $? != 0 ] && holds err "$at/nothere" && holds err 'data.path'; echo $?)" "what is not there is named"
run run.yaml "data.path=$at/*.gz"
ok "$([ $? = 2 ] && holds err 'addresses have no patterns here'; echo $?)" "a pattern is refused"
run run.yaml "data.path=$at/folder" data.format=llmc
ok "$([ $? != 0 ] && holds err 'copy it first'; echo $?)" "and a format that is read in place"
AWS_SECRET_ACCESS_KEY=wrong run run.yaml "data.path=$at/folder"
ok "$([ $? != 0 ] && holds err 'data.path' && ! grep -q -w wrong err; echo $?)" "a wrong secret"
run run.yaml data.path=azure://b/folder
ok "$([ $? != 0 ] && holds err 'azure'; echo $?)" "an unknown scheme"

echo "1..$n"
exit $bad
