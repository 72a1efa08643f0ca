#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every public header stands alone, in strict C11 and in C++.
cd "$TOP" || exit 1

n=0 bad=0
verdict() { # status, text, compiler's words
    n=$((n + 1))
    if [ "$1" = 0 ]; then
        echo "ok $n - $2"
    else
        echo "not ok $n - $2"
        sed 's/^/# /' <<<"$3" | head -n 20
        bad=1
    fi
}

dirs='-Ilibfsdp/include -Ilauncher/include -Ickpt/include -Imodels'
flags='-Wall -Wextra -Wpedantic -Werror -fsyntax-only'
for h in libfsdp/include/fsdp/*.h libfsdp/include/fsdp/sys/*.h launcher/include/*.h launcher/include/fsdp/*.h \
    ckpt/include/ckpt/*.h models/family/model.h; do
    name=${h#*include/}
    name=${name#models/}
    # Twice, for the include guard.
    text=$(printf '#include "%s"\n#include "%s"\nint not_empty;\n' "$name" "$name")
    out=$("${TEST_CC:-cc}" -std=c11 $flags $dirs -x c - <<<"$text" 2>&1)
    verdict $? "$name is C11 on its own" "$out"
    case $h in libfsdp/* | launcher/include/fsdp/* | ckpt/*) ;; *) continue ;; esac
    if ! command -v c++ >/dev/null; then
        n=$((n + 1))
        echo "ok $n # SKIP no C++ compiler"
        continue
    fi
    out=$(c++ -std=c++11 $flags -Wno-missing-field-initializers $dirs -x c++ - <<<"$text" 2>&1)
    verdict $? "$name is C++ on its own" "$out"
done
echo "1..$n"
exit $bad
