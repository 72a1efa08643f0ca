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
for i in $(seq 200); do echo "{\"prompt\": \"what is $i? \", \"completion\": \"it is $i\"}"; done >prompts.jsonl
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
perl -e 'srand 3; print pack("v*", map { int rand 256 } 1 .. 300000)' >ids.u16
put ids.u16 ids/ids.u16 >log 2>err && run run.yaml data.path=ids.u16 data.format=u16 && numbers m.jsonl >want &&
    run run.yaml data.path="$at/ids" data.format=u16 data.remote_cache=1 && cmp -s <(numbers m.jsonl) want
ok $? "token ids, read where they lie into a bounded cache"
mkdir chats && "$BIN/fsdp-tokenize" prompts.jsonl --tokenizer bytes -o chats/tokens.u16 >log 2>err
ok $? "prompts become a token file"
for name in "" .index .learned; do put "chats/tokens.u16$name" "chats/c.u16$name"; done >log 2>err
run run.yaml data.path=chats/tokens.u16 data.format=u16 && numbers m.jsonl >want &&
    run run.yaml data.path="$at/chats" data.format=u16 && cmp -s <(numbers m.jsonl) want
ok $? "a token file with its index and what is learned"
ok "$(! ls -d "${TMPDIR:-/tmp}"/fsdp-index-* 2>/dev/null | grep -q .; echo $?)" "no copies are left"
head -c 100 chats/tokens.u16.index >short && put short chats/c.u16.index >log 2>&1
run run.yaml data.path="$at/chats" data.format=u16
ok "$([ $? != 0 ] && holds err "$at/chats/c.u16"; echo $?)" "a damaged index is named by its address"
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
