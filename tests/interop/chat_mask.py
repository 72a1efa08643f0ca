# SPDX-License-Identifier: Apache-2.0
"""chat_mask.py PROGRAM VOCABULARIES SCRATCH: what training learns of chats, by the program
(tests/interop/test_line.c) and by transformers. Prints TAP."""
import glob
import json
import os
import re
import subprocess
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PROGRAM, VOCAB, SCRATCH = sys.argv[1:4]
ntests = nbad = 0

CHATS = [
    {"messages": [{"role": "user", "content": "Hello there"}, {"role": "assistant", "content": "Hi, how are you?"}]},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"},
                  {"role": "assistant", "content": "4"}, {"role": "user", "content": "And 3 + 3?\nQuick!"},
                  {"role": "assistant", "content": "It is 6.\n\nAnything else?"}]},
    {"messages": [{"role": "user", "content": "Say: assistant"}, {"role": "assistant", "content": "assistant"},
                  {"role": "user", "content": "assistant"}, {"role": "assistant", "content": "assistant"}]},
    {"messages": [{"role": "user", "content": "\u4f60\u597d \U0001f469\u200d\U0001f4bb"},
                  {"role": "assistant", "content": "\u4f60\u597d\uff01 \u00e4\u00f6\u00fc \U0001f44d\U0001f3fd"}]},
    {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "   spaces around   "},
                  {"role": "user", "content": "y"}, {"role": "assistant", "content": "a"}]},
    {"messages": [{"role": "user", "content": "only a question"}]},
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<|begin_of_text|>", "<|start_header_id|>",
           "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<|user|>",
           "<|assistant|>", "<|system|>", "<|end|>", "<think>", "</think>", "[INST]", "[/INST]", "<|start|>",
           "<|message|>", "<|channel|>", "<|return|>"]
HAND = [ # a template, a chat, what is learned
    ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
     "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}", 4, ["spaces around<|im_end|>", "a<|im_end|>"]),
    ("{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}"
     " {{ m.content }}</s>{% endif %}{% endfor %}", 0, ["Hi, how are you?</s>"]),
    ("{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}"
     "<end_of_turn>\n{% endfor %}", 1, ["4<end_of_turn>", "It is 6.\n\nAnything else?<end_of_turn>"]),
    ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", 2, ["assistant", "assistant"]),
    ("{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}"
     "<|assistant|>\n{% else %}<|endoftext|>{% endif %}", 0, ["Hi, how are you?<|end|>"]),
]
TOOLS = {"messages": [{"role": "user", "content": "Weather?"},
                      {"role": "assistant", "content": "", "tool_calls": [
                          {"type": "function", "function": {"name": "look", "arguments": {"at": "Rome"}}}]},
                      {"role": "tool", "content": "sunny"}, {"role": "assistant", "content": "It is sunny."}]}
TOOLS_TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}{% for t in m.tool_calls %}CALL "
                  "{{ t.function.name }} {{ t.function.arguments | tojson }}{% endfor %}{% else %}{{ m.content }}{% endif %}"
                  "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def ok(good, text, why=""):
    global ntests, nbad
    ntests += 1
    nbad += not good
    print("%sok %d - %s" % ("" if good else "not ", ntests, text))
    for line in str(why).splitlines()[:6] if not good else []:
        print("# " + line[:300])
    sys.stdout.flush()


def make_tokenizer():
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    texts = [m["content"] for c in CHATS for m in c["messages"]] + [open(__file__).read()]
    core.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=700, special_tokens=SPECIAL, show_progress=False,
                                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<|endoftext|>")


def save(tokenizer, template):
    folder = os.path.join(SCRATCH, "model")
    tokenizer.save_pretrained(folder)
    with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8", newline="") as out:
        out.write(template)
    return folder


def ours(folder, chats, train_on="assistant"):
    text = "".join(json.dumps(c) + "\n" for c in chats)
    run = subprocess.run([PROGRAM, folder, train_on], input=text, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(run.stderr.strip())
    rows = []
    for line in run.stdout.splitlines():
        if line.startswith("error "):
            rows.append(line)
            continue
        ids, labels = ([int(x) for x in part.split(",")] for part in line.split(" "))
        rows.append((ids, [int(i == label) for i, label in zip(ids, labels)]))
    return rows


def theirs(tokenizer, template, chat):
    try:
        got = tokenizer.apply_chat_template(chat["messages"], chat_template=template, tokenize=True, return_dict=True,
                                            return_assistant_tokens_mask=True, tools=chat.get("tools"))
    except Exception as error:
        return "error %s" % error
    ids, masks = list(got["input_ids"]), list(got["assistant_masks"])
    whole_characters(tokenizer, tokenizer.apply_chat_template(chat["messages"], chat_template=template, tokenize=False,
                                                              tools=chat.get("tools")), ids, masks)
    return ids, masks


def whole_characters(tokenizer, text, ids, masks):
    """Of a character of several tokens at the end of a span, transformers learns the first token alone."""
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    assert offsets["input_ids"] == ids
    for i in range(1, len(ids)):
        if masks[i - 1] and offsets["offset_mapping"][i] == offsets["offset_mapping"][i - 1]:
            masks[i] = 1


def without_marks(template):
    return re.sub(r"\{%(-?)\s*(end)?generation\s*(-?)%\}", lambda m: "{%" + m[1] + " if true " + m[3] + "%}"
                  if not m[2] else "{%" + m[1] + " endif " + m[3] + "%}", template)


def learned(tokenizer, row):
    spans, run = [], []
    for token, counts in zip(*row):
        if counts:
            run.append(token)
        elif run:
            spans.append(tokenizer.decode(run))
            run = []
    return spans + ([tokenizer.decode(run)] if run else [])


def compare(name, tokenizer, template):
    folder = save(tokenizer, template)
    wrong = []
    want = [theirs(tokenizer, template, c) for c in CHATS]
    try:
        got = ours(folder, CHATS)
    except RuntimeError as error:
        ok(False, name, error)
        return
    for number, (w, g) in enumerate(zip(want, got)):
        if isinstance(w, str) or isinstance(g, str):
            if isinstance(w, str) != isinstance(g, str):
                wrong.append("chat %d: %s for %s" % (number, str(g)[:120], str(w)[:120]))
        elif w != g:
            wrong.append("chat %d: ids %s, learned %r for %r" % (number, w[0] == g[0], learned(tokenizer, g),
                                                                 learned(tokenizer, w)))
    ok(not wrong, "%s: what transformers learns of %d chats" % (name, len(CHATS)), "\n".join(wrong))


def marked_templates():
    seen = {}
    for path in sorted(glob.glob(VOCAB + "/**/*.jinja", recursive=True)):
        text = open(path, encoding="utf-8", newline="").read()
        if re.search(r"\{%-?\s*generation", text):
            seen.setdefault(text, os.path.basename(path))
    return sorted((name, text) for text, name in seen.items())


def odd(tokenizer):
    """Templates and chats that are unlike others."""
    folder = save(tokenizer, "{% for m in messages | reverse %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}")
    got = ours(folder, [CHATS[2]])[0]
    ok(learned(tokenizer, got) == ["assistant<|end|>", "assistant<|end|>"], "turns in another order", learned(tokenizer, got))
    folder = save(tokenizer, "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>{% endfor %}")
    empty = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "  "}]}
    got = ours(folder, [empty])[0]
    ok(learned(tokenizer, got) == ["<|end|>"], "of an empty turn, its end", got)
    parts = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "text", "text": "y"}]}]}
    folder = save(tokenizer, "{% for m in messages %}<|{{ m.role }}|>{% if m.content is string %}{{ m.content }}{% else %}"
                  "{{ m.content[0].text }}{% endif %}<|end|>{% endfor %}")
    got = ours(folder, [parts])[0]
    ok(isinstance(got, str) and "message 2 cannot be located" in got, "no generation prompt to find a turn of parts by", got)
    with_prompt = open(os.path.join(folder, "chat_template.jinja")).read() + "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    got = ours(save(tokenizer, with_prompt), [parts])[0]
    ok(learned(tokenizer, got) == ["y<|end|>"], "with one, the turn", got)
    null = {"messages": [{"role": "user", "content": None}, {"role": "assistant", "content": "z"}]}
    text = tokenizer.apply_chat_template(null["messages"], chat_template=with_prompt.replace("m.content[0].text", "m.content"),
                                         tokenize=False)
    got = ours(save(tokenizer, with_prompt.replace("m.content[0].text", "m.content")), [null])[0]
    ok(tokenizer.decode(got[0]) == text, "no content at all is what transformers makes of it", tokenizer.decode(got[0]))


def main():
    tokenizer = make_tokenizer()
    marked = marked_templates()
    for name, template in marked:
        compare(name, tokenizer, template)
    ok(len(marked) >= 10, "%d templates mark what is generated" % len(marked))
    for number, (template, chat, want) in enumerate(HAND):
        got = ours(save(tokenizer, template), [CHATS[chat]])[0]
        ok(not isinstance(got, str) and [s.strip() for s in learned(tokenizer, got)] == want,
           "hand-written template %d" % (number + 1), got if isinstance(got, str) else learned(tokenizer, got))
    folder = save(tokenizer, TOOLS_TEMPLATE)
    got = ours(folder, [TOOLS])[0]
    ok(learned(tokenizer, got) == ['CALL look {"at": "Rome"}<|im_end|>', "It is sunny.<|im_end|>"], "calls of tools are learned", got)
    ok(learned(tokenizer, ours(folder, [TOOLS], "last")[0]) == ["It is sunny.<|im_end|>"], "the last turn alone")
    ok(all(ours(folder, [TOOLS], "all")[0][1]), "all of it")
    odd(tokenizer)
    found = 0
    for name, template in marked:
        plain = without_marks(template)
        with_marks, by_search = ours(save(tokenizer, template), CHATS[:4]), ours(save(tokenizer, plain), CHATS[:4])
        for w, s in zip(with_marks, by_search):
            found += not isinstance(s, str) and not isinstance(w, str)
            if not isinstance(w, str) and isinstance(s, str):
                print("# %s without marks: %s" % (name, s[:200]))
    print("# without marks, turns are found in %d of %d chats" % (found, 4 * len(marked)))
    print("1..%d" % ntests)
    return nbad > 0


if __name__ == "__main__":
    sys.exit(main())
