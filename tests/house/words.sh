#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Words that make a reader read a sentence twice, and what docs/style.md says instead.
cd "$TOP" || exit 1
n=0 bad=0
check() { # text, offenders
    n=$((n + 1))
    if [ -z "$2" ]; then
        echo "ok $n - $1"
    else
        echo "not ok $n - $1"
        sed 's/^/# /' <<<"$2"
        bad=1
    fi
}
words='\b([Bb]y lot|[Bb]y chance|gone on with|[Gg]oes on|[Gg]o on|[Mm]ends?|[Bb]eside|how far they went|[Ww]hat is gathered|knows? no)\b'
files() {
    find libfsdp launcher ckpt models python examples packaging scripts slurm docs tests README.md CHANGELOG.md SECURITY.md NOTICE CONTRIBUTING.md Makefile -type f \
        \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.sh' -o -name '*.md' -o -name '*.py' -o \
        -name '*.yaml' -o -name '*.sbatch' -o -name '*.[0-9]' -o -name Makefile \) \
        ! -path 'tests/data/*' ! -path 'docs/style.md' ! -path 'tests/house/words.sh'
}
check "no word of the list" "$(files | sort | xargs grep -nE "$words")"
broken='\b([Bb]y|[Gg]o|[Gg]oes|gone|[Ww]hat is|knows?) *\n[ */#]*(lot|chance|on|gathered|no)\b'
check "nor over the end of a line" "$(files | sort | xargs grep -lPz "$broken")"
check "it is the list of docs/style.md" "$(for word in 'goes on' beside 'by lot' 'by chance' mend 'what is gathered' \
    'how far they went' 'knows no'; do
    grep -q "^| .*$word.* |" docs/style.md || echo "$word"
done)"
check "one would be found" "$(echo 'the lane goes on beside it' | grep -qE "$words" || echo none
    printf ' * the lane goes\n * on\n' | grep -qPz "$broken" || echo 'none over two lines')"
echo "1..$n"
exit $bad
