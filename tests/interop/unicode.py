# SPDX-License-Identifier: Apache-2.0
"""What unicode.sh asks: tokenizers and tiktoken next to the test programs in the folder given."""
import os
import random
import subprocess
import sys

import tiktoken
from tokenizers import Regex, normalizers, pre_tokenizers

TOOLS = sys.argv[1]
POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, POINTS))
SEED = int(os.environ.get("UNICODE_SEED", "1"))
CLASSES = """L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf
Cn Co Han Latin Hiragana Katakana Hangul Cyrillic Arabic Thai Greek Hebrew Devanagari""".split()

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA = CONTRACTIONS + (r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                        r"|\s+(?!\S)|\s+")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
         rf"{CONTRACTIONS}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
NO_HAN = "&&[^\\p{Han}]]"
PATTERNS = {
    "GPT-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "GPT-2 of tiktoken": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    "Llama 3": LLAMA,
    "Qwen 2": LLAMA.replace("{1,3}", ""),
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
              r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    "cl100k, older": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
                     r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "o200k": O200K,
    "tekken": rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
              r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "DeepSeek 3": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                  r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "DeepSeek, CJK": "[一-龥぀-ゟ゠-ヿ]+",
    "DeepSeek, words": r"\s?\p{L}+",
    "DeepSeek, punctuation": r"\s?\p{P}+",
    "DeepSeek, letters": "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ"
                         "Ḁ-ἕℂℇℊ-ℓ𐐀-𐑏𐒰-𐓓𞤀-𞥃]+",
    "StarCoder": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "Kimi": "|".join([r"[\p{Han}]+",
                      r"[^\r\n\p{L}\p{N}]?" + UPPER[:-1] + NO_HAN + "*" + LOWER[:-1] + NO_HAN + "+" +
                      CONTRACTIONS + "?",
                      r"[^\r\n\p{L}\p{N}]?" + UPPER[:-1] + NO_HAN + "+" + LOWER[:-1] + NO_HAN + "*" +
                      CONTRACTIONS + "?",
                      r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"]),
    "GLM": LLAMA.replace("{1,3}", "{1,3}?"),
    "Falcon": r"[0-9][0-9][0-9]",
    "Whitespace": r"\w+|[^\w\s]+",
    "digits": r"\d+|\D",
    "caseless": r"(?i:[a-f]x|K|raw|[^a-z ]+)|\S",
    "lines": r"a+$|[^a]|a",
    "nested": r"(?:[a-z]|\p{N}{2,3}+){2,}|.|\n",
}

ntests = nbad = 0


def ok(good, text, why=""):
    global ntests, nbad
    ntests += 1
    nbad += not good
    print(f"{'' if good else 'not '}ok {ntests} - {text}", flush=True)
    if not good:
        print("# " + str(why)[:1000].replace("\n", " "))


def tool(name, *args, text=None):
    run = subprocess.run([f"{TOOLS}/{name}", *args], input=text, capture_output=True)
    if run.returncode:
        raise SystemExit(f"{args}: {run.stderr.decode()}")
    return run.stdout


# ---- classes -------------------------------------------------------------------------------------

def in_tokenizers(pattern, text=TEXT):
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return {ord(c) for piece, _ in split.pre_tokenize_str(text) for c in piece}


def ours(name):
    out = set()
    for line in tool("test_unicode", "class", name).decode().splitlines():
        first, last = map(int, line.split())
        out.update(range(first, last + 1))
    return out - set(range(0xD800, 0xE000))


def alone(pre_tokenizer):
    pieces = pre_tokenizer.pre_tokenize_str("a" + "".join(chr(c) + "a" for c in POINTS))
    return {ord(piece) for piece, _ in pieces if len(piece) == 1} - {ord("a")}


def check_classes():
    wrong = [name for name in CLASSES if ours(name) != in_tokenizers(r"\p{%s}" % name)]
    ok(not wrong, f"{len(CLASSES)} classes over {len(POINTS)} code points", wrong)
    for name, escape in ("White_Space", r"\s"), ("Digit", r"\d"), ("Word", r"\w"), ("Word:brackets", r"[\w]"):
        ok(ours(name) == in_tokenizers(escape), f"{name} is {escape}")
    ok(ours("Numeric") == alone(pre_tokenizers.Digits(individual_digits=True)), "Digits")
    ok(ours("Punctuation:split") == alone(pre_tokenizers.Punctuation()), "Punctuation")
    ranks = {bytes([i]): i for i in range(256)}
    for pattern, name in (r"\p{L}", "L"), (r"\p{N}", "N"), (r"\p{M}", "M"), (r"\s", "White_Space"), \
            (r"\p{Lu}", "Lu"), (r"\p{Han}", "Han"), (r"\w", "Word:tiktoken"):
        encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        theirs = set(map(ord, encoding.decode(encoding.encode_ordinary(TEXT))))
        ok(ours(name) == theirs, f"{pattern} of tiktoken is {name}")


# ---- normalizers ---------------------------------------------------------------------------------

def contexts():
    """Each code point alone and between letters and marks of several classes."""
    marks = "\u0301", "\u0327", "\u0315"
    yield "alone", [chr(c) for c in POINTS if c != 10]
    for mark in marks:
        yield f"a, it, U+{ord(mark):04X}", [f"a{chr(c)}{mark}" for c in POINTS if c != 10]
        yield f"a, U+{ord(mark):04X}, it", [f"a{mark}{chr(c)}" for c in POINTS if c != 10]


def random_marks(rng):
    pool = [c for c in POINTS if 0x2FF < c < 0x3100 or 0x1100 <= c < 0x1200 or 0xAC00 <= c < 0xAC40] + \
        list(range(0x300, 0x370)) * 40 + list(range(0x41, 0x5B)) * 40 + list(range(0x1100, 0x1200)) * 20
    return ["".join(chr(rng.choice(pool)) for _ in range(rng.randrange(1, 12))) for _ in range(60000)]


def check_forms(rng):
    forms = {"nfc": normalizers.NFC(), "nfd": normalizers.NFD(), "nfkc": normalizers.NFKC(),
             "nfkd": normalizers.NFKD(), "lower": normalizers.Lowercase(),
             "accents": normalizers.StripAccents()}
    cases = list(contexts()) + [("random marks", random_marks(rng))]
    for form, normalizer in forms.items():
        for what, lines in cases:
            text = "\n".join(lines)
            got = tool("test_unicode", form, text=text.encode()).decode().split("\n")
            want = normalizer.normalize_str(text).split("\n")
            wrong = [(ascii(a), ascii(b), ascii(c)) for a, b, c in zip(lines, got, want) if b != c]
            ok(len(got) == len(want) == len(lines) and not wrong, f"{form}: {what}",
               f"{len(wrong)} differ: {wrong[:5]}")


# ---- patterns ------------------------------------------------------------------------------------

def random_text(rng, nchars):
    common = "  \n\r\t'sSdtT  abcXYZ 0123 .,!?/-éßſK漢字かなカナ한국어 русский ελληνικά ابجد हिन्दी ก\u00a0\u3000\u200b\u0301😀👩\u200d"
    out = []
    while len(out) < nchars:
        kind = rng.random()
        if kind < 0.55:
            out += rng.choices(common, k=rng.randrange(1, 8))
        elif kind < 0.7:
            out += rng.choice([" 's", "'LL", "'Ve", "\r\n\r\n", "   ", " \n ", "12345678", "straw", "'re", "aaaa"])
        elif kind < 0.85:
            start = rng.choice(POINTS[:0x3000])
            out += [chr(start)] * rng.randrange(1, 4)
        else:
            out.append(chr(rng.choice(POINTS)))
    return "".join(out)


def check_pattern(name, pattern, text):
    raw = text.encode()
    with open("text.txt", "wb") as f:
        f.write(raw)
    got = [tuple(map(int, line.split()))
           for line in tool("test_regex", "tokenizers", pattern, "text.txt").splitlines()]
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    want = [piece for piece, _ in split.pre_tokenize_str(text)]
    mine = [raw[a:b].decode() for a, b in got]
    wrong = next((i for i, (a, b) in enumerate(zip(mine, want)) if a != b), None)
    ok(mine == want, f"{name} in tokenizers: {len(want)} pieces",
       f"{len(mine)}; at {wrong}: {ascii(mine[wrong - 2:wrong + 3])} not {ascii(want[wrong - 2:wrong + 3])}"
       if wrong is not None else f"{len(mine)} pieces")


def check_tiktoken(name, pattern, text):
    """A vocabulary that has each of our pieces, and each two neighbours, as one token: it gives our pieces
    where it cuts alike, and only there."""
    raw = text.encode()
    with open("text.txt", "wb") as f:
        f.write(raw)
    got = [tuple(map(int, line.split()))
           for line in tool("test_regex", "tiktoken", pattern, "text.txt").splitlines()]
    pieces = [raw[a:b] for a, b in got]
    ranks = {bytes([i]): i for i in range(256)}
    for piece in pieces:
        ranks.setdefault(piece, len(ranks))
    for a, b in zip(got, got[1:]):
        ranks.setdefault(raw[a[0]:b[1]], len(ranks))
    encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    want = [encoding.decode_single_token_bytes(t) for t in encoding.encode_ordinary(text)]
    wrong = next((i for i, (a, b) in enumerate(zip(pieces, want)) if a != b), None)
    ok(pieces == want, f"{name} in tiktoken: {len(pieces)} pieces",
       f"{len(want)}; at {wrong}: {pieces[wrong - 2:wrong + 3]} not {want[wrong - 2:wrong + 3]}"
       if wrong is not None else f"{len(want)} pieces")


def main():
    rng = random.Random(SEED)
    check_classes()
    check_forms(rng)
    text = random_text(rng, 300000)
    for name, pattern in PATTERNS.items():
        check_pattern(name, pattern, text)
        if name not in ("caseless", "nested", "lines"):
            check_tiktoken(name, pattern, text)
    print(f"1..{ntests}")
    sys.exit(nbad != 0)


main()
