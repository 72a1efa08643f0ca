#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random tokenizer.json files on random texts: our ids and texts are those of the package tokenizers, or the file is
refused.

    tokens_random.py PROGRAM SCRATCH [SEED [COUNT]]

PROGRAM is tests/interop/test_tokens. Prints TAP; a file that differs stays in SCRATCH, with the text."""
import collections
import json
import os
import random
import struct
import subprocess
import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

PROGRAM, SCRATCH = sys.argv[1:3]
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
COUNT = int(sys.argv[4]) if len(sys.argv) > 4 else 400
MARK = "\u2581"
WORDS = ("the", "of", "and", "The", "in", "to", "a", "was", "hello", "world", "don't", "I'M", "we'LL", "\u00e9t\u00e9",
         "na\u00efve", "stra\u00dfe", "\u0130stanbul", "\u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2", "\u4e2d\u6587", "\u65e5\u672c\u8a9e", "\u0645\u0631\u062d\u0628\u0627",
         "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e2a\u0e27\u0e31", "\ud55c\uad6d\uc5b4", "3.14", "1000000", "x1y2", "foo_bar", "a-b", "<s>", "</s>",
         "<unk>", "[INST]", "<0x41>", MARK, MARK + "the", "word", "words", "<pad>", "ab", "abc", "UPPER", "e\u0301",
         "\ufb01n", "\u2460", "\u212b", "\U0001f469\u200d\U0001f4bb", "\U0001f44d\U0001f3fd", "\u200b", "\ufeff", "\x00", "\u0660\u0661", "\u00bd",
         "(", ")", "...", "!?", "==", "//", "{", "}", "\u3002", "\u00ab", "\u20ac", "$", "`", "\\n", "'", "\"", "\ufffd")
SPACES = (" ", " ", " ", " ", "", "", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", " \n ", "\x0b")
PATTERNS = (r"\s+", r"\s", r"\p{N}{1,3}", r"\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            r"[A-Z]", r"[\r\n]", r"\d", r"(?i:'s|'t|'m|'ll)|\p{L}+|\s+|.", r"[\u4e00-\u9fff]+", r"\w+|[^\w\s]+", " ",
            r"\p{P}+|\p{S}", r" ?\p{Lu}\p{Ll}*", r"a|b|ab", r"\s+$", r"\n|[^\n]+", r"[\p{Han}]+|\p{M}+")


def text_of(rng):
    if rng.random() < 0.1:
        return "".join(chr(rng.choice([rng.randint(0, 0x7f), rng.randint(0x80, 0x2fff), rng.randint(0x3000, 0xd7ff),
                                       rng.randint(0xe000, 0xffff), rng.randint(0x10000, 0x10ffff)]))
                       for _ in range(rng.randint(1, 40)))
    return "".join(rng.choice(WORDS) + rng.choice(SPACES) for _ in range(rng.randint(0, 14)))


# ---- random parts ------------------------------------------------------------------------------

def some(rng, make, most):
    return [make(rng) for _ in range(rng.randint(0, most))]


def pattern(rng):
    if rng.random() < 0.3:
        return {"String": rng.choice((" ", MARK, "a", "the", "\n", "-", "  ", "\u00e9", "'"))}
    return {"Regex": rng.choice(PATTERNS)}


def normalizer(rng):
    kind = rng.choice(("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Replace", "Prepend", "Replace",
                       "Prepend", "Sequence") + (("Nmt", "ByteLevel") if rng.random() < .1 else ()))
    if kind == "Strip":
        return {"type": kind, "strip_left": rng.random() < .5, "strip_right": rng.random() < .5}
    if kind == "Replace":
        if rng.random() < .5:
            return {"type": kind, "pattern": {"String": " "}, "content": MARK}
        return {"type": kind, "pattern": pattern(rng), "content": rng.choice(("", " ", "x", MARK, "\u00e9e"))}
    if kind == "Prepend":
        return {"type": kind, "prepend": rng.choice((MARK, " ", "ab"))}
    if kind == "Sequence":
        return {"type": kind, "normalizers": some(rng, normalizer, 2)}
    return {"type": kind}


BEHAVIORS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")


def metaspace(rng):
    part = {"type": "Metaspace", "replacement": rng.choice((MARK, MARK, "_"))}
    scheme = rng.choice(("first", "always", "never", None))
    if scheme:
        part.update(prepend_scheme=scheme, split=rng.random() < .7)
    else:
        part["add_prefix_space"] = rng.random() < .5
        if rng.random() < .3:
            part["str_rep"] = part["replacement"]
    return part


def byte_level(rng):
    part = {"type": "ByteLevel", "add_prefix_space": rng.random() < .3, "trim_offsets": rng.random() < .5}
    if rng.random() < .8:
        part["use_regex"] = rng.random() < .6
    return part


def splitter(rng):
    kind = rng.choice(("Split", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "CharDelimiterSplit",
                       "Metaspace"))
    if kind == "Split":
        return {"type": kind, "pattern": pattern(rng), "behavior": rng.choice(BEHAVIORS), "invert": rng.random() < .3}
    if kind == "Digits":
        return {"type": kind, "individual_digits": rng.random() < .5}
    if kind == "Punctuation":
        return {"type": kind, "behavior": rng.choice(BEHAVIORS)}
    if kind == "CharDelimiterSplit":
        return {"type": kind, "delimiter": rng.choice("-a ")}
    return metaspace(rng) if kind == "Metaspace" else {"type": kind}


def sequence(rng, kind, key, parts):
    if len(parts) == 1 and rng.random() < .5:
        return parts[0]
    return {"type": kind, key: parts} if parts else None


def decoder(rng, kind):
    byte_fallback = [{"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"},
                     {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    choice = rng.random()
    if kind == "bytes":
        return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True} \
            if choice < .9 else {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "Fuse"}]}
    if choice < .5:
        return {"type": "Sequence", "decoders": byte_fallback[:rng.randint(1, 4)]}
    if choice < .7:
        return metaspace(rng)
    if choice < .8:
        return None
    parts = byte_fallback + [{"type": "Strip", "content": "a", "start": 1, "stop": 0}, metaspace(rng), {"type": "Fuse"},
                             {"type": "Replace", "pattern": {"String": "e"}, "content": ""},
                             {"type": "WordPiece", "prefix": "##", "cleanup": True}, {"type": "ByteLevel"}]
    return {"type": "Sequence", "decoders": rng.sample(parts, rng.randint(1, 4))}


def added(rng, vocab):
    """Tokens with the ids that the original gives them, whatever the file says; now and then the file says another."""
    tokens = []
    next_id = len(vocab)
    for content in rng.sample(("<s>", "</s>", "<pad>", "word", "[INST]", "ab", "abc", "UPPER", "  ", "\u00e9t\u00e9", "\u4e2d", "the",
                               MARK, "\n\n", "a b", "E\u0301", "x1"), rng.randint(0, 7)):
        special = rng.random() < .5
        wanted = vocab.get(content, next_id)
        next_id += content not in vocab
        tokens.append({"id": wanted + (rng.random() < .004), "content": content, "special": special,
                       **{k: rng.random() < .25 for k in ("single_word", "lstrip", "rstrip")},
                       "normalized": (rng.random() < .2) if special else rng.random() < .6})
    return tokens


def post_processor(rng, tokens):
    template = [{"SpecialToken": {"id": t["content"], "type_id": 0}} for t in tokens if t["special"]][:2]
    single = template[:1] + [{"Sequence": {"id": "A", "type_id": 0}}] + template[1:]
    process = {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
               "special_tokens": {t["content"]: {"id": t["content"], "ids": [t["id"]], "tokens": [t["content"]]}
                                  for t in tokens if t["special"]}}
    choice = rng.random()
    if choice < .4 and template:
        return process
    if choice < .5 and template:
        return {"type": "Sequence", "processors": [byte_level(rng), process]}
    if choice < .55 and template:
        pair = [[t["content"], t["id"]] for t in tokens if t["special"]]
        return {"type": rng.choice(("BertProcessing", "RobertaProcessing")), "sep": pair[-1], "cls": pair[0],
                "trim_offsets": True, "add_prefix_space": rng.random() < .5}
    return byte_level(rng) if choice < .7 else None


# ---- whole files -------------------------------------------------------------------------------

def train(rng, model, trainer, pre):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre
    corpus = ["".join(rng.choice(WORDS) + rng.choice(SPACES) for _ in range(12)).replace("\x00", "") for _ in range(300)]
    tokenizer.train_from_iterator(corpus, trainer)
    return json.loads(tokenizer.to_str())["model"]


def bases():
    rng = random.Random(0)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    by_bytes = train(rng, models.BPE(), trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False),
                     pre_tokenizers.ByteLevel(add_prefix_space=False))
    chars = train(rng, models.BPE(unk_token="<unk>"),
                  trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>"] + ["<0x%02X>" % i for i in range(256)],
                                      limit_alphabet=60, show_progress=False), pre_tokenizers.Metaspace())
    unigram = train(rng, models.Unigram(),
                    trainers.UnigramTrainer(vocab_size=1500, unk_token="<unk>", special_tokens=["<unk>"],
                                            show_progress=False), pre_tokenizers.Metaspace())
    scores = {t: s for t, s in unigram["vocab"]}
    scores.update(("<0x%02X>" % i, 0.0) for i in range(256))
    unigram["vocab"] = [[t, s] for t, s in scores.items()]
    return {"bytes": by_bytes, "chars": chars, "unigram": unigram}


def vary(rng, kind, model):
    model = json.loads(json.dumps(model))
    if kind == "unigram":
        model["byte_fallback"] = rng.random() < .5
        return model
    model["ignore_merges"] = rng.random() < .3
    if rng.random() < .3:
        model["merges"] = [" ".join(m) for m in model["merges"] if not any(" " in x for x in m)]
    if kind == "chars":
        model.update(byte_fallback=rng.random() < .6, fuse_unk=rng.random() < .5, unk_token=rng.choice(("<unk>", None)))
    elif rng.random() < .2:
        for key in rng.sample(sorted(model["vocab"]), 3):
            if len(key) == 1 and not any(key in m for m in model["merges"]):
                del model["vocab"][key]
    if rng.random() < .1:
        rng.shuffle(model["merges"])
    return model


def make(rng, base):
    kind = rng.choice(("bytes", "bytes", "chars", "chars", "unigram"))
    model = vary(rng, kind, base[kind])
    steps = some(rng, splitter, 2) if rng.random() < .7 else []
    if kind == "bytes":
        steps.append(byte_level(rng))
    elif not steps and rng.random() < .5:
        steps.append(metaspace(rng))
    tokens = added(rng, model["vocab"] if kind != "unigram" else {t: i for i, (t, _) in enumerate(model["vocab"])})
    file = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens,
            "normalizer": sequence(rng, "Sequence", "normalizers", some(rng, normalizer, 2)),
            "pre_tokenizer": sequence(rng, "Sequence", "pretokenizers", steps),
            "post_processor": post_processor(rng, tokens), "decoder": decoder(rng, kind), "model": model}
    if rng.random() < .03:
        file["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    if rng.random() < .03:
        file["padding"] = {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                           "pad_type_id": 0, "pad_token": "<pad>"}
    return file


# ---- comparing ---------------------------------------------------------------------------------

def ours(path, texts, special):
    data = b"".join(struct.pack("<I", len(t)) + t for t in (x.encode() for x in texts))
    run = subprocess.run([PROGRAM, path] + ["special"] * special, input=data, capture_output=True)
    if run.returncode:
        return None, run.stderr.decode().strip() or "status %d" % run.returncode
    out, at, results = run.stdout, 0, []
    while at < len(out):
        n, = struct.unpack_from("<I", out, at)
        at += 4
        if n == 0xffffffff:
            n = 0
            size, = struct.unpack_from("<I", out, at)
            results.append(("error: " + out[at + 4:at + 4 + size].decode(), ""))
        else:
            size, = struct.unpack_from("<I", out, at + 8 * n)
            ids = list(struct.unpack_from("<%di" % n, out, at))
            results.append((ids, out[at + 8 * n + 4:at + 8 * n + 4 + size].decode()))
        at += 8 * n + 4 + size
    return results, None


def difference(tokenizer, path, texts):
    """What differs first; and why the file was refused."""
    for special in (False, True):
        results, refusal = ours(path, texts, special)
        if refusal:
            return None, refusal
        for text, (ids, decoded) in zip(texts, results):
            want = tokenizer.encode(text, add_special_tokens=special).ids
            if ids != want:
                return "%r: ids %s, not %s" % (text, ids, want), None
            back = tokenizer.decode(want, skip_special_tokens=False)
            if decoded != back:
                return "%r %s: text %r, not %r" % (text, want, decoded, back), None
    return None, None


def main():
    rng = random.Random(SEED)
    base = bases()
    refused, same, invalid, bad = collections.Counter(), 0, 0, []
    for number in range(COUNT):
        file = make(rng, base)
        texts = [text_of(rng) for _ in range(25)]
        try:
            tokenizer = Tokenizer.from_str(json.dumps(file))
            tokenizer.no_truncation()  # as transformers does
            tokenizer.no_padding()
        except Exception:  # whatever its parser raises
            invalid += 1
            continue
        path = os.path.join(SCRATCH, "random-%d-%d.json" % (SEED, number))
        with open(path, "w") as out:
            json.dump(file, out)
        try:
            differs, refusal = difference(tokenizer, path, texts)
        except BaseException as error:  # a panic of the original is no Exception
            differs, refusal = None, "the original fails: %s" % error
        if differs:
            bad.append("%s: %s" % (os.path.basename(path), differs))
        else:
            os.remove(path)
            same += not refusal
        if refusal:
            refused[refusal.replace(path, "").lstrip(": ")[:80]] += 1
    print("# seed %d: %d files with equal ids and texts, %d refused, %d that the original does not read" %
          (SEED, same, sum(refused.values()), invalid))
    for reason, count in refused.most_common():
        print("# %4d %s" % (count, reason))
    for line in bad[:40]:
        print("# " + line[:600])
    print("%sok 1 - %d random files on 25 texts each: ids and texts are the original's, or the file is refused" %
          ("not " * bool(bad), COUNT))
    print("%sok 2 - half of them are not refused" % ("not " * (same * 2 < COUNT - invalid)))
    print("1..2")
    return bool(bad)


sys.exit(main())
