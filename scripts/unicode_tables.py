#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes models/text/unicode/table_*.c: Unicode as tokenizers and tiktoken know it.

Both are asked for every code point, so the tables hold the Unicode version of their engines whatever
this Python's is. Run it with a Python that has both: scripts/unicode_tables.py [FOLDER]
"""
import sys
import unicodedata
from pathlib import Path

import tiktoken
import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, POINTS))

CATEGORIES = """L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp
C Cc Cf Cn Co""".split()
LONG = """L=Letter Lu=Uppercase_Letter Ll=Lowercase_Letter Lt=Titlecase_Letter Lm=Modifier_Letter
Lo=Other_Letter M=Mark Mn=Nonspacing_Mark Mc=Spacing_Mark Me=Enclosing_Mark N=Number Nd=Decimal_Number
Nl=Letter_Number No=Other_Number P=Punctuation Pc=Connector_Punctuation Pd=Dash_Punctuation
Ps=Open_Punctuation Pe=Close_Punctuation Pi=Initial_Punctuation Pf=Final_Punctuation
Po=Other_Punctuation S=Symbol Sm=Math_Symbol Sc=Currency_Symbol Sk=Modifier_Symbol So=Other_Symbol
Z=Separator Zs=Space_Separator Zl=Line_Separator Zp=Paragraph_Separator C=Other Cc=Control Cf=Format
Cn=Unassigned Co=Private_Use""".split()
SCRIPTS = """Arabic Armenian Bengali Bopomofo Common Cyrillic Devanagari Ethiopic Georgian Greek Gujarati
Gurmukhi Han Hangul Hebrew Hiragana Inherited Kannada Katakana Khmer Lao Latin Malayalam Mongolian
Myanmar Sinhala Tamil Telugu Thai Tibetan Alphabetic""".split()


def in_tokenizers(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return {ord(c) for piece, _ in split.pre_tokenize_str(TEXT) for c in piece}


def in_tiktoken(pattern):
    ranks = {bytes([i]): i for i in range(256)}
    encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return set(map(ord, encoding.decode(encoding.encode_ordinary(TEXT))))


def alone(pre_tokenizer):
    """What the pre-tokenizer makes a piece of its own between letters."""
    pieces = pre_tokenizer.pre_tokenize_str("a" + "".join(chr(c) + "a" for c in POINTS))
    return {ord(piece) for piece, _ in pieces if len(piece) == 1} - {ord("a")}


def rust_word():
    text = "".join(f" {chr(c)}a" for c in POINTS)
    pieces = pre_tokenizers.Whitespace().pre_tokenize_str(text)
    return {ord(p[0]) for p, _ in pieces if len(p) == 2 and p[1] == "a"}


def classes():
    """Name: code points, where both engines agree; where they do not, tiktoken's has a name of its own."""
    out = {}
    for name in CATEGORIES + SCRIPTS:
        pattern = r"\p{%s}" % name
        out[name] = in_tokenizers(pattern)
        if out[name] != in_tiktoken(pattern):
            sys.exit(f"{pattern}: the engines differ")
        print(name, len(out[name]), file=sys.stderr)
    for pair in LONG:
        short, name = pair.split("=")
        for engine in in_tokenizers, in_tiktoken:
            if engine(r"\p{%s}" % name) != out[short]:
                sys.exit(f"{name} is not {short}")
    for name, escape in ("White_Space", r"\s"), ("Digit", r"\d"):
        out[name] = in_tokenizers(escape)
        assert out[name] == in_tiktoken(escape), name
    out["Word"] = in_tokenizers(r"\w")
    out["Word:brackets"] = in_tokenizers(r"[\w]")
    out["Word:tiktoken"] = in_tiktoken(r"\w")
    assert rust_word() == out["Word:tiktoken"]
    out["Numeric"] = alone(pre_tokenizers.Digits(individual_digits=True))
    out["Punctuation:split"] = alone(pre_tokenizers.Punctuation())
    out["Accent"] = set(POINTS) - set(map(ord, normalizers.StripAccents().normalize_str(TEXT)))
    out["Form_Late"] = late()
    return out


def late():
    """What the normal forms' table of tokenizers does not know, seen by what does not happen."""
    nfkd, nfd = normalizers.NFKD(), normalizers.NFD()
    out, seconds = set(), {}
    for c in POINTS:
        x = chr(c)
        if unicodedata.category(x) == "Cn":
            out.add(c)
        elif unicodedata.normalize("NFKD", x) != x and nfkd.normalize_str(x) == x:
            out.add(c)
        elif unicodedata.combining(x) not in (0, 240) and \
                nfd.normalize_str("a\u0345" + x).endswith(x):
            out.add(c)
    for c in POINTS:
        parts = unicodedata.decomposition(chr(c)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            seconds.setdefault(int(parts[1], 16), set()).add(c in out)
    return out | {c for c, of_late in seconds.items() if of_late == {True}}


def ranges(points):
    out = []
    for c in sorted(points):
        # No text has a surrogate: a range may pass over them.
        if out and (c == out[-1][1] + 1 or (c == 0xE000 and out[-1][1] == 0xD7FF)):
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def lower_runs():
    """(first, last, step, difference) of what becomes one other code point."""
    normalizer = normalizers.Lowercase()
    pairs, odd = [], {}
    for c in POINTS:
        low = normalizer.normalize_str(chr(c))
        if len(low) != 1:
            odd[c] = low
        elif low != chr(c):
            pairs.append((c, ord(low) - c))
    # Each code point by itself: no final sigma.
    assert normalizer.normalize_str("ΑΣ") == "ασ"
    assert odd == {0x130: "i\u0307"}, odd
    runs = []
    for c, difference in sorted(pairs):
        last = runs[-1] if runs else None
        if last and last[3] == difference and (c - last[1] == last[2] or
                                               (last[0] == last[1] and c - last[1] <= 2)):
            last[2] = c - last[1]
            last[1] = c
        else:
            runs.append([c, c, 1, difference])
    return runs


def wrap(items):
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > 100:
            lines.append(line)
            line = "   "
        line += " " + item + ","
    return lines + [line]


HEAD = f"""/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/* Generated by scripts/unicode_tables.py from tokenizers {tokenizers.__version__} and tiktoken {tiktoken.__version__}: do not edit. */
#include "tables.h"
"""


def identifier(name):
    return "ranges_" + name.lower().replace(":", "_")


def write(folder, stem, table):
    lines = [HEAD]
    for name, points in table.items():
        lines.append(f"static const struct unicode_range {identifier(name)}[] = {{")
        lines += wrap(f"{{{a:#x}, {b:#x}}}" for a, b in ranges(points))
        lines.append("};")
    lines.append(f"\nconst struct unicode_table unicode_table_{stem}[] = {{")
    for name in table:
        n = identifier(name)
        lines.append(f'    {{"{name}", {n}, sizeof {n} / sizeof *{n}}},')
    lines.append("    {NULL, NULL, 0},\n};")
    (folder / f"table_{stem}.c").write_text("\n".join(lines) + "\n")


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else
                  Path(__file__).parent.parent / "models/text/unicode")
    table = classes()
    letters = {k: v for k, v in table.items() if k[0] == "L" and k in CATEGORIES}
    rest = {k: v for k, v in table.items() if k in CATEGORIES and k not in letters}
    write(folder, "letters", letters)
    write(folder, "categories", rest)
    write(folder, "scripts", {k: v for k, v in table.items() if k in SCRIPTS})
    write(folder, "properties", {k: v for k, v in table.items() if k not in CATEGORIES + SCRIPTS})
    runs = lower_runs()
    lines = [HEAD, "const struct unicode_lower_run unicode_lower_runs[] = {"]
    lines += wrap(f"{{{a:#x}, {b:#x}, {step}, {difference}}}" for a, b, step, difference in runs)
    lines.append(f"}};\nconst size_t unicode_lower_nruns = {len(runs)};")
    (folder / "table_lower.c").write_text("\n".join(lines) + "\n")


main()
