#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The wheel in a fresh environment: what it needs of a machine, its programs, and the module without NumPy and PyTorch.
# run: timeout=300
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/wheel/lib/wheel.sh"
need_wheel
checkpoint=$TOP/tests/data/llama-tiny
make_env env python3
ok $? "pip installs it from its file, without a network"
site=$(env/bin/python -c 'import fsdp_ckpt, os; print(os.path.dirname(fsdp_ckpt.__file__))' 2>log)
[[ $site == "$PWD"/env/* ]]
ok $? "the module is the installed one"

if [ -n "${WHEEL_PYTHON:-}" ]; then
    "$WHEEL_PYTHON" -m auditwheel show "$wheel" >log 2>&1
    [[ $(tr '\n' ' ' <log) == *'consistent with'*'"manylinux_2_28_x86_64"'* ]]
    ok $? "auditwheel: it is a manylinux_2_28"
fi
elf=("$site"/libckpt.so.0 "$site"/bin/*)
newest=$(objdump -T "${elf[@]}" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
[ "$(printf '%s\n' GLIBC_2.28 "$newest" | sort -V | tail -n 1)" = GLIBC_2.28 ]
ok $? "no symbol is newer than glibc 2.28: $newest"
foreign=$(objdump -p "${elf[@]}" | awk '$1 == "NEEDED" { print $2 }' | sort -u | grep -v -x -E 'lib(c|m|dl|rt|pthread)\.so\.[0-9]+|libckpt\.so\.0|ld-linux-x86-64\.so\.2')
[ -z "$foreign" ]
ok $? "it needs the C library alone $foreign"
others=$(nm -D --defined-only "$site/libckpt.so.0" | awk '{ print $3 }' | grep -v -E '^(ckpt|fsdp)_')
[ -z "$others" ] && [ "$(nm -D --defined-only "$site/libckpt.so.0" | grep -c ' ckpt_')" -ge 80 ]
ok $? "the library shows its own names alone $others"
[ -z "$(grep -a -o -F "$TOP" "${elf[@]}" | head -n 1)" ]
ok $? "no path of the machine that built it is in it"

mkdir other && cd other || exit 1
for program in "$BIN"/ckpt-*; do
    name=${program##*/}
    ../env/bin/"$name" --version >log 2>&1 && [[ $(head -n 1 log) == "$name "* ]]
    ok $? "$name runs"
    [ -s "../env/share/man/man1/$name.1" ]
    ok $? "$name has a manual page"
done
cmp <(../env/bin/ckpt-info --json "$checkpoint") <("$BIN/ckpt-info" --json "$checkpoint") >log 2>&1
ok $? "ckpt-info says what this tree's says"
../env/bin/ckpt-info absent >log 2>&1
[ $? = 1 ]
ok $? "a failure's exit status is the program's"
../env/bin/python -m fsdp_ckpt merge "$checkpoint" -o by-module.safetensors >log 2>&1 && [ -f by-module.safetensors ]
ok $? "python -m fsdp_ckpt merge"
../env/bin/python -m fsdp_ckpt nothing >log 2>&1
[ $? = 1 ] && grep -q 'one of: cp, diff, info, merge, reshard, verify' log
ok $? "another program is refused, and lists them"
"$BIN/ckpt-merge" "$checkpoint" -o ours.safetensors >log 2>&1 && cmp ours.safetensors by-module.safetensors >>log
ok $? "it writes the bytes that this tree's ckpt-merge writes"
for library in curl expat jansson libisal libzstd openssl; do
    [ -s "$(echo ../env/lib/python3*/site-packages/fsdp_ckpt-*.dist-info/licenses/$library.txt)" ]
    ok $? "the licence of $library is in it"
done

../env/bin/python -I "$TOP/tests/wheel/bare.py" "$checkpoint" >lines 2>err
status=$?
ok_lines lines
ok $status "the module without NumPy and PyTorch"
mkdir options && (cd options && ../../env/bin/python -I -B "$TOP/tests/wheel/options.py" "$TOP" "$BIN") >lines 2>err
status=$?
ok_lines lines
ok $status "its options"
../env/bin/python -I "$TOP/tests/wheel/structures.py" "$TOP" "${TEST_CC:-cc}" >log 2>&1
ok $? "its structures are the headers': $(tail -n 1 log)"
echo "1..$n"
exit $bad
