#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# docs/tutorials/own-model.md: every command, as it stands there, and what it prints.
# run: timeout=300
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/tutorial.sh"
tutorial_tree
# Installed from the tree that was built.
cat >setup.sh <<MAKE
make() { [ "\$1" = install ] && command make -s -C "$TOP" "\$@" >/dev/null; }
MAKE
tutorial_run "$TOP/docs/tutorials/own-model.md"
ok "$([ "$n" -ge 11 ]; echo $?)" "the page has its commands"
echo "1..$n"
exit $bad
