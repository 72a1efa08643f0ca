#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Our ids and texts against those of tokenizers, tiktoken, sentencepiece and mistral-common.

    tokens.py PROGRAM VOCABULARIES SCRATCH

PROGRAM is tests/interop/test_tokens, VOCABULARIES the folder of scripts/fetch_vocab.py. Prints TAP.
"""
import base64
import glob
import json
import os
import random
import struct
import subprocess
import sys

import mistral_common
import sentencepiece
import tiktoken
import tokenizers
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

from vocabularies import (CL100K, GPT2, KIMI, LLAMA3, O200K, PRE, QWEN2, byte_level, gguf_bpe, gguf_spm, read_gguf,
                          split)

PROGRAM, VOCAB, SCRATCH = sys.argv[1:4]
ntests = nbad = 0


def ok(good, text, why=""):
    global ntests, nbad
    ntests += 1
    nbad += not good
    print("%sok %d - %s" % ("" if good else "not ", ntests, text))
    for line in str(why).splitlines()[:6] if not good else []:
        print("# " + line[:300])
    sys.stdout.flush()


# ---- texts -------------------------------------------------------------------------------------

def assigned():
    """All of Unicode but surrogates and private use, in pieces of 1,000 code points."""
    codes = [c for c in range(0x110000) if not 0xD800 <= c <= 0xF8FF and c < 0xE01F0]
    return ["".join(map(chr, codes[i:i + 1000])) for i in range(0, len(codes), 1000)]


def read_prose():
    try:
        text = subprocess.run(["bible", "gen1:1-rev22:21"], capture_output=True, text=True).stdout
    except FileNotFoundError:
        text = ""
    return text[:300000] or "It was the best of times, it was the worst of times. " * 4000


def random_texts(seed, count):
    rng = random.Random(seed)
    alphabets = [
        "abc XYZ'sS\u017f\u212a 09\r\n\t.,!?-_/<>[]{}|\\\"", "äöüßéèñçåø ÀÉÎ 'll 'RE",
        "\u4e2d\u6587\u5b57\u7b26 \u3042\u3044\u30a2\u30a4\u3002\u3001", "\u0301\u0327\u0315ae\u200d\u00a0\u3000\u2028\x85\x0b\x0c",
        "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea \u0e44\u0e17\u0e22 \u0928\u092e\u0938\u094d\u0924\u0947",
        "\U0001f469\u200d\U0001f4bb\U0001f1e9\U0001f1ea\U0001f44d\U0001f3fd\u2764\ufe0f \u180e\ufeff\u00ad",
        "\u0660\u0661\u00bd\u2167\u00b2\u09e9\U0001d7d8 123456789", "\U00031350\U00031351\U0001e4d0\U00010ec5\u1c89\ua7cb\U00010d50",
    ]
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(1, 12)):
            alphabet = rng.choice(alphabets)
            parts.append("".join(rng.choice(alphabet) for _ in range(rng.randint(1, 8))))
            parts.append(rng.choice(["", " ", "  ", "\n", "\n\n", "\r\n", "\t"]))
        texts.append("".join(parts))
    for _ in range(count // 4):
        texts.append("".join(chr(rng.choice([rng.randint(32, 0x2ff), rng.randint(0x300, 0xd7ff),
                                             rng.randint(0xe000, 0xfffd), rng.randint(0x10000, 0x323af)]))
                             for _ in range(rng.randint(1, 60))))
    return texts


PLAIN = ["", " ", "a", "Hello, world!", "  leading and trailing  ", "\n", "\r\n\r\n", "a\u00a0b", "\u200b",
         "I'M you'Re they'LL 'S", "3.14159 1000000 \u0663\u0664", "caf\u00e9 cafe\u0301 \ufb01 \u2460 \u00c5 \u212b", "x" * 300,
         "<s>not bos</s> <unk> [INST] <|endoftext|> <|im_start|>user\nhi<|im_end|>", "tab\tsep\vfeed\f",
         "int main(void)\n{\n    return 0;\n}\n", "\u2581\u2581already marked", "a\x00b", "\ufffd", "\u0130\u0131 \u03a3\u03c3\u03c2"]
PROSE = read_prose()
CODE = open(__file__).read()
TEXTS = PLAIN + random_texts(1, 400) + assigned() + [PROSE, CODE, "ab" * 20000, "\u4e2d" * 20000, " " * 30000]


# ---- running -----------------------------------------------------------------------------------

def ours(path, texts, special=False):
    data = b"".join(struct.pack("<I", len(t)) + t for t in (x.encode() for x in texts))
    run = subprocess.run([PROGRAM, path] + ["special"] * special, input=data, capture_output=True)
    if run.returncode:
        raise RuntimeError(run.stderr.decode().strip())
    out, at, results = run.stdout, 0, []
    while at < len(out):
        n, = struct.unpack_from("<I", out, at)
        at += 4
        if n == 0xffffffff:
            size, = struct.unpack_from("<I", out, at)
            results.append((out[at + 4:at + 4 + size].decode(), None, None))
            at += 4 + size
            continue
        ids = list(struct.unpack_from("<%di" % n, out, at))
        ends = list(struct.unpack_from("<%dI" % n, out, at + 4 * n))
        size, = struct.unpack_from("<I", out, at + 8 * n)
        results.append((ids, ends, out[at + 8 * n + 4:at + 8 * n + 4 + size].decode()))
        at += 8 * n + 4 + size
    return results


def compare(name, path, encode, decode, texts=TEXTS, special=False):
    try:
        mine = ours(path, texts, special)
    except RuntimeError as error:
        ok(False, name, error)
        return
    wrong = []
    back = []
    for text, (ids, _, decoded) in zip(texts, mine):
        want = encode(text)
        if ids != want:
            wrong.append("%r: %s, not %s" % (text[:60], str(ids)[:100], str(want)[:100]))
        elif decoded != decode(want):
            back.append("%r: %r, not %r" % (text[:60], decoded[:60], decode(want)[:60]))
    ok(not wrong and len(mine) == len(texts), "%s: the ids of %d texts" % (name, len(texts)),
       "%d differ\n" % len(wrong) + "\n".join(wrong))
    ok(not back, "%s: and their text" % name, "%d differ\n" % len(back) + "\n".join(back))


def compare_hf(name, tokenizer, texts=TEXTS, ends=True):
    path = os.path.join(SCRATCH, name.replace(" ", "-").replace("/", "-") + ".json")
    tokenizer.save(path)
    compare(name, path, lambda t: tokenizer.encode(t, add_special_tokens=True).ids,
            lambda ids: tokenizer.decode(ids, skip_special_tokens=False), texts, True)
    if ends:
        compare_ends(name, path, tokenizer)


def compare_ends(name, path, tokenizer):
    """Where tokens end, on texts that no normalizer changes in length."""
    texts = [t for t in PLAIN + random_texts(2, 60) if t.isascii()] + [CODE.encode("ascii", "ignore").decode()]
    wrong = []
    for text, (ids, ends, _) in zip(texts, ours(path, texts)):
        encoding = tokenizer.encode(text, add_special_tokens=False)
        want = [e for _, e in encoding.offsets]
        if ids == encoding.ids and ends != want and sorted(want) == want:
            wrong.append("%r: %s, not %s" % (text[:60], ends[:20], want[:20]))
    ok(not wrong, "%s: where tokens end in %d texts" % (name, len(texts)), "\n".join(wrong))


# ---- vocabularies of llama.cpp -----------------------------------------------------------------

def against_llama_cpp():
    for path in sorted(glob.glob(os.path.join(VOCAB, "models", "ggml-vocab-*.gguf"))):
        name = os.path.basename(path)[len("ggml-vocab-"):-len(".gguf")]
        info = read_gguf(path)
        if name in ("llama-spm", "phi-3"):
            tokenizer = gguf_spm(info)
        elif name in PRE and "tokenizer.ggml.merges" in info:
            tokenizer = gguf_bpe(info, name)
        else:
            continue
        compare_hf("vocabulary " + name, tokenizer)
        if os.path.exists(path + ".inp"):
            against_published(name, path, tokenizer)


def against_published(name, path, tokenizer):
    """The ids that llama.cpp publishes, which are transformers'."""
    texts = open(path + ".inp", encoding="utf-8", newline="").read().split("\n__ggml_vocab_test__\n")
    lines = open(path + ".out").read().split("\n")
    file = os.path.join(SCRATCH, "vocabulary-%s.json" % name)
    got = ours(file, texts[:len(lines) - 1])
    wrong = ["%r: %s, not %s" % (t, g[0], w) for t, g, w in zip(texts, got, lines)
             if g[0] != [int(x) for x in w.split()] and tokenizer.encode(t, add_special_tokens=False).ids != g[0]]
    ok(not wrong and len(got) > 40, "%s: the ids of llama.cpp's %d texts" % (name, len(got)), "\n".join(wrong))


# ---- Mistral's, SentencePiece's and tiktoken's files -------------------------------------------

def against_mistral():
    data = os.path.join(os.path.dirname(mistral_common.__file__), "data")
    for path in sorted(glob.glob(data + "/tekken*.json")):
        tekken = Tekkenizer.from_file(path)
        texts = [t for t in TEXTS if t]
        compare(os.path.basename(path), path, lambda t: tekken.encode(t, True, False),
                lambda ids: tekken._model.decode_bytes([i - tekken.num_special_tokens for i in ids
                                                        if i >= tekken.num_special_tokens]).decode("utf-8", "replace")
                if False else decode_tekken(tekken, ids), texts, True)
    for path in sorted(glob.glob(data + "/*.model.v*")):
        model = sentencepiece.SentencePieceProcessor(path)
        texts = [t for t in TEXTS if t and "\x00" not in t]
        compare(os.path.basename(path), path, lambda t: [model.bos_id()] + model.encode(t),
                lambda ids: decode_spm(model, ids), texts, True)


def decode_tekken(tekken, ids):
    special = tekken.num_special_tokens
    out, run = "", []
    for i in list(ids) + [0]:
        if i >= special:
            run.append(i - special)
            continue
        out += tekken._model.decode(run, errors="replace")
        run = []
        out += tekken.id_to_piece(i)
    return out[:-len(tekken.id_to_piece(0))]


def decode_spm(model, ids):
    return "<s>" + model.decode(ids[1:])


def against_tiktoken():
    info = read_gguf(os.path.join(VOCAB, "models", "ggml-vocab-gpt-2.gguf"))
    to_byte = {c: b for b, c in byte_names().items()}
    ranks = {bytes(to_byte[c] for c in t): i for i, t in enumerate(info["tokenizer.ggml.tokens"][:50256])}
    path = os.path.join(SCRATCH, "gpt2.tiktoken")
    with open(path, "wb") as out:
        for token, rank in ranks.items():
            out.write(base64.b64encode(token) + b" %d\n" % rank)
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
    original = tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks,
                                 special_tokens={"<|endoftext|>": 50256})
    compare("tiktoken's gpt2", path, lambda t: original.encode(t, allowed_special="all"), original.decode)


def byte_names():
    codes = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    names, extra = {b: chr(b) for b in codes}, 256
    for b in range(256):
        if b not in names:
            names[b] = chr(extra)
            extra += 1
    return names


# ---- every part of tokenizer.json --------------------------------------------------------------

SMALL = [PROSE[:100000], CODE.encode("ascii", "ignore").decode()]
CORPUS = [PROSE[:100000], CODE] + random_texts(3, 300)


def train(model, trainer, normalizer=None, pre=None, decoder=None):
    tokenizer = Tokenizer(model)
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre:
        tokenizer.pre_tokenizer = pre
    if decoder:
        tokenizer.decoder = decoder
    tokenizer.train_from_iterator(SMALL if isinstance(model, models.Unigram) else CORPUS, trainer)
    return tokenizer


ALPHABET = pre_tokenizers.ByteLevel.alphabet()


def train_bytes(pre, normalizer=None, **options):
    trainer = trainers.BpeTrainer(vocab_size=1200, initial_alphabet=ALPHABET, show_progress=False)
    return train(models.BPE(**options), trainer, normalizer, pre, decoders.ByteLevel())


def against_patterns():
    for name, pattern in (("GPT-2", GPT2), ("Llama 3", LLAMA3), ("Qwen 2", QWEN2), ("cl100k", CL100K), ("o200k", O200K),
                          ("Kimi", KIMI), ("possessive", r"\p{N}{1,3}+|\p{L}++|\s++$|\s+|."), ("cases", r"(?i:ab|[k-s]+)|\S|\s")):
        compare_hf("pattern " + name, train_bytes(byte_level(split(pattern))))


def against_steps():
    for name, normalizer in (("NFC", normalizers.NFC()), ("NFD", normalizers.NFD()), ("NFKC", normalizers.NFKC()),
                             ("NFKD", normalizers.NFKD()), ("Lowercase", normalizers.Lowercase()),
                             ("StripAccents", normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])),
                             ("Strip", normalizers.Strip()), ("Replace", normalizers.Replace(Regex(r"\s+"), " ")),
                             ("Prepend", normalizers.Prepend("^"))):
        compare_hf("normalizer " + name, train_bytes(byte_level(use_regex=True), normalizer), ends=False)
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            step = pre_tokenizers.Split(Regex(r"[aeiou ]"), behavior, invert)
            compare_hf("Split %s%s" % (behavior, " inverted" * invert), train_bytes(byte_level(step)), PLAIN + [CODE])
    for name, step in (("Whitespace", pre_tokenizers.Whitespace()), ("WhitespaceSplit", pre_tokenizers.WhitespaceSplit()),
                       ("Punctuation", pre_tokenizers.Punctuation()), ("Digits", pre_tokenizers.Digits(True)),
                       ("delimiter", pre_tokenizers.CharDelimiterSplit("-")),
                       ("literal", pre_tokenizers.Split("th", "merged_with_previous"))):
        compare_hf("pre-tokenizer " + name, train_bytes(byte_level(step)), PLAIN + random_texts(4, 100) + [CODE])
    prefix = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    compare_hf("ByteLevel with a prefix", train_bytes(prefix), PLAIN + random_texts(5, 100), ends=False)
    compare_hf("ignore_merges", train_bytes(byte_level(use_regex=True), ignore_merges=True), PLAIN + [CODE])


def metaspace(scheme, split_words=True):
    return pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme=scheme, split=split_words)


def against_words():
    fallback = ["<0x%02X>" % i for i in range(256)]
    for scheme in ("always", "first", "never"):
        unigram = train(models.Unigram(), trainers.UnigramTrainer(vocab_size=1000, show_progress=False, unk_token="<unk>",
                                                                  special_tokens=["<unk>", "<s>"]),
                        None, metaspace(scheme), decoders.Metaspace(prepend_scheme=scheme))
        compare_hf("Unigram, Metaspace " + scheme, unigram, ends=False)
        chars = train(models.BPE(unk_token="<unk>", fuse_unk=scheme == "first"),
                      trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>"], show_progress=False),
                      None, metaspace(scheme, scheme != "never"), decoders.Metaspace(prepend_scheme=scheme))
        compare_hf("BPE of characters, Metaspace " + scheme, chars, ends=False)
    data = json.loads(unigram.to_str())
    data["model"]["vocab"] += [[b, 0.0] for b in fallback]
    data["model"]["byte_fallback"] = True
    data["decoder"] = json.loads(gguf_decoder().to_str())["decoder"]
    compare_hf("Unigram with byte fallback", Tokenizer.from_str(json.dumps(data)), ends=False)
    compare_hf("no decoder", train(models.BPE(), trainers.BpeTrainer(vocab_size=600, show_progress=False), None,
                                   pre_tokenizers.Whitespace()), PLAIN)


def gguf_decoder():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    return tokenizer


def against_added():
    tokenizer = train_bytes(byte_level(use_regex=True), normalizers.Lowercase())
    tokenizer.add_tokens([AddedToken("word", single_word=True), AddedToken("<l>", lstrip=True),
                          AddedToken("<r>", rstrip=True), AddedToken("<lr>", lstrip=True, rstrip=True),
                          AddedToken("UPPER", normalized=True), AddedToken("Exact", normalized=False),
                          AddedToken("ab"), AddedToken("abc"), AddedToken("  ", normalized=False),
                          AddedToken("\u00e9t\u00e9", single_word=True, normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A </s> </s>", None, [("<s>", tokenizer.token_to_id("<s>")), ("</s>", tokenizer.token_to_id("</s>"))])
    words = ["word", "words", " word ", "sword", "<l>", "  <l>", "<r>  x", " <lr> <lr> ", "upper", "UPPER", "Exact", "exact",
             "abcd", "ab", "a  b", "<s>", "</s>", "\u00e9t\u00e9", "\u00e9t\u00e9s", "\u4e2dword\u4e2d", "\n<l>\t", "\u3000<lr>\u3000"]
    rng = random.Random(6)
    texts = words + ["".join(rng.choice(words + [" ", "x", ".", "\n"]) for _ in range(rng.randint(1, 9))) for _ in range(800)]
    compare_hf("added tokens", tokenizer, texts, ends=False)


def against_config():
    """What tokenizer_config.json changes, as transformers reads it."""
    from transformers import AutoTokenizer, logging
    logging.set_verbosity_error()
    file = json.loads(train_bytes(byte_level(use_regex=True)).to_str())
    size = len(file["model"]["vocab"])
    extra = {"content": "<extra>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    texts = ["a <extra> b", "<eos>x <pad>", "<|a|> <|b|>", "the<mask> of"]
    folder = os.path.join(SCRATCH, "configured")
    os.makedirs(folder, exist_ok=True)
    json.dump(file, open(os.path.join(folder, "tokenizer.json"), "w"))
    for name, config in (("a new end of text", {"eos_token": "<eos>", "pad_token": "<pad>"}),
                         ("added_tokens_decoder", {"added_tokens_decoder": {str(size): extra}}),
                         ("more special tokens", {"additional_special_tokens": ["<|a|>", "<|b|>"]}),
                         ("a token of the vocabulary", {"mask_token": "the", "bos_token": {"__type": "AddedToken", **extra}}),
                         ("all of it", {"added_tokens_decoder": {str(size): extra}, "eos_token": "<eos>", "mask_token": "<mask>",
                                        "additional_special_tokens": ["<|b|>"]})):
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        json.dump(config, open(os.path.join(folder, "tokenizer_config.json"), "w"))
        original = AutoTokenizer.from_pretrained(folder)
        got = [ids for ids, _, _ in ours(folder, texts)]
        want = [original(t, add_special_tokens=False)["input_ids"] for t in texts]
        ok(got == want, "tokenizer_config.json: " + name, "%s, not %s" % (got, want))


def refused():
    good = json.loads(train_bytes(byte_level(use_regex=True)).to_str())

    def says(text, want, **changes):
        path = os.path.join(SCRATCH, "refused.json")
        json.dump({**good, **changes}, open(path, "w"))
        try:
            ours(path, ["a"])
            ok(False, text, "it was taken")
        except RuntimeError as error:
            ok(want in str(error) and path in str(error), text, error)

    says("a model that is not there is refused by name", "WordPiece", model={"type": "WordPiece", "vocab": {}})
    says("so is a normalizer", "BertNormalizer", normalizer={"type": "BertNormalizer"})
    says("so is a pre-tokenizer", "UnicodeScripts", pre_tokenizer={"type": "UnicodeScripts"})
    says("so is a post-processor", "Odd", post_processor={"type": "Odd"})
    says("so is a decoder", "CTC", decoder={"type": "CTC"})
    says("so is an added token whose id the vocabulary does not lead to", "'<s>' has the id 9999",
         added_tokens=[{"id": 9999, "content": "<s>", "special": True, "single_word": False, "lstrip": False,
                        "rstrip": False, "normalized": False}])
    says("so is a POSIX class", "POSIX", pre_tokenizer={"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "[[:alpha:]]+"}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]})


def invalid():
    path = os.path.join(SCRATCH, "pattern-GPT-2.json")
    data = b"ab\xc3("
    run = subprocess.run([PROGRAM, path], input=struct.pack("<I", len(data)) + data, capture_output=True)
    ok(b"byte 2" in run.stdout and b"UTF-8" in run.stdout, "text that is not UTF-8 is refused, with its byte", run.stdout)


def long_words():
    tokenizer = Tokenizer.from_file(os.path.join(SCRATCH, "pattern-GPT-2.json"))
    rng = random.Random(7)
    texts = ["".join(rng.choice("abcdefgh") for _ in range(1 << 20)), "\u00e4" * (1 << 19), " " * (1 << 20), "a" * (1 << 20)]
    compare("a megabyte without a space", os.path.join(SCRATCH, "pattern-GPT-2.json"), lambda t: tokenizer.encode(t).ids,
            lambda ids: tokenizer.decode(ids, skip_special_tokens=False), texts)


print("# tokenizers %s, tiktoken %s, sentencepiece %s, mistral-common %s" %
      (tokenizers.__version__, tiktoken.__version__, sentencepiece.__version__, mistral_common.__version__))
for part in (against_patterns, against_steps, against_words, against_added, against_config, refused, invalid, long_words, against_mistral,
             against_tiktoken, against_llama_cpp):
    if len(sys.argv) < 5 or part.__name__ in sys.argv[4:]:
        part()
print("1..%d" % ntests)
sys.exit(nbad > 0)
