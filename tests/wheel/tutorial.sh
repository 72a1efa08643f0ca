#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# docs/python.md: every command, as it stands there, and what it prints, with the wheel in a fresh environment.
# run: timeout=600
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/tutorial.sh"
. "$TOP/tests/wheel/lib/wheel.sh"
need_wheel
need_torch
mkdir -p tree/build && ln -s "$TOP/build/dist" tree/build/dist
# The wheel is built, and PyTorch is the one that is here.
cat >setup.sh <<END
make() { [ "\$*" = wheel ]; }
python3() { "$TORCH_PYTHON" "\$@"; }
pip() {
    [ "\$1 \$2 \$3" = "install torch numpy" ] && shift 3 && command pip install --quiet --no-index "\$@" &&
        "$TORCH_PYTHON" "$TOP/tests/wheel/lib/borrow.py" "\$VIRTUAL_ENV/bin/python"
}
END
tutorial_run "$TOP/docs/python.md"
ok "$([ "$n" -ge 11 ]; echo $?)" "the page has its commands"
echo "1..$n"
exit $bad
