#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# docs/tutorials/chats.md: every command, as it stands there, and what it prints.
# run: long
# run: timeout=900
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/tutorial.sh"
command -v bible >/dev/null || { echo "1..0 # SKIP the text is missing: scripts/deps.sh demo"; exit 0; }
export XDG_CACHE_HOME=$PWD/cache
tutorial_tree
# The demo as it is, but no longer than the tutorial needs, and without building what is built.
cat >setup.sh <<'MAKE'
make() { [ "$*" = demo-text ] && DEMO_STEPS=60 BIN=$PWD/build/bin scripts/demo_text.sh; }
MAKE
tutorial_run "$TOP/docs/tutorials/chats.md"
ok "$([ "$n" -ge 14 ]; echo $?)" "the page has its commands"
echo "1..$n"
exit $bad
