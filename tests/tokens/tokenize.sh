#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fsdp-tokenize: every kind of input, the same bytes from any number of threads and after any number of kills,
# what is refused, and what is there afterwards.
# run: long
# run: timeout=300
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/disk.sh"
data=$TOP/tests/tokens/data
tokenize=$BIN/fsdp-tokenize
make() { # arguments
    "$tokenize" --tokenizer "$data/bytes.json" --special model "$@" >log 2>err
}
same() { # two token files
    cmp -s "$1" "$2" && cmp -s "$1.index" "$2.index" && { [ ! -e "$2.learned" ] || cmp -s "$1.learned" "$2.learned"; }
}
refused() { # text, what the error must name; the last command's status is $?
    local rc=$?
    { [ $rc = 1 ] && grep -q -F -- "$2" err; }
    ok $? "$1"
}

# ---- inputs --------------------------------------------------------------------------------------

mkdir -p texts/deep
cp "$TOP/docs/data.md" texts/a.md
cp "$TOP/docs/gpu.md" texts/deep/b.md
: >texts/deep/empty.txt
make texts -o texts.u16 && [ "$("$tokenize" --info texts.u16 --verify | awk '/^documents/ { print $2 }')" = 3 ]
ok $? "a folder of texts"
make 'texts/*.md' texts/deep/*.md texts/deep/empty.txt -o pattern.u16 && same texts.u16 pattern.u16
ok $? "a pattern and files"
gzip -k texts/a.md && gzip -k texts/deep/b.md
make texts/a.md.gz texts/deep/b.md.gz texts/deep/empty.txt -o packed.u16 && same texts.u16 packed.u16
ok $? "packed files have the bytes, and the hash, of what they hold"
make - -o pipe.u16 < <(cat texts/a.md) && make texts/a.md -o file.u16 && same file.u16 pipe.u16
ok $? "standard input"
make - -o closed.u16 <&-
{ [ $? = 1 ] && grep -q 'standard input' err && [ ! -e closed.u16 ]; }
ok $? "which is refused where it is closed, and no file is read in its place"
"$tokenize" --decode texts.u16 --tokenizer "$data/bytes.json" --document 1 >got 2>err
{ printf '<|begin|>' && cat texts/deep/b.md; } | cmp -s - got
ok $? "a document's text"
"$tokenize" --decode texts.u16 --tokenizer "$data/bytes.json" --tokens 0:1 >got 2>err && [ "$(cat got)" = '<|begin|>' ]
ok $? "the text of some tokens"
make texts/a.md -o bytes.u32 --tokenizer bytes && "$tokenize" --decode bytes.u32 | cmp -s - texts/a.md
ok $? "bytes are tokens of 32 bits, too"

mkdir chat && cp "$data/bytes.json" chat/tokenizer.json
cat >chat/tokenizer_config.json <<'END'
{"eos_token": "<|end|>", "chat_template": "{% for m in messages %}<|begin|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"}
END
cat >chats.jsonl <<'END'
{"messages": [{"role": "user", "content": "two and two?"}, {"role": "assistant", "content": "four"}]}
{"prompt": "one ", "completion": "two"}
END
"$tokenize" chats.jsonl -o chats.u16 --tokenizer chat >log 2>err && "$tokenize" --info chats.u16 --verify >got &&
    grep -q '^learned tokens' got && [ -s chats.u16.learned ]
ok $? "chats, and which of their tokens are learned"
cp -r chat ends && echo '{"vocab_size": 512, "eos_token_id": [7, 8]}' >ends/config.json
echo '{"text": "two"}' >two.jsonl
"$tokenize" two.jsonl -o ends.u16 --tokenizer ends >log 2>err && [ "$(tail -c 2 ends.u16 | od -An -tu2 | tr -d ' ')" = 7 ]
ok $? "the end token of the folder's config.json, as in a run"
for config in '{"eos_token_id": 9, "text_config": {"vocab_size": 512, "eos_token_id": 8}}' '{"text_config": {"vocab_size": 512, "eos_token_id": 9}}'; do
    echo "$config" >ends/config.json
    "$tokenize" two.jsonl -o ends.u16 --tokenizer ends --overwrite >log 2>err && [ "$(tail -c 2 ends.u16 | od -An -tu2 | tr -d ' ')" = 9 ]
    ok $? "of the whole model, or of its text: $config"
done
echo '{"eos_token_id": "x"}' >ends/config.json
"$tokenize" two.jsonl -o ends.u16 --tokenizer ends --overwrite >log 2>err
ok "$([ $? = 1 ] && grep -q 'ends/config.json.*eos_token_id' err; echo $?)" "one that is no number is refused: $(head -n 1 err)"
"$tokenize" --decode chats.u16 --tokenizer chat >got 2>err &&
    [ "$(cat got)" = '<|begin|>user: two and two?<|end|><|begin|>assistant: four<|end|><|begin|>one two<|end|>' ]
ok $? "by the model's own template"
"$tokenize" chats.jsonl -o all.u16 --tokenizer chat --train-on all >log 2>err && cmp -s chats.u16 all.u16 && ! cmp -s chats.u16.learned all.u16.learned
ok $? "--train-on changes what is learned, not the tokens"

echo '{"messages": [{"role": "user", "content": "which?"}, {"role": "asistant", "content": "four"}]}' >typo.jsonl
"$tokenize" typo.jsonl -o typo.u16 --tokenizer chat >log 2>err && grep -q ' 1 document, .* 0.0% learned' err &&
    grep -q 'warning: no token counts in the loss.*role "assistant"' err
ok $? "a warning where no token is learned"

# Generation tokenizes the prompt alone: a token that is half prompt, half answer never follows it there.
mkdir crossed && cp chat/tokenizer.json crossed && echo '{"eos_token": "<|end|>"}' >crossed/tokenizer_config.json
crossed() { # the end of the generation prompt, the beginning of an answer
    echo "{% for m in messages %}{{ m.role }}:{% generation %}$2{{ m.content }}<|end|>{% endgeneration %}{% endfor %}{% if add_generation_prompt %}assistant:$1{% endif %}" >crossed/chat_template.jinja
    "$tokenize" chats.jsonl pairs.jsonl -o crossed.u16 --tokenizer crossed --overwrite >log 2>err
}
for _ in 1 2 3; do echo '{"messages": [{"role": "user", "content": "which?"}, {"role": "assistant", "content": "the file"}]}'; done >chats.jsonl
echo '{"prompt": "which? ", "completion": "the file"}' >pairs.jsonl
crossed ' ' ' '
ok "$([ $? = 0 ] && [ "$(grep -c 'in 3 of 3 chats (the first: chats.jsonl:1) a token begins in the generation prompt of crossed/chat_template.jinja' err)" = 1 ]; echo $?)" \
    "a warning counts the chats in which a token crosses the end of the generation prompt, and names the template"
ok "$(grep -q 'in 1 of 1 documents (the first: pairs.jsonl:1) a token begins in the prompt and ends in the completion' err; echo $?)" \
    "and the completions after a space"
echo '{"prompt": "which?", "completion": " the file"}' >pairs.jsonl
crossed '' ' '
ok "$([ $? = 0 ] && ! grep -q warning err; echo $?)" "an answer that begins with the space is none of them"

echo '{"messages": [{"from": "human", "value": "which?"}]}' >other.jsonl
"$tokenize" other.jsonl -o other.u16 --tokenizer crossed >log 2>err
ok "$([ $? = 1 ] && grep -q "other.jsonl:1:14: message 1 has no role; found 'from', 'value' (a message is" err; echo $?)" \
    "a message of another form is refused with its keys and the right form"

mkdir own && cp texts/a.md own && make own -o own/out.u16 && make own -o own/out.u16 --overwrite && same file.u16 own/out.u16
ok $? "an output in the folder of the inputs is none of them"

# ---- kills ---------------------------------------------------------------------------------------

# Lines, a long text, and packed lines.
awk 'BEGIN { srand(7); for (i = 0; i < 60000; i++) { printf "{\"text\": \"line %d", i; n = rand() * 40; for (k = 0; k < n; k++) printf " %d the token %s", rand() * 1000, k % 7 ? "files" : "of"; print "\"}" } }' >many.jsonl
for i in 1 2 3 4 5 6 7 8 9 10; do cat "$TOP"/docs/*.md; done >long.txt
gzip -c many.jsonl >packed.jsonl.gz
inputs=(many.jsonl long.txt packed.jsonl.gz)
make "${inputs[@]}" -o whole.u16
ok $? "lines, a long text, packed lines"
for threads in 1 2 5; do
    make "${inputs[@]}" -o threads.u16 --threads $threads --overwrite && same whole.u16 threads.u16
    ok $? "the same bytes from $threads threads"
done

# Kills the command after a while, each time a quarter later, until it is done.
killed() { # output, inputs
    local out=$1 kills=0 after=2
    shift
    while :; do
        "$tokenize" "$@" -o "$out" --threads 2 --tokenizer "$data/bytes.json" --special model >log 2>err &
        local pid=$!
        sleep "$(awk -v a=$after 'BEGIN { print a / 10 }')"
        after=$((after + 2 + after / 4))
        kill -KILL $pid 2>/dev/null && kills=$((kills + 1))
        { wait $pid 2>/dev/null || [ -e "$out" ]; } && break # it is there at once, and whole
        [ $after -lt 400 ] || return 1
    done
    echo $kills
}
killed killed.u16 "${inputs[@]}" >kills && same whole.u16 killed.u16 && [ "$(cat kills)" -gt 0 ]
ok $? "the same bytes after kills ($(cat kills))"
[ "$(echo killed.u16*)" = "killed.u16 killed.u16.index" ]
ok $? "nothing else is left"

# ---- a signal ------------------------------------------------------------------------------------

mkfifo pipe
reads_pipe() { # arguments
    exec "$tokenize" --tokenizer "$data/bytes.json" --special model --threads 1 "$@" <pipe >log 2>err
}
signalled() { # signal, status
    reads_pipe - -o stopped.u16 &
    local pid=$!
    exec 9>pipe
    head -c 8000000 many.jsonl >&9
    sleep 0.3
    kill -"$1" $pid
    cat long.txt >&9
    exec 9>&-
    wait $pid
    [ $? = "$2" ]
}
signalled TERM 143 && [ -e stopped.u16.part.journal ] && grep -q 'stopped by a signal; the same command continues behind' err
ok $? "SIGTERM: what is done is kept, and the command says how to continue"
signalled INT 130 && [ -e stopped.u16.part.journal ]
ok $? "SIGINT, too"
{ head -c 8000000 many.jsonl && cat long.txt; } >piped
make - -o stopped.u16 <piped && grep -q 'continues behind' err && make piped --format text -o piped.u16 && cmp -s stopped.u16 piped.u16
ok $? "the same bytes on standard input continue it"

# ---- what is refused -----------------------------------------------------------------------------

make texts -o texts.u16
refused "what is there is not replaced" "'texts.u16' already exists"
make texts/a.md -o texts.u16 --overwrite && same file.u16 texts.u16
ok $? "but with --overwrite"
make texts -o nowhere/x.u16
refused "a folder that is not there" "nowhere/x.u16"
cp long.txt own.u16
make own.u16 -o own.u16 --overwrite
refused "an output that is an input" "'own.u16' is read, and the output is to be written there"
cmp -s own.u16 long.txt
ok $? "which stays as it was"
make texts -o outside.u16 && make texts -o texts/in.u16 && make texts -o texts/in.u16 --overwrite && same outside.u16 texts/in.u16
ok $? "an output in a folder that is read is no input"
make texts -o other.u16
refused "but another output there is none either" "texts/in.u16 was made by fsdp-tokenize and holds no text"
make texts/in.u16.index -o other.u16
refused "nor is its index" "texts/in.u16.index was made by fsdp-tokenize"
rm texts/in.u16*
echo precious >target && ln -s ../target texts/link.u16.part && ln -s ../target texts/link.u16
make texts/a.md -o texts/link.u16 --overwrite && [ "$(cat target)" = precious ] && [ ! -L texts/link.u16 ] && cmp -s texts/link.u16 file.u16
ok $? "nothing is written through a link"
rm -f texts/link.u16* && ln -s ../target texts/link.u16.part.journal
make texts/a.md -o texts/link.u16
refused "nor through one in the journal's place" "link.u16.part.journal"
[ "$(cat target)" = precious ]
ok $? "whose target stays as it was"
rm texts/link.u16.part.journal

printf 'right\n\377\n' >bad.txt
make bad.txt -o bad.u16
refused "a byte that is not UTF-8" "bad.txt: byte 6, 0xff, is not valid UTF-8"
[ ! -e bad.u16.part ] && [ ! -e bad.u16.part.journal ]
ok $? "leaves nothing"
printf '{"text": "a"}\n{"content": 1}\n' >bad.jsonl
make bad.jsonl -o bad.u16
refused "a line that is no document" "bad.jsonl:2:1: needs text"
make bad.jsonl -o bad.u16 --on-bad-line skip && grep -q '1 lines left out' err
ok $? "is left out with --on-bad-line skip"
printf '\357\273\277{"text": "a"}\r\n{"text": "b"}\r\n' >mark.jsonl && printf '{"text": "a"}\n{"text": "b"}\n' >plain.jsonl
make mark.jsonl -o mark.u16 && make plain.jsonl -o plain.u16 && cmp -s mark.u16 plain.u16
ok $? "a byte order mark and the line ends of other systems are no part of JSON Lines"
echo rows >table.parquet
make table.parquet -o table.u16
refused "Parquet, with the line that converts it" "python3 -c"
make texts/a.md -o x.bin
[ $? = 2 ] && grep -q 'must end with .u16 or .u32' err
ok $? "another name of the output is refused"
"$tokenize" texts/a.md -o x.u16 >log 2>err
[ $? = 2 ] && grep -q -- 'give the tokenizer: --tokenizer MODEL' err
ok $? "no tokenizer"
"$tokenize" --info chats.jsonl >log 2>err
refused "what is no token file is not shown" "cannot open 'chats.jsonl.index': No such file or directory; a token file is read here as fsdp-tokenize made it"
"$tokenize" --decode texts.u16 >log 2>err
refused "the text needs the tokenizer" "give it with --tokenizer"
"$tokenize" --decode texts.u16 --tokenizer "$data/unigram.json" >log 2>err
refused "and not another one" "was made with another tokenizer"

# A journal of another command.
reads_pipe - -o other.u16 &
pid=$!
exec 9>pipe
head -c 8000000 many.jsonl >&9
sleep 0.3
make texts/a.md -o other.u16
refused "two at once: the second" "'other.u16' is being made by another process"
kill -TERM $pid
cat long.txt >&9
exec 9>&-
wait $pid
make - -o other.u16 --special none <many.jsonl
refused "a journal of another command" "it has 'special model', and this one 'special none'"
printf 'another text\n' | make - -o other.u16
refused "the journal's input must be the same" "standard input: its first"
make texts/a.md -o other.u16
refused "and from the same file" "it has 'source text -'"
make texts/a.md -o other.u16 --overwrite && same file.u16 other.u16
ok $? "--overwrite begins anew"

# A source that changes while another is read.
printf 'one\ntwo\n' >early.txt
reads_pipe early.txt - -o early.u16 &
pid=$!
exec 9>pipe
cat long.txt >&9
sleep 0.3
printf 'one\n' >early.txt
exec 9>&-
wait $pid
refused "what changes while it is read" "early.txt was changed or removed while it was read"
[ ! -e early.u16 ]
ok $? "becomes no token file"

# A source that changed.
cp many.jsonl changing.jsonl
reads_pipe changing.jsonl - -o changed.u16 --format jsonl &
pid=$!
exec 9>pipe
sleep 2.5
kill -TERM $pid
cat many.jsonl >&9
exec 9>&-
wait $pid
echo '{"text": "more"}' >>changing.jsonl
make changing.jsonl - -o changed.u16 --format jsonl </dev/null
refused "a source that has changed" "it has 'source jsonl"

for part in texts.u16 texts.u16.index; do
    cp $part saved
    printf '\377' | dd of=$part bs=1 seek=60 conv=notrunc status=none
    "$tokenize" --info texts.u16 --verify >log 2>err
    refused "damage of $part" "'$part' is damaged"
    cp saved $part
done

# ---- a vocabulary --------------------------------------------------------------------------------

"$tokenize" long.txt many.jsonl -o voc --train 700 --threads 1 >log 2>err && [ -s voc/tokenizer.json ]
ok $? "a vocabulary is made"
"$tokenize" long.txt many.jsonl -o voc3 --train 700 --threads 3 >log 2>err && cmp -s voc/tokenizer.json voc3/tokenizer.json
ok $? "the same from three threads"
"$tokenize" texts -o made.u16 --tokenizer voc >log 2>err && "$tokenize" --decode made.u16 --tokenizer voc --document 0 >got &&
    { cat texts/a.md && printf '<|endoftext|>'; } | cmp -s - got
ok $? "text becomes its tokens and text again"
"$tokenize" long.txt -o voc --train 500 >log 2>err
refused "a vocabulary that is there is not replaced" "'voc/tokenizer.json' already exists"
"$tokenize" long.txt -o voc --train 500 --overwrite --pattern llama3 --special-token '<a>' --special-token '<b>' >log 2>err &&
    ! cmp -s voc/tokenizer.json voc3/tokenizer.json && grep -q '<b>' voc/tokenizer.json
ok $? "but with --overwrite, by another pattern, with other special tokens"
"$tokenize" bad.jsonl -o voc2 --train 500 >log 2>err
refused "a line that is no document" "bad.jsonl:2:1: needs text"
"$tokenize" bad.txt -o voc2 --train 500 >log 2>err
refused "text that is not UTF-8" "bad.txt:2:"
[ ! -e voc2 ]
ok $? "make no folder"

# ---- a terminal ----------------------------------------------------------------------------------

if command -v script >log; then
    script -qfec "'$tokenize' long.txt many.jsonl packed.jsonl.gz -o screen.u16 --tokenizer '$data/bytes.json' --special model" screen </dev/null >log 2>&1
    tr '\r' '\n' <screen | grep -q -E '^ *[0-9]+%  [0-9.]+ MB/s  .* documents  .* tokens  [0-9:]+ left *$'
    ok $? "on a terminal, how far it is"
    tr '\r' '\n' <screen | awk 'length > 79 && !/^fsdp-tokenize: screen.u16/ && !/^Script/ { bad = 1 } END { exit bad }'
    ok $? "in lines of 79 columns"
else
    for i in 1 2; do n=$((n + 1)) && echo "ok $n # skip script (bsdutils) is not here"; done
fi

# ---- a full disk ---------------------------------------------------------------------------------

mkdir full
why=$(why_no_disk)
if [ -z "$why" ]; then
    mount -t tmpfs -o size=300k none full
    make many.jsonl -o full/x.u16
    refused "a full disk" "cannot write 'full/x.u16"
    mount -o remount,size=100m full && make many.jsonl -o full/x.u16 && make many.jsonl -o room.u16 && same full/x.u16 room.u16
    ok $? "with room, the same command makes it"
    umount full
else
    for i in 1 2; do n=$((n + 1)) && echo "ok $n # SKIP $why"; done
fi

echo "1..$n"
exit $bad
