#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Vocabularies that are learned here against those of tokenizers' BpeTrainer.

    train_tokenizer.py TRAINER TOKENS SCRATCH

TRAINER is tests/interop/test_train_tokenizer, TOKENS tests/interop/test_tokens. Prints TAP.
"""
import glob
import json
import os
import random
import shutil
import struct
import subprocess
import sys

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

TRAINER, TOKENS, SCRATCH = sys.argv[1:4]
TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ntests = nbad = 0


def ok(good, text, why=""):
    global ntests, nbad
    ntests += 1
    nbad += not good
    print("%sok %d - %s" % ("" if good else "not ", ntests, text))
    for line in str(why).splitlines()[:6] if not good else []:
        print("# " + line[:300])
    sys.stdout.flush()


# ---- corpora -----------------------------------------------------------------------------------

def read_files(*patterns):
    texts = []
    for pattern in patterns:
        for path in sorted(glob.glob(os.path.join(TOP, pattern), recursive=True)):
            with open(path, encoding="utf-8", newline="") as f:
                texts.append(f.read())
    return texts


def random_words(rng, alphabet, ntexts, nwords, longest):
    """Few letters, so that many pairs are equally frequent."""
    return [" ".join("".join(rng.choices(alphabet, k=rng.randint(1, longest))) for _ in range(nwords))
            for _ in range(ntexts)]


def random_unicode(rng, ntexts):
    ranges = [(0x20, 0x7e), (0xa0, 0x24f), (0x370, 0x5ff), (0x900, 0xdff), (0x3040, 0x30ff),
              (0x4e00, 0x4fff), (0xac00, 0xadff), (0x1f300, 0x1f6ff), (0x0, 0x1f), (0x10000, 0x323af)]
    return ["".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randint(0, 80)))
            for _ in range(ntexts)]


RNG = random.Random(7)
CJK = ["\u4eca\u65e5\u306f\u3044\u3044\u5929\u6c17\u3067\u3059\u306d\u3002", "\u6211\u4eec\u7684\u5929\u6c14\u5f88\u597d\uff0c\u4eca\u5929\u4eca\u5929\uff01",
       "\ud55c\uad6d\uc5b4 \ub0a0\uc528\uac00 \uc88b\uc2b5\ub2c8\ub2e4."]
EMOJI = ["\U0001f469\u200d\U0001f4bb\U0001f469\u200d\U0001f4bb \U0001f1e9\U0001f1ea\U0001f1e9\U0001f1ea",
         "\u2764\ufe0f\U0001f44d\U0001f3fd \U0001f44d\U0001f3fd e\u0301e\u0301 \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd"]
CORPORA = {
    "prose": read_files("docs/*.md", "*.md"),
    "code": read_files("models/text/**/*.c", "tests/interop/*.py"),
    "prose in lines": [line for text in read_files("docs/*.md") for line in text.splitlines(keepends=True)],
    "CJK": ["".join(RNG.choices(CJK, k=6)) for _ in range(60)],
    "emoji and marks": ["".join(RNG.choices(EMOJI, k=4)) for _ in range(60)],
    "random characters": random_unicode(RNG, 400),
    "ties of two letters": random_words(RNG, "ab", 30, 40, 12),
    "ties of four letters": random_words(RNG, "abcd", 30, 40, 8),
    "all pairs equal": ["".join(RNG.sample("abcdefghijklmnopqrstuvwxyz", 26)) for _ in range(40)],
    "one letter": ["a" * n for n in (1, 2, 3, 5, 8, 13, 200, 1000)],
    "no spaces": ["".join(RNG.choices("abc", k=20000))],
    "tiny": ["low lower lowest", "new newer newest"],
    "white space": [" \n\t  \r\n\u00a0\u2003  \n\n", "a  b\t\tc   \n"],
    "empty": [],
    "empty texts": ["", ""],
}
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")


# ---- running -----------------------------------------------------------------------------------

def original(texts, vocab_size, min_frequency, pattern, prefix, special):
    tokenizer = Tokenizer(models.BPE())
    if pattern:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def packed(texts):
    return b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in texts)


def train(folder, texts, vocab_size, min_frequency=0, pattern="", prefix=False, special=()):
    shutil.rmtree(folder, ignore_errors=True)
    return subprocess.run([TRAINER, folder, str(vocab_size), str(min_frequency), pattern, str(int(prefix)), *special],
                          input=packed(texts), capture_output=True)


def compare(name, texts, *args):
    folder = os.path.join(SCRATCH, "ours")
    run = train(folder, texts, *args)
    if run.returncode:
        return ok(False, name, run.stderr.decode())
    want = os.path.join(SCRATCH, "theirs.json")
    tokenizer = original(texts, *args)
    tokenizer.save(want)
    with open(want, encoding="utf-8") as f:
        theirs = f.read()
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
        ours = f.read()
    a, b = json.loads(ours), json.loads(theirs)
    why = ""
    for key in ("merges", "vocab"):
        mine, its = a["model"].pop(key), b["model"].pop(key)
        if mine != its:
            pairs = zip(list(mine.items() if key == "vocab" else mine), list(its.items() if key == "vocab" else its))
            why += "%s: %d, not %d; first %s\n" % (
                key, len(mine), len(its), next((p for p in enumerate(pairs) if p[1][0] != p[1][1]), None))
    if a != b:
        why += "%s, not %s\n" % (a, b)
    ok(not why and ours == theirs, name, why or "the files differ in their layout")


def ours_ids(folder, texts):
    run = subprocess.run([TOKENS, folder], input=packed(texts), stdout=subprocess.PIPE, check=True)
    out, at, all_ids = run.stdout, 0, []
    for _ in texts:
        nids, = struct.unpack_from("<I", out, at)
        all_ids.append(list(struct.unpack_from("<%di" % nids, out, at + 4)))
        at += 4 + 8 * nids
        nbytes, = struct.unpack_from("<I", out, at)
        at += 4 + nbytes
    return all_ids


# ---- tests -------------------------------------------------------------------------------------

END = ["<|endoftext|>"]
for label, corpus in CORPORA.items():
    for size in (257, 300, 1000, 8000):
        compare("%s: %d tokens" % (label, size), corpus, size, 0, "", False, END)
    compare("%s: Llama 3's pattern" % label, corpus, 700, 0, LLAMA3, False, END)
    compare("%s: pairs that occur twice" % label, corpus, 5000, 2, "", False, [])
compare("a prefix", CORPORA["prose"], 2000, 3, "", True, END)
compare("a prefix to each word", CORPORA["CJK"], 600, 0, LLAMA3, True, END)
compare("special tokens that are bytes, words and halves of merges", CORPORA["prose"] + ["<s></s><s> the </s>"] * 50,
        2000, 0, "", False, ["<s>", "a", "\u0120the", "th", "he", "</s>", "\u4e2d\u6587", "in", "er", "ing"])
# Special tokens that merges give, too, make pairs come up again after they were merged.
for seed in range(40):
    rng = random.Random(seed)
    names = sorted({"".join(rng.choices("abc", k=rng.randint(2, 4))) for _ in range(6)})
    compare("texts of three letters among special tokens, %d" % seed, random_words(rng, "abc", 8, 30, 9),
            265 + rng.randint(0, 400), rng.randint(0, 2), "", False, names)

folder = os.path.join(SCRATCH, "folder")
run = train(folder, CORPORA["prose"], 3000, 2, "", False, ["<|endoftext|>", "<|pad|>"])
ok(run.returncode == 0, "a folder", run.stderr.decode())
loaded = AutoTokenizer.from_pretrained(folder)
texts = CORPORA["code"][:5] + CORPORA["random characters"][:100] + CJK + EMOJI + ["a<|endoftext|>b <|pad|>", " x", "x "]
ids = [loaded(t)["input_ids"] for t in texts]
ok(ids == ours_ids(folder, texts), "ids of AutoTokenizer and of our own reader")
ok([loaded.decode(i) for i in ids] == texts, "AutoTokenizer gives texts back")
ok((loaded.bos_token_id, loaded.eos_token_id, len(loaded)) == (0, 0, 3000), "its end of text",
   (loaded.bos_token_id, loaded.eos_token_id, len(loaded)))
with open(os.path.join(TOP, "examples/llama-tiny/config.json"), encoding="utf-8") as f:
    config = json.load(f)
with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
    json.dump(dict(config, vocab_size=3000), f)
ok([AutoTokenizer.from_pretrained(folder)(t)["input_ids"] for t in texts] == ids, "next to a Llama's config.json, too")
small = train(os.path.join(SCRATCH, "small"), ["text"], 256, 0, "", False, END)
ok(small.returncode == 1 and b"needs 257" in small.stderr, "a vocabulary without room is refused", small.stderr.decode())
print("1..%d" % ntests)
sys.exit(nbad > 0)
