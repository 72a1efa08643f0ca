#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What docs/style.md asks of every source file and can be seen without reading it.
cd "$TOP" || exit 1

n=0 bad=0
check() { # text, offending lines
    n=$((n + 1))
    if [ -z "$2" ]; then
        echo "ok $n - $1"
    else
        echo "not ok $n - $1"
        sed 's/^/# /' <<<"$2" | head -n 20
        bad=1
    fi
}

code=$(find libfsdp launcher ckpt models tests scripts .ci Makefile config.mk -type f \
    \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.sh' -o -name '*.py' -o -name Makefile -o -name '*.mk' -o -name run \))
c_code=$(grep -E '\.([ch]|cuh?)$' <<<"$code")
# Not the programs: tools, the training program, the process side of fsdp-launch and of its ranks.
libraries=$(grep -E '^(libfsdp|launcher|ckpt|models)/' <<<"$c_code" |
    grep -v -E '/tools/|^models/train/|^launcher/(run|rank)/')

check "every file says its license in the first lines" \
    "$(awk 'FNR <= 3 && /SPDX-License-Identifier: Apache-2.0/ { has[FILENAME] = 1 }
        FNR == 1 { files[FILENAME] = 1 } FNR > 3 { nextfile }
        END { for (f in files) if (!has[f]) print f }' $code)"
check "no tab, no blank at a line's end" "$(grep -n -P '\t|[ \t]$' $c_code)"
check "files end with a newline" \
    "$(for f in $code; do [ -z "$(tail -c 1 "$f")" ] || echo "$f"; done)"
check "a heading stays on its line (clang-format breaks one of more than 100 columns)" \
    "$(awk '/^\/\* ---- / && !/\*\// { at = FILENAME ":" FNR; next }
        at && /^ \*[ -]*-*\/$/ { print at } { at = "" }' $c_code)"
# Not where CUDA's own names are declared.
check "no pointer typedefs" "$(grep -n -E '^ *typedef struct.*\*' $(grep -v '^tests/simt/include/' <<<"$c_code"))"
check "libraries neither exit nor abort" \
    "$(grep -n -E '(^|[^_a-z>.])(exit|abort|_exit|assert) *\(' $libraries |
        grep -v -E ':[0-9]+: *(/?\*|//)')"
check "libraries do not print" \
    "$(grep -n -E '(^|[^_a-z>.])(printf|puts|perror|vprintf) *\(|fprintf *\( *std(out|err)' $libraries |
        grep -v -E ':[0-9]+: *(/?\*|//)')"
long=$(scripts/lint.sh --lengths $c_code 2>&1 | grep -E 'error')
check "no function over 150 lines, no file over 1000" "$long"
{ echo 'int main(void)'; echo '{'; yes '    x();' | head -n 151; echo '}'; } >"$TEST_TMP/long.c"
check "a longer one would be seen" \
    "$(scripts/lint.sh --lengths "$TEST_TMP/long.c" | grep -q 'error: .*long.c:2: main()' || echo no)"

echo "1..$n"
exit $bad
