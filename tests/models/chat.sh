#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fsdp-generate --chat as a user calls it: turns, templates, files of chats, and what it refuses.
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
gen() { "$BIN/fsdp-generate" --device cpu "$@" 2>err; }
TINY=$TOP/tests/data/llama-tiny
refused() { # what it must say, exit code, arguments...
    local says=$1 code=$2
    shift 2
    gen "$@" >stdout </dev/null
    ok "$([ $? = "$code" ] && [[ $(cat err) == *"$says"* ]] && [ ! -s stdout ]; echo $?)" "refused: $(head -n 1 err)"
}

# ---- a model that chats --------------------------------------------------------------------------

# Its tokens are two that mark turns and 254 characters, none of which JSON has to escape, so that
# an answer is as it is in a file of chats, and becomes the same tokens when it is read again.
mkdir model
cp "$TINY/model.safetensors" model/
sed 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 4000/' "$TINY/config.json" >model/config.json
tokenizer() { # post-processor
    awk -v post="$1" 'BEGIN {
        head = "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": ["
        for (i = 0; i < 2; i++)
            head = head (i ? ", " : "") "{\"id\": " i ", \"content\": \"<|" (i ? "end" : "turn") "|>\", \"special\": true, " \
                "\"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false}"
        print head "], \"normalizer\": null, \"pre_tokenizer\": null, \"post_processor\": " post ", \"decoder\": {\"type\": \"Fuse\"},"
        print "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null,"
        print "\"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": false, \"merges\": [],"
        printf "\"vocab\": {\"<|turn|>\": 0, \"<|end|>\": 1"
        for (code = 32; id < 253; code = code == 126 ? 945 : code + 1)
            if (code != 34 && code != 92)
                printf ", \"\\u%04x\": %d", code, ++id + 1
        print "}}}"
    }'
}
tokenizer null >model/tokenizer.json
echo '{"eos_token": "<|end|>", "model_max_length": 1000000000000000019884624838656}' >model/tokenizer_config.json
cat >model/chat_template.jinja <<'END'
{%- if show_date is defined and show_date %}{{ strftime_now("%d %b %Y") }}{% endif -%}
{%- for tool in tools or [] %}{{ tool.name }};{% endfor -%}
{%- for message in messages -%}
    {%- if loop.previtem is defined and loop.previtem.role == message.role %}{{ raise_exception("two turns of one role") }}{% endif -%}
    {{- '<|turn|>' + message.role + ':' + message.content + eos_token -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|turn|>' + (mode or '') + 'assistant:' }}{% endif -%}
END
tokens() { sed -n 's/^fsdp-generate: prompt: \([0-9]*\) tokens.*/\1/p' err; }
say=(--model model --greedy --max-tokens 30 --ignore-eos)

# ---- one turn ------------------------------------------------------------------------------------

gen "${say[@]}" --chat --prompt hello >one
ok $? "a question and its answer"
before='<|turn|>user:hello<|end|><|turn|>assistant:'
gen "${say[@]}" --prompt "$before" | cmp -s - <(printf %s "$before" && cat one)
ok $? "the answer alone is printed, and follows the template's text: $(cat one)"
[ "$(wc -m <one)" = 31 ] && [ "$(fold -w 1 <one | sort -u | wc -l)" -gt 5 ]
ok $? "it has 30 characters, of many kinds"
gen "${say[@]}" --chat --prompt hello --logits >logits && [ "$(wc -l <logits)" = 23 ]
ok $? "--logits sees the template's 23 tokens"
cp -r model adds
tokenizer '{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}], "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [1], "tokens": ["<|end|>"]}}}' >adds/tokenizer.json
gen --model adds --prompt hello --greedy --max-tokens 1 >out && [ "$(tokens)" = 6 ] &&
    gen "${say[@]}" --model adds --chat --prompt hello | cmp -s - one && [ "$(tokens)" = 23 ]
ok $? "special tokens that a tokenizer adds to a prompt are not added to a chat"
gen "${say[@]}" --chat --prompt hello --system "be brief" >system && ! cmp -s one system && [ "$(tokens)" = 40 ]
ok $? "--system comes first"
gen "${say[@]}" --chat --prompt hello --max-tokens 7 >out && grep -q "stopped after 7 tokens (--max-tokens)" err
ok $? "where an answer is cut, that is told"

# ---- a conversation ------------------------------------------------------------------------------

printf 'hello\r\n\n  \nwhy?\nand then' | gen "${say[@]}" --chat -v >talk
ok $? "three turns from a pipe"
[ "$(wc -l <talk)" = 3 ] && head -n 1 talk | cmp -s - one && [ "$(sort -u talk | wc -l)" = 3 ]
ok $? "a line of answer each, the first as before"
history=
for question in hello why? "and then"; do
    [ "$history" ] && history+=", {\"role\": \"assistant\", \"content\": \"$answer\"}, "
    history+="{\"role\": \"user\", \"content\": \"$question\"}"
    echo "{\"messages\": [$history]}"
    answer=$(sed -n "$(grep -o '"user"' <<<"$history" | wc -l)p" talk)
done >chats.jsonl
grep -v ">" err >told
# The last token of the answer, which ended at 30 tokens, was not read then.
[ "$(tokens | head -n 3 | paste -s -d ' ')" = "23 $((1 + 1 + 22)) $((1 + 1 + 26))" ]
ok $? "of the second and third turn, what is new was read: $(tokens | paste -s -d ' ')"
completions() { sed 's/.*"completion":"\([^"]*\)".*/\1/' "$@"; }
gen "${say[@]}" --prompts chats.jsonl >chats.out && completions chats.out | cmp -s - talk
ok $? "the same chats from a file get the same answers"
printf 'hello\nwhy?\n' | gen "${say[@]}" --chat --system "be brief" >talk2 && head -n 1 talk2 | cmp -s - system
ok $? "a conversation with a system message"
printf 'a\na\n' | gen --model model --chat --max-tokens 20 --ignore-eos --seed 4 >out &&
    printf 'a\na\n' | gen --model model --chat --max-tokens 20 --ignore-eos --seed 4 | cmp -s - out &&
    gen --model model --chat --max-tokens 20 --ignore-eos --seed 4 --prompt a | cmp -s - <(head -n 1 out) &&
    printf 'a\na\n' | gen --model model --chat --max-tokens 20 --ignore-eos --seed 5 >other && ! cmp -s out other
ok $? "drawn answers depend on the seed alone"
printf 'hello\nwhy?\n' | gen "${say[@]}" --chat --max-tokens 1500 -v >out &&
    [ "$(tokens | head -n 2 | paste -s -d ' ')" = "23 1546" ] && grep -q "for 1 x 2048 tokens" err && grep -q "for 1 x 4000 tokens" err
ok $? "where its memory is too small it is made larger, and all is read again: $(tokens | paste -s -d ' ')"
# The ninth character of the answer, its id, and what comes before its first occurrence.
read -r char id end < <("${PYTHON:-python3}" -X utf8 -c 'import json
text, vocab = open("one").read(), json.load(open("model/tokenizer.json"))["model"]["vocab"]
print(text[8], vocab[text[8]], text.split(text[8])[0])')
cp -r model stops
echo "{\"eos_token_id\": [1, $id]}" >stops/generation_config.json
[ "$(gen --model stops --greedy --chat --prompt hello)" = "$end" ]
ok $? "it stops at an end token of generation_config.json: $end"
rm stops/generation_config.json
sed -i 's/"eos_token_id": [^,}]*/"eos_token_id": null/' stops/config.json
echo "{\"eos_token\": \"$char\"}" >stops/tokenizer_config.json
sed -i "s/eos_token/'<|end|>'/" stops/chat_template.jinja
[ "$(gen --model stops --greedy --chat --prompt hello)" = "$end" ]
ok $? "or at the tokenizer's, where the model names none"

# ---- a terminal ----------------------------------------------------------------------------------

cp -r model long
sed -i 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 100000/' long/config.json
mkfifo keys
waits() { # command
    for ((i = 0; i < 600; i++)); do
        "$@" && return
        sleep 0.1
    done
    return 1
}
seen() { waits shows "$@"; } # what, at least how often
shows() { [ "$(grep -ao -- "$1" screen | wc -l)" -ge "$2" ]; }
# A mark also follows a Ctrl-C in its line, where the answer had no text yet.
marks() { seen '\(^\|\^C\)> ' "$1"; } # how many
# The program's processor time, in ticks.
ticks() {
    local p=$pid child
    while read -r child _ <"/proc/$p/task/$p/children" && [ -n "$child" ]; do
        p=$child
    done
    awk '{ print $14 + $15 }' "/proc/$p/stat"
}
busier() { [ "$(ticks)" -gt "$1" ]; }
works() { waits busier $(($(ticks) + 10)); } # it waits for no key: an answer is being made
grows() { waits longer $(($(wc -c <screen) + 1000)); }
longer() { [ "$(wc -c <screen)" -gt "$1" ]; }
terminal() { # model, arguments; keys come by fd 3
    : >screen
    script -qfec "$BIN/fsdp-generate --device cpu --greedy --model $*" screen <keys >/dev/null 2>&1 &
    pid=$!
    exec 3>keys
}
ended() {
    wait $pid
    code=$?
    exec 3>&-
}
terminal long --chat --max-tokens 30
seen '^> ' 1 && echo hello >&3 && seen "$(cat one)" 1 && seen '^> ' 2 && printf '\004' >&3
ended
[ $code = 0 ] && grep -q "$(cat one)" screen
ok $? "at a terminal: a mark before each question; Ctrl-D ends, with status $code"
# (What the model answers after an answer that was cut anywhere may be tokens without text.)
terminal long --chat --max-tokens 90000 --ignore-eos
seen '^> ' 1 && echo hello >&3 && grows && printf '\003' >&3 && marks 2 &&
    echo why >&3 && seen '> why' 1 && works && printf '\003' >&3 && marks 3 && printf '\004' >&3
ended
[ $code = 0 ]
ok $? "Ctrl-C stops an answer, and the conversation continues; status $code"
# A terminal that shows nothing: the answer's write waits while the interrupt comes.
"${PYTHON:-python3}" - "$BIN/fsdp-generate" <<'END'
import os, pty, sys, time
pid, fd = pty.fork()
if not pid:
    os.execv(sys.argv[1], [sys.argv[1], *"--device cpu --greedy --model long --chat --max-tokens 90000 --ignore-eos".split()])
def until(mark):
    text = b""
    while mark not in text:
        text += os.read(fd, 65536)
def ticks():
    with open(f"/proc/{pid}/stat") as f:
        return sum(int(n) for n in f.read().rsplit(")", 1)[1].split()[11:13])
until(b"> ")
os.write(fd, b"hello\n")
before, same = ticks(), 0
while same < 5:
    time.sleep(0.1)
    now = ticks()
    same = same + 1 if now == before else 0
    before = now
os.write(fd, b"\3")
until(b"\n> ")
os.write(fd, b"\4")
while True:
    try:
        if not os.read(fd, 65536):
            break
    except OSError:
        break
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
END
code=$?
[ $code = 0 ]
ok $? "and one whose text the terminal does not take; status $code"
terminal long --chat
seen '^> ' 1 && printf '\003' >&3
ended
[ $code = 130 ]
ok $? "Ctrl-C at the mark ends with status $code"

cp -r model short
cp "$TINY/config.json" short/
printf 'hello\na\n' | gen --model short --chat --greedy --max-tokens 3 --ignore-eos >talk3
terminal short --chat --max-tokens 3 --ignore-eos
seen '^> ' 1 && echo hello >&3 && seen '^> ' 2 && printf '%s\n' {a..z}{0..2} | paste -s -d '' >&3 && seen "begin a new one" 1 &&
    seen '^> ' 3 && echo a >&3 && seen '^> ' 4 && printf '\004' >&3
ended
[ $code = 0 ] && [ "$(wc -l <talk3)" = 2 ] && [ "$(tr -d '\r' <screen | grep -cxF -f talk3)" = 2 ] && [ "$(grep -c "^fsdp-generate: stopped after 3 tokens" screen)" = 2 ]
ok $? "a question too long for the model is forgotten, and the conversation continues; status $code"

# ---- a template's variables ----------------------------------------------------------------------

gen "${say[@]}" --chat --prompt hello --template-var mode=low >out && [ "$(tokens)" = 26 ] &&
    gen "${say[@]}" --chat --prompt hello --template-var 'tools=[{"name": "f"}]' >out && [ "$(tokens)" = 25 ]
ok $? "--template-var sets a text or JSON"
gen "${say[@]}" --chat --prompt hello --template-var show_date=false >out && [ "$(tokens)" = 23 ] &&
    gen "${say[@]}" --chat --prompt hello --template-var show_date=true --date 2026-01-31 >out && [ "$(tokens)" = 34 ] &&
    gen "${say[@]}" --prompt "31 Jan 2026$before" >more && grep -qF "$(cat out)" more
ok $? "--date is the date that the template sees"
gen "${say[@]}" --chat --prompt hello --template-var moed=low >out && grep -q "warning: the chat template has no variable 'moed'" err
ok $? "a variable that the template lacks: $(head -n 1 err)"

# ---- files of chats ------------------------------------------------------------------------------

cat >mixed.jsonl <<'END'
{"id": 1, "messages": [{"role": "user", "content": "hello"}]}
{"id": 2, "prompt": "hello"}
{"id": 3, "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]}
{"id": 4, "messages": [{"role": "user", "content": "hello"}], "tools": [{"name": "f"}], "max_tokens": 5}
{"id": 5, "tokens": [5, 6, 7]}
END
gen "${say[@]}" --prompts mixed.jsonl >mixed && [ "$(wc -l <mixed)" = 5 ] &&
    completions <(sed -n '1p;3p' mixed) | cmp -s - <(cat one system)
ok $? "messages among prompts and tokens"
plain=$(gen "${say[@]}" --prompt hello) && [ "hello$(completions <(sed -n 2p mixed))" = "$plain" ]
ok $? "a prompt is then a text to continue"
gen "${say[@]}" --prompts mixed.jsonl --chat >turned && completions <(sed -n '1p;2p;3p' turned) | cmp -s - <(cat one one system)
ok $? "with --chat it is a question"
gen "${say[@]}" --prompts mixed.jsonl --chat --system "be brief" >turned &&
    completions <(sed -n '1p;2p;3p' turned) | cmp -s - <(cat system system system)
ok $? "--system comes before chats that have no system message"
gen "${say[@]}" --chat --prompt hello --template-var 'tools=[{"name": "f"}]' --max-tokens 5 | cmp -s - <(completions <(sed -n 4p mixed))
ok $? "tools of a line are the template's"
gen "${say[@]}" --prompts mixed.jsonl -o out.jsonl && head -n 2 out.jsonl >out.jsonl.part && mv out.jsonl whole &&
    gen "${say[@]}" --prompts mixed.jsonl -o out.jsonl --resume && cmp -s out.jsonl whole && cmp -s out.jsonl mixed
ok $? "--resume"
wrong() { # what it must say, line
    printf '{"prompt": "x"}\n%s\n' "$2" >bad.jsonl
    refused "bad.jsonl:2: $1" 1 --model "${3:-model}" --prompts bad.jsonl
}
user='{"role": "user", "content": "x"}'
wrong 'needs an object with "prompt" (a text), "tokens" (ids) or "messages" (a chat)' '{"messages": "x"}'
wrong 'needs an object' "{\"prompt\": \"x\", \"messages\": [$user]}"
wrong 'model/chat_template.jinja:4: two turns of one role' "{\"messages\": [$user, $user]}"
wrong 'model/chat_template.jinja:1: the chat has no messages' '{"messages": []}'
wrong '"tools" is no list' "{\"messages\": [$user], \"tools\": {}}"

# ---- a sharded checkpoint ------------------------------------------------------------------------

yes "a line of text" | head -n 200 >text
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32, tokenizer: bytes}
train: {steps: 2, global_batch_size: 4, seed: 2, threads: 1}
optim: {lr: 3.0e-3}
checkpoint: {path: ck}
END
"$BIN/fsdp-launch" -n 2 run.yaml >log 2>err && "$BIN/ckpt-merge" -q ck -o merged/ 2>err
ok $? "a checkpoint of two ranks, and its merge"
sharded=(--chat --prompt hello --greedy --max-tokens 30 --ignore-eos)
gen --model ck "${sharded[@]}" >out && [ "$(wc -m <out)" = 31 ] && gen --model merged "${sharded[@]}" | cmp -s - out &&
    gen --model merged/model.safetensors "${sharded[@]}" | cmp -s - out
ok $? "they have the template and the tokenizer of the model's folder, and answer alike"

# ---- the end of the positions --------------------------------------------------------------------

printf 'hello\nwhy?\nno\n' | gen --model short --chat --greedy --max-tokens 10 --ignore-eos >out
ok "$([ $? = 1 ] && [ "$(wc -l <out)" = 2 ] && grep -q "conversation has become .* tokens long, and the model has 64 positions" err; echo $?)" \
    "a conversation that becomes too long: $(grep conversation err)"
printf 'hello\n' | gen --model short --chat --greedy --ignore-eos >out && [ "$(wc -m <out)" = 42 ] && grep -q "stopped at the model's 64 positions" err
ok $? "an answer that comes to the last position says so"

# ---- characters ----------------------------------------------------------------------------------

mkdir bytes
# (An end token in tokenizer_config.json that the vocabulary lacks would be a token of its own.)
cp model/config.json model/model.safetensors bytes/
sed "s/eos_token/'.'/" model/chat_template.jinja >bytes/chat_template.jinja
awk 'BEGIN {
    print "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [], \"normalizer\": null,"
    print "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true},"
    print "\"post_processor\": null, \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true},"
    print "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null,"
    print "\"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": false, \"merges\": [], \"vocab\": {"
    for (other = 256; byte < 256; byte++) {
        shown = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174
        printf "%s\"\\u%04x\": %d", (byte ? ", " : ""), (shown ? byte : other++), byte
    }
    print "}}}"
}' >bytes/tokenizer.json
printf 'hello\nwhy?\n' | gen --model bytes --chat --max-tokens 300 --ignore-eos >out && iconv -f UTF-8 -t UTF-8 out >/dev/null &&
    grep -q $'\xef\xbf\xbd' out
ok $? "bytes that are no characters become U+FFFD"
printf 'x\n\xff\n' | gen "${say[@]}" --chat >out
ok "$([ $? = 1 ] && [ "$(wc -l <out)" = 1 ] && grep -q "the user's message is not valid UTF-8" err; echo $?)" "a line that is no text: $(grep UTF err)"

# ---- what it refuses -----------------------------------------------------------------------------

mkdir bare untold
cp model/config.json model/model.safetensors model/tokenizer.json bare/
sed 's/"vocab_size": 256/"vocab_size": 255/' model/config.json >untold/config.json
cp "$TOP"/tests/data/llama-odd/{config.json,model.safetensors} model/chat_template.jinja untold/
refused "bare: no chat template: put the model's chat_template.jinja" 1 --model bare --chat --prompt x
refused "bare: no chat template: put the model's chat_template.jinja" 1 --model bare --chat
wrong 'bare: no chat template' "{\"messages\": [$user]}" bare
refused "put its tokenizer.json next to its config.json, name one with --tokenizer" 1 --model untold --chat --prompt x
gen "${say[@]}" --model bare --tokenizer model --chat --prompt hello | cmp -s - one
ok $? "a folder that --tokenizer names gives tokenizer and template"
cp model/chat_template.jinja . && refused "bare: no chat template" 1 --model bare --chat --prompt x
refused "--chat takes text, not --tokens" 2 --model model --chat --tokens 1
refused "--system belongs to --chat" 2 --model model --prompt x --system y
refused "belong to chats" 2 --model model --prompt x --date 2026-01-31
refused "belong to chats" 2 --model model --prompt x --template-var a=1
refused "take one prompt" 2 --model model --chat --logits
refused "belong to --prompts" 2 --model model --chat -o out
refused "--date: '2026-02-30' is no date" 2 --model model --chat --prompt x --date 2026-02-30
refused "--template-var: 'mode' is not NAME=VALUE" 2 --model model --chat --prompt x --template-var mode
refused "--template-var: 'False' is no JSON" 2 --model model --chat --prompt x --template-var mode=False
refused "'messages' is set by the chat itself" 2 --model model --chat --prompt x --template-var 'messages=[]'
echo '{% for %}' >stops/chat_template.jinja
refused "stops/chat_template.jinja:1:" 1 --model stops --chat --prompt x
echo hello | gen --model model --chat >/dev/full
ok "$([ $? = 1 ] && grep -q "standard output" err; echo $?)" "a full disk at standard output: $(tail -n 1 err)"

echo "1..$n"
exit $bad
