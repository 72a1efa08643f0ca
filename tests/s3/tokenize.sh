#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fsdp-tokenize on files in a store: the bytes of the same files in a folder, after a kill, too; what is not there is named.
# run: timeout=300
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
at=$S3_TEST_URL/tokenize-$$
put() { # file, name below $at
    "$S3_PYTHON" -m awscli s3 cp --quiet "$1" "$at/$2"
}
make() { # arguments
    "$BIN/fsdp-tokenize" --tokenizer "$TOP/tests/tokens/data/bytes.json" --special model "$@" >log 2>err
}
same() { # two token files
    cmp -s "$1" "$2" && cmp -s "$1.index" "$2.index"
}

mkdir -p folder/deep && cp "$TOP/docs/data.md" folder/a.txt
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do cat "$TOP"/docs/*.md; done >folder/deep/b.txt
for i in $(seq 20000); do echo "{\"text\": \"line $i of the file\"}"; done | gzip >folder/lines.jsonl.gz
{ put folder/a.txt f/a.txt && put folder/deep/b.txt f/deep/b.txt && put folder/lines.jsonl.gz f/lines.jsonl.gz; } >log 2>err
ok $? "files are put into the store"
make folder -o here.u16 && make "$at/f" -o there.u16 && same here.u16 there.u16
ok $? "a folder of a store has the bytes of one here"
kills=0
for after in 3 6 9 12 15 18 21 24 27 30 100 300; do
    "$BIN/fsdp-tokenize" "$at/f" -o killed.u16 --threads 1 --tokenizer "$TOP/tests/tokens/data/bytes.json" --special model >log 2>err &
    pid=$!
    sleep "$(awk -v a=$after 'BEGIN { print a / 10 }')"
    kill -KILL $pid 2>/dev/null && kills=$((kills + 1))
    wait $pid 2>/dev/null && break
done
same here.u16 killed.u16
ok $? "also after $kills kills"
make "$at/nothere" -o x.u16
ok "$([ $? = 1 ] && grep -q -F "$at/nothere" err; echo $?)" "what is not there is named"
make "$at/*.gz" -o x.u16
ok "$([ $? = 1 ] && grep -q 'addresses have no patterns here' err; echo $?)" "a pattern is refused"

echo "1..$n"
exit $bad
