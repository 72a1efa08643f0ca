#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Token files of fsdp-tokenize against the ids of tokenizers.

    token_files.py PROGRAM VOCABULARIES SCRATCH

PROGRAM is fsdp-tokenize, VOCABULARIES the folder of scripts/fetch_vocab.py. Prints TAP.
"""
import array
import glob
import gzip
import json
import os
import subprocess
import sys

import tokenizers

from vocabularies import gguf_bpe, gguf_spm, read_gguf

PROGRAM, VOCAB, SCRATCH = sys.argv[1:4]
TOP = os.environ["TOP"]
os.chdir(SCRATCH)
ntests = nbad = 0


def ok(good, text, why=""):
    global ntests, nbad
    ntests += 1
    nbad += not good
    print("%sok %d - %s" % ("" if good else "not ", ntests, text))
    for line in str(why).splitlines()[:6] if not good else []:
        print("# " + line[:300])
    sys.stdout.flush()


def read(pattern):
    return "".join(open(p, encoding="utf-8", newline="").read() for p in sorted(glob.glob(os.path.join(TOP, pattern))))


# Longer than a piece of 1 MiB, so that pieces are joined.
PROSE = read("docs/*.md") * 5 + "\u4e2d\u6587\u5b57\u7b26\n" * 4000 + "caf\u00e9 \U0001f469\u200d\U0001f4bb\r\n" * 4000
CODE = read("models/*/*.c")
LINES = [{"text": t} for t in PROSE[:100000].split("\n\n")] + [{"text": ""}, {"text": "a\x00b\n"}, {"text": CODE[:50000]}]


def write(name, text):
    with open(name, "w", encoding="utf-8", newline="") as f:
        f.write(text)


write("prose.txt", PROSE)
write("code.c", CODE)
with gzip.open("lines.jsonl.gz", "wt", encoding="utf-8") as packed:
    for line in LINES:
        packed.write(json.dumps(line) + "\n")


def run(*args):
    done = subprocess.run([PROGRAM, *args], capture_output=True)
    return done.stdout, done.stderr.decode() if done.returncode else ""


def check(name, folder, tokenizer, eos):
    """Files and lines, with each of the special tokens there are."""
    wide = tokenizer.get_vocab_size() > 65536
    out = "out.u32" if wide else "out.u16"
    for special in ("none", "model", "eos"):
        want, ends = [], []
        for text in [PROSE, CODE] + [line["text"] for line in LINES]:
            ids = tokenizer.encode(text, add_special_tokens=special != "none").ids
            if special == "eos" and ids[-1:] != [eos]:
                ids = ids + [eos]
            want += ids
            ends.append(len(want))
        _, why = run("prose.txt", "code.c", "lines.jsonl.gz", "-o", out, "--tokenizer", folder, "--special", special,
                     "--overwrite")
        if why:
            ok(False, "%s, special %s" % (name, special), why)
            continue
        got, index = array.array("I" if wide else "H"), array.array("Q")
        got.frombytes(open(out, "rb").read())
        index.frombytes(open(out + ".index", "rb").read()[128:])
        ok(list(got) == want and list(index) == ends, "%s, special %s: %d ids" % (name, special, len(want)),
           next(("token %d is %d, not %d" % (i, a, b) for i, (a, b) in enumerate(zip(got, want)) if a != b),
                "%d ids, not %d" % (len(got), len(want))))
    for document, text in ((0, PROSE), (1, CODE)):
        got, why = run("--decode", out, "--tokenizer", folder, "--document", str(document))
        ids = tokenizer.encode(text).ids
        want = tokenizer.decode(ids + [eos] * (ids[-1] != eos), skip_special_tokens=False)
        ok(got.decode() == want, "%s: the text of document %d" % (name, document), why or "%d bytes" % len(got))


def save(tokenizer, name, eos):
    os.makedirs(name, exist_ok=True)
    tokenizer.save(name + "/tokenizer.json")
    write(name + "/tokenizer_config.json", json.dumps({"eos_token": eos}))


def gguf(name, eos):
    info = read_gguf(os.path.join(VOCAB, "models/ggml-vocab-%s.gguf" % name))
    tokenizer = gguf_spm(info) if name == "llama-spm" else gguf_bpe(info, name)
    save(tokenizer, "real/" + name, eos)
    check(name, "real/" + name, tokenizer, tokenizer.token_to_id(eos))


def small(name, eos):
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(TOP, "tests/tokens/data/%s.json" % name))
    save(tokenizer, "small/" + name, eos)
    check(name, "small/" + name, tokenizer, tokenizer.token_to_id(eos))


small("bytes", "<|end|>")
small("unigram", "</s>")
small("sentence", "</s>")
gguf("gpt-2", "<|endoftext|>")
gguf("llama-bpe", "<|end_of_text|>")
gguf("qwen2", "<|endoftext|>")
gguf("llama-spm", "</s>")

# A vocabulary that was made here is read there.
_, why = run("prose.txt", "-o", "made", "--train", "800")
ok(not why, "a vocabulary of the prose", why)
made = tokenizers.Tokenizer.from_file("made/tokenizer.json")
check("made", "made", made, made.token_to_id("<|endoftext|>"))
theirs = tokenizers.Tokenizer(tokenizers.models.BPE())
theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
theirs.train(["prose.txt"], tokenizers.trainers.BpeTrainer(
    vocab_size=800, special_tokens=["<|endoftext|>"], show_progress=False, min_frequency=0,
    initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
ok(theirs.get_vocab() == made.get_vocab() and
   json.loads(theirs.to_str())["model"]["merges"] == json.loads(made.to_str())["model"]["merges"],
   "its tokens and merges are those of the original's trainer on the file")

print("1..%d" % ntests)
sys.exit(nbad != 0)
