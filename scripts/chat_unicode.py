#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes models/text/chat/value/unicode_table.c: where Python's str differs from utf8proc's categories and
simple cases. Code points that this Python's Unicode does not assign are left out."""
import ctypes
import sys
import unicodedata

LIB = ctypes.CDLL("libutf8proc.so.2")
LIB.utf8proc_category_string.restype = ctypes.c_char_p
CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) != "Cn"]
CATEGORY = {c: LIB.utf8proc_category_string(c).decode() for c in CODES}

CLASSES = {
    "alpha": (str.isalpha, lambda g: g[0] == "L"),
    "decimal": (str.isdecimal, lambda g: g == "Nd"),
    "digit": (str.isdigit, lambda g: g == "Nd"),
    "numeric": (str.isnumeric, lambda g: g[0] == "N"),
    "printable": (str.isprintable, lambda g: g[0] not in "CZ"),
    "lower": (str.islower, lambda g: g == "Ll"),
    "upper": (str.isupper, lambda g: g == "Lu"),
}
CASES = {
    "upper": (str.upper, LIB.utf8proc_toupper),
    "lower": (str.lower, LIB.utf8proc_tolower),
    "title": (str.title, LIB.utf8proc_totitle),
    "fold": (str.casefold, LIB.utf8proc_tolower),
}


def ranges(codes):
    out = []
    for c in codes:
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def main():
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print("/* Written by scripts/chat_unicode.py. */")
    print('#include "unicode_table.h"\n\n/* clang-format off */')
    for name, (is_in, rule) in CLASSES.items():
        rows = ranges([c for c in CODES if is_in(chr(c)) != rule(CATEGORY[c])])
        print(f"const struct chat_code_range chat_not_{name}[] = {{")
        line = "   "
        for first, last in rows + [[0, 0]]:
            item = f" {{0x{first:x}, 0x{last:x}}},"
            if len(line) + len(item) > 100:
                print(line)
                line = "   "
            line += item
        print(line + "\n};\n")
    for name, (change, simple) in CASES.items():
        rows = [(c, change(chr(c))) for c in CODES if change(chr(c)) != chr(simple(c))]
        print(f"const struct chat_code_case chat_case_{name}[] = {{")
        line = "   "
        for c, text in rows + [(0, "")]:
            item = f" {{0x{c:x}, {{{', '.join(hex(ord(x)) for x in text) or '0'}}}}},"
            if len(line) + len(item) > 100:
                print(line)
                line = "   "
            line += item
        print(line + "\n};\n")
    print("/* clang-format on */")


if __name__ == "__main__":
    sys.exit(main())
