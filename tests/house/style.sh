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
# Those at the start of a line, and members of vtables.
many='(?m)^[a-z_][\w \n*]*\w\(([^(),;{}]*,){8}[^();{}]*\)\s*[;{]|^ +[a-z_][\w *]*\(\*\w+\)\(([^(),;{}]*,){8}'
check "no function takes nine parameters: a struct has names for them" \
    "$(grep -lPzo "$many" $(grep -E '^(libfsdp|launcher|ckpt|models)/.*\.(c|h|cuh?)$' <<<"$code"))"
printf 'int f(int a, int b, int c, int d, int e, int f, int g,\n      int h, int i)\n{\n}\n' >"$TEST_TMP/nine.c"
printf '    int (*f)(int a, int b, int c, int d, int e, int f, int g, int h,\n  int i);\n' >"$TEST_TMP/nine.h"
check "one that does would be seen" \
    "$(grep -LPzo "$many" "$TEST_TMP/nine.c" "$TEST_TMP/nine.h")"
kinds=$(sed -n '/^enum sched_kind {/,/^}/s/^ *\(SCHED_[A-Z_]*\),.*/\1/p' libfsdp/core/sched/sched.h |
    grep -v NKINDS | paste -sd '|')
check "no switch over the schedule's operations: what they do is in their rows" \
    "$(grep -nE "case ($kinds):" $(grep '^libfsdp/' <<<"$c_code"))"
echo 'case SCHED_KEEP_PART:' >"$TEST_TMP/switch.c"
check "one would be seen" "$(grep -qE "case ($kinds):" "$TEST_TMP/switch.c" || echo no)"
long=$(scripts/lint.sh --lengths $c_code 2>&1 | grep -E 'error')
check "no function over 150 lines, no file over 1000" "$long"
{ echo 'int main(void)'; echo '{'; yes '    x();' | head -n 151; echo '}'; } >"$TEST_TMP/long.c"
check "a longer one would be seen" \
    "$(scripts/lint.sh --lengths "$TEST_TMP/long.c" | grep -q 'error: .*long.c:2: main()' || echo no)"

# A function's name says of what: one word is not enough where others have it, too.
one_word_names() {
    awk '/^(__attribute__\(\(.*\)\) )?static [^=;]*[ *][a-z]+\(/ {
            match($0, /[ *][a-z]+\(/)
            print substr($0, RSTART + 1, RLENGTH - 2), FILENAME
        }' "$@" | sort -u | awk '{ count[$1]++; files[$1] = files[$1] " " $2 }
        END { for (name in count) if (count[name] >= 3) print name "():" files[name] }'
}
check "no one-word name of functions in three files" \
    "$(one_word_names $(grep -E '^(libfsdp|launcher|ckpt|models)/' <<<"$code"))"
for i in 1 2 3; do echo 'static int *begin(struct x *x, int y)' >"$TEST_TMP/one-$i.c"; done
check "one would be seen" "$(one_word_names "$TEST_TMP"/one-?.c | grep -q '^begin()' || echo no)"

# Errors are data: what code must know of one is in its fields. Whatever the variable is called.
reads_of_errors() {
    local file names
    for file in "$@"; do
        names=$( { echo err why sticky verdict aborted
            grep -oP 'struct (fsdp_err|comm_fail) \*?\K\w+(, \*?\w+)*(?=( =|;|,|\)))' "$file"; } |
            grep -oE '[a-z_]+' | sort -u | paste -sd '|')
        grep -nHP '\b(str(case)?str|strn?(case)?cmp|sscanf|strr?chr|strpbrk|strc?spn|strto\w+|mem(cmp|mem)|\w*match|regexec) ?\([^;]*\b'"($names)"'(\.|->)(text|what)\b' "$file"
        grep -nHP "\\b($names)(\\.|->)(text|what)\\[[^0\\]][^]]*\\](?! = )" "$file"
    done
}
check "no code reads an error's text" \
    "$(reads_of_errors $(grep -E '^(libfsdp|launcher|ckpt|models)/' <<<"$c_code"))"
printf 'struct fsdp_err sorry;\nif (strstr(sorry.text, "rank "))\n' >"$TEST_TMP/reads.c"
check "code that does would be seen" \
    "$(reads_of_errors "$TEST_TMP/reads.c" | grep -q 'reads.c:2:' || echo no)"

echo "1..$n"
exit $bad
