#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Text for a model with a tokenizer: it is tokenized once, for all ranks, nodes and runs; what is in the
# cache depends on what is in the files; damage and settings that do not fit are named.
# run: timeout=300
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"

# ---- a model with a tokenizer of 110 tokens ------------------------------------------------------

make_input 600
vocab() { # the printable characters of ASCII, space and line feed as ByteLevel spells them, then merges and the end
    perl -e 'my $i = 0; my @v = map { my $c = chr; $c =~ s/(["\\])/\\$1/; "\"$c\": " . $i++ } 33 .. 126;
        push @v, map { "\"$_\": " . $i++ } ("\\u0120", "\\u010a", "\\u0120t", "he", "\\u0120the", "li", "ne", "line", "xt", "ext", "<|end|>");
        print join ", ", @v'
}
tokenizer() { # further fields
    cat <<END
{"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
 "added_tokens": [{"id": 104, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
 "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
 "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
  "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": {$(vocab)},
  "merges": [["\u0120", "t"], ["h", "e"], ["\u0120t", "he"], ["l", "i"], ["n", "e"], ["li", "ne"], ["x", "t"], ["e", "xt"]]}}
END
}
sed -i 's/"vocab_size": *[0-9]*/"vocab_size": 110, "eos_token_id": 104/' model/config.json
tokenizer >model/tokenizer.json
echo '{"eos_token": "<|end|>"}' >model/tokenizer_config.json
echo "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|end|>{% endfor %}" >model/chat_template.jinja
export XDG_CACHE_HOME=$PWD/home
for i in $(seq 40); do
    echo "{\"text\": \"line $i of the text\"}"
    echo "{\"prompt\": \"what is $i * $i? \", \"completion\": \"it is $((i * i))\"}"
    echo "{\"messages\": [{\"role\": \"user\", \"content\": \"say $i\"}, {\"role\": \"assistant\", \"content\": \"$i\"}]}"
    echo "{\"input_ids\": [1, 2, 3, $i]}"
done >mixed.jsonl
cat >run.yaml <<'END'
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 3, global_batch_size: 4}
optim: {lr: 1.0e-3, schedule: constant}
log: {progress: plain}
END
entries() { find "${1:-home/fsdp}" -mindepth 1 -maxdepth 1 -name '????????????????' 2>/dev/null | wc -l; }

# ---- once ----------------------------------------------------------------------------------------

run -n 4 --nodes 2 run.yaml log.metrics=a.jsonl
ok $? "four ranks on two nodes read text by the model's tokenizer"
ok "$([ "$(grep -c 'tokenizing text with model/tokenizer.json' log)" = 1 ] && [ "$(entries)" = 1 ]; echo $?)" "which makes tokens of it once"
ok "$(ls home/fsdp/*/ | grep -q '^tokens.u16$' && ls home/fsdp/*/ | grep -q '^tokens.u16.index$'; echo $?)" "in the cache"
run run.yaml log.metrics=b.jsonl
ok "$([ $? = 0 ] && ! holds log tokenizing && cmp -s <(numbers a.jsonl | sed 's/"grad_norm".*//;s/\(loss": [0-9.]\{6\}\)[0-9]*/\1/') <(numbers b.jsonl | sed 's/"grad_norm".*//;s/\(loss": [0-9.]\{6\}\)[0-9]*/\1/'); echo $?)" \
    "another run has the same rows, and tokenizes nothing"
sleep 2.1
touch text
run run.yaml
ok "$([ $? = 0 ] && ! holds log tokenizing; echo $?)" "nor where a file is touched alone"
ok "$(! holds err 'plain text'; echo $?)" "text is no documents"
cp text list.jsonl && run -n 2 run.yaml data.path=list.jsonl
ok "$([ $? = 0 ] && [ "$(grep -c 'warning: data: list.jsonl is read as plain text.*data.format: jsonl' err)" = 1 ]; echo $?)" "a file of documents that is read as text is named, once"
cp text same && run run.yaml data.path=same
ok "$([ $? = 0 ] && ! holds log tokenizing && [ "$(entries)" = 1 ]; echo $?)" "nor where its name is another"
sed -i 's/line 7 /line 8 /' text && run run.yaml
ok "$([ $? = 0 ] && holds log tokenizing && [ "$(entries)" = 2 ]; echo $?)" "a changed file becomes tokens anew"
for setting in data.special=none 'data.document_end=5' 'data.tokenizer=other'; do
    cp -r model/. other && sed -i 's/"lstrip": false/"lstrip": true/' other/tokenizer.json
    before=$(entries)
    run run.yaml "$setting"
    ok "$([ $? = 0 ] && holds log tokenizing && [ "$(entries)" = $((before + 1)) ]; echo $?)" "so it does with $setting"
done
run run.yaml data.cache=elsewhere/deep
ok "$([ $? = 0 ] && [ "$(entries elsewhere/deep)" = 1 ]; echo $?)" "data.cache is another folder"
for i in 1 2 3; do "$BIN/fsdp-launch" -n 2 run.yaml data.cache=race >race.$i 2>&1 & done
wait
ok "$([ "$(cat race.? | grep -c '^done:')" = 3 ] && [ "$(entries race)" = 1 ] && ! ls race | grep -q tmp; echo $?)" "three jobs may use one cache at once"
run run.yaml data.cache=damaged
truncate -s -2 damaged/????????????????/tokens.u16
run run.yaml data.cache=damaged
ok "$([ $? != 0 ] && grep -q "it is truncated; remove its folder, and the text is tokenized again" err; echo $?)" "an entry that is damaged is named, and what to do"
rm damaged/????????????????/tokens.u16.index
run run.yaml data.cache=damaged
ok "$([ $? != 0 ] && grep -q "damaged/[0-9a-f]* is there and has no tokens.u16.index; remove the folder" err; echo $?)" "so is one that has lost its index"
rm -r damaged/????????????????
run run.yaml data.cache=damaged
ok $? "without it, it is made again"
mkdir old.tmp && mkdir -p race/0123456789abcdef.tmp.host.1 && touch race/0123456789abcdef.tmp.host.1/tokens.u16.part
touch -d '9 days ago' race/0123456789abcdef.tmp.host.1
mkdir race/0123456789abcdee.tmp.host.2
run run.yaml data.cache=race data.special=model
ok "$([ ! -e race/0123456789abcdef.tmp.host.1 ] && [ -e race/0123456789abcdee.tmp.host.2 ]; echo $?)" "what was left nine days ago is removed, what is young is not"

# ---- what a file became --------------------------------------------------------------------------

number() { od -An -v -t u2 -w2 "$1" | tr -d ' '; } # the ids of a file
printf 'the line, the text' >short
run run.yaml data.path=short data.cache=short.d data.seq_len=2 train.global_batch_size=1
file=$(echo short.d/????????????????/tokens.u16)
ok "$([ "$(number "$file" | tr '\n' ' ')" = "83 97 94 101 11 98 96 103 104 " ] || { number "$file" | tr '\n' ' '; false; } >&2; echo $?)" "these ids, and the end"
rm -rf short.d
run run.yaml data.path=short data.cache=short.d data.seq_len=2 train.global_batch_size=1 data.special=none
ok "$([ "$(number short.d/????????????????/tokens.u16 | wc -l)" = 8 ]; echo $?)" "without the end by data.special"

for _ in $(seq 4000); do cat text; done >long 2>/dev/null
"$BIN/fsdp-launch" -n 2 run.yaml data.path=long data.cache=stopped >log 2>err &
job=$!
wait_for log tokenizing
sleep 0.5
kill -TERM $job
wait $job
ok "$([ $? = 75 ] && [ "$(grep -c 'stopped on request while tokenizing' err)" = 1 ] && ! ls stopped | grep -q tmp; echo $?)" \
    "a signal stops a run while text becomes tokens, and leaves nothing"
rm long

# ---- JSON Lines ----------------------------------------------------------------------------------

run -n 2 run.yaml data.path=mixed.jsonl data.format=jsonl log.metrics=m.jsonl data.eval_path=mixed.jsonl
ok $? "texts, completions, chats and ids in one file"
ok "$(grep -q '"eval_loss": [0-9.]*, "eval_nats_per_byte": [0-9.]*, "eval_bits_per_byte": [0-9.]*' m.jsonl; echo $?)" "held-out losses per byte, too"
for _ in 1 2 3 4; do echo '{"input_ids": [1, 2, 3], "labels": [-100, -100, -100]}'; done >ignored.jsonl
run -n 2 run.yaml data.path=mixed.jsonl data.format=jsonl data.eval_path=ignored.jsonl
ok "$([ $? = 0 ] && [ "$(grep -c 'no token of the held-out rows counts' err)" = 1 ]; echo $?)" "held-out rows of which nothing counts are no loss of 0 in silence"
counted() { sed -n 's/.*"counted_tokens": \([0-9]*\).*/\1/p' "$1" | awk '{ n += $1 } END { print n + 0 }'; }
few=$(counted m.jsonl)
run run.yaml data.path=mixed.jsonl data.format=jsonl data.train_on=all log.metrics=all.jsonl
ok "$([ "$(counted all.jsonl)" -gt "$few" ]; echo $?)" "data.train_on=all learns more of a chat"
refused() { # text, what, arguments...
    local text=$1 what=$2
    shift 2
    run "$@"
    [ $? = 2 ] && holds err "$text"
    ok $? "$what"
}
cp mixed.jsonl bad.jsonl
echo '{"content": "x"}' >>bad.jsonl
run -n 2 run.yaml data.path=bad.jsonl data.format=jsonl
ok "$([ $? != 0 ] && [ "$(grep -c "bad.jsonl:161:1: needs text, prompt + completion, messages, or input_ids; found 'content'" err)" = 1 ]; echo $?)" \
    "a bad line is named, once"
ok "$(! ls home/fsdp | grep -q tmp; echo $?)" "and nothing is left of the work"
echo '{"prompt": [{"role": "user"}], "completion": "x"}' >turns.jsonl
run run.yaml data.path=turns.jsonl data.format=jsonl
ok "$([ $? != 0 ] && holds err "'prompt' is a list, and needs to be a text (turns of a chat go into messages)"; echo $?)" \
    "so is a field of another type"
run run.yaml data.path=bad.jsonl data.format=jsonl data.on_bad_line=skip
ok "$([ $? = 0 ] && holds err 'bad.jsonl: 1 of 161 lines are left out'; echo $?)" "or left out, and counted"
run run.yaml data.path=mixed.jsonl data.format=jsonl data.seq_len=4 data.too_long=refuse
ok "$([ $? != 0 ] && grep -q 'mixed.jsonl: document 1: a document of [0-9]* tokens, and a row has 5' err; echo $?)" \
    "too long a document, with data.too_long=refuse"
mv model/chat_template.jinja .
run run.yaml data.path=mixed.jsonl data.format=jsonl
ok "$([ $? != 0 ] && holds err "mixed.jsonl:3:14: messages need a chat template, and the model's folder has none"; echo $?)" "chats without a template"
mv chat_template.jinja model/
printf 'ab\xffcd' >invalid
run run.yaml data.path=invalid
ok "$([ $? != 0 ] && grep -q 'invalid: .*byte 2\|invalid: byte 2' err; echo $?)" "text that is not UTF-8 is named with its byte"

# ---- a mixture, and resuming ---------------------------------------------------------------------

cat >mix.yaml <<'END'
model: {path: model, init: random, seed: 1}
data:
  seq_len: 32
  sources:
    - {path: text, weight: 2}
    - {path: mixed.jsonl, format: jsonl, weight: 1}
train: {steps: 6, global_batch_size: 6}
optim: {lr: 1.0e-3, schedule: constant}
checkpoint: {path: whole}
log: {metrics: whole.jsonl, progress: plain}
END
run -n 2 mix.yaml
ok $? "text and JSON Lines in a mixture"
run -n 2 mix.yaml checkpoint.path=parts log.metrics=parts.jsonl checkpoint.interval=3
rm -r parts/step-00000006
run -n 3 mix.yaml checkpoint.path=parts log.metrics=parts.jsonl
ok "$([ $? = 0 ] && holds log 'resumes from parts/step-00000003'; echo $?)" "it resumes on three ranks"
rows() { sed -n 's/.*"step": \([0-9]*\).*"rows_by_source": \(\[[^]]*\]\).*/\1 \2/p' "$1"; }
loss() { sed -n 's/.*"loss": \([0-9.]\{6\}\).*/\1/p' "$1"; }
ok "$([ -n "$(rows whole.jsonl)" ] && cmp -s <(rows whole.jsonl) <(rows parts.jsonl) && cmp -s <(loss whole.jsonl) <(loss parts.jsonl); echo $?)" \
    "with the same rows"
sed -i 's/line 9 /line 99 /' text
run mix.yaml checkpoint.path=parts train.steps=8
ok "$([ $? != 0 ] && grep -q 'checkpoint.data_position' err; echo $?)" "and not with other data"

rm -rf parts && cp mixed.jsonl chats.jsonl
run mix.yaml checkpoint.path=parts data.sources[1].path=chats.jsonl
run mix.yaml checkpoint.path=parts train.steps=8 data.sources[1].path=chats.jsonl data.train_on=all
ok "$([ $? != 0 ] && grep -q 'checkpoint.data_position' err; echo $?)" "nor with other tokens learned"

# ---- what is wrong with the cache ----------------------------------------------------------------

run run.yaml data.cache=hurt
truncate -s -2 hurt/????????????????/tokens.u16
run run.yaml data.cache=hurt
ok "$([ $? != 0 ] && grep -q 'hurt/[0-9a-f]*/tokens.u16' err; echo $?)" "a truncated entry is named"
rm -r hurt && run run.yaml data.cache=hurt
printf 'x' | dd of="$(echo hurt/????????????????/tokens.u16)" conv=notrunc status=none
run run.yaml data.cache=hurt
ok "$([ $? != 0 ] && grep -q 'hurt/[0-9a-f]*/tokens.u16.* is damaged.*remove its folder' err; echo $?)" "and one that changed"
echo >file
run run.yaml data.cache=file/x
ok "$([ $? != 0 ] && holds err "data.cache: cannot create the folder 'file/x'"; echo $?)" "a cache that is no folder"
run env -u HOME -u XDG_CACHE_HOME "$BIN/fsdp-launch" run.yaml 2>/dev/null
env -u HOME -u XDG_CACHE_HOME "$BIN/fsdp-launch" run.yaml >log 2>err
ok "$([ $? != 0 ] && holds err 'set data.cache to a folder'; echo $?)" "nowhere to put it"
refused "'2026-02-30' is not a day" "a day that there is not" run.yaml data.date=2026-02-30
refused "nowhere" "a tokenizer that is not there" run.yaml data.tokenizer=nowhere

# ---- token files ---------------------------------------------------------------------------------

run run.yaml data.cache=kept
cp kept/????????????????/tokens.u16 own.u16 && cp kept/????????????????/tokens.u16.index own.u16.index
run run.yaml log.metrics=x.jsonl && run run.yaml data.path=own.u16 data.format=u16 log.metrics=y.jsonl
ok "$([ $? = 0 ] && cmp -s <(numbers x.jsonl) <(numbers y.jsonl); echo $?)" "a token file with an index gives the same rows as its text"
run run.yaml data.path=own.u16 data.format=u16 data.tokenizer=other
ok "$([ $? != 0 ] && holds err 'own.u16: its tokens were made with another tokenizer'; echo $?)" "of another tokenizer it is refused"
run run.yaml data.path=own.u16 data.format=u32
ok $((!$?)) "and as tokens of another width"

# ---- pairs ---------------------------------------------------------------------------------------

run run.yaml checkpoint.path=begun train.steps=1 && "$BIN/ckpt-merge" -q begun -o begun/model >log 2>err && cp model/*token* model/*.jinja begun/model/
turn() { echo "{\"role\": \"$1\", \"content\": \"$2\"}"; }
for i in 1 2 3 4; do
    echo "{\"prompt\": [$(turn user "say $i")], \"chosen\": [$(turn assistant "$i")], \"rejected\": [$(turn assistant "not $i")]}"
done >chats.jsonl
sed 's/"prompt": \[\(.*\)\], "chosen": \[\(.*\)\], "rejected": \[/"chosen": [\1, \2], "rejected": [\1, /' chats.jsonl >implicit.jsonl
# As the template renders them: <user>say 1<|end|><assistant>1<|end|>
sed -E 's/.*say ([0-9]).*/{"prompt": "<user>say \1<|end|>", "chosen": "<assistant>\1", "rejected": "<assistant>not \1"}/' chats.jsonl >texts.jsonl
for name in chats implicit texts; do
    run run.yaml model.path=begun/model model.init=pretrained data.path=$name.jsonl data.format=jsonl train.objective=dpo log.metrics=$name.m
    ok $? "pairs of $name, by the model's tokenizer"
done
ok "$(cmp -s <(numbers chats.m) <(numbers implicit.m); echo $?)" "a prompt may be part of both answers"
ok "$([ "$(grep -c '"loss": 0.69314' chats.m)" = 1 ] && ! cmp -s <(numbers chats.m) <(numbers texts.m); echo $?)" "a chat's answer does not include what the template adds"

echo "1..$n"
exit $bad
