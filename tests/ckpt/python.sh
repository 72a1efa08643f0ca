#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The module python/fsdp_ckpt declares what the headers declare, refuses a library that was built of others, and writes
# what the programs write. It is used from the source tree, without NumPy and PyTorch (tests/wheel has those).
. "$TOP/tests/lib/tap.sh"
skip() {
    echo "1..0 # SKIP $1"
    exit 0
}
[ -z "${TEST_SANITIZER:-}${TEST_EMULATOR:-}" ] || skip "Python cannot open a library of this build"
lib=$BIN/../lib
[ -e "$lib/libckpt.so" ] || skip "there is no $lib/libckpt.so"
cc=${TEST_CC:-cc}
export LD_LIBRARY_PATH=$lib PYTHONPATH=$TOP/python FSDP_CKPT_LIBRARY=$lib/libckpt.so PYTHONDONTWRITEBYTECODE=1
python3 "$TOP/tests/wheel/structures.py" "$TOP" "$cc" >log 2>&1
ok $? "the module's structures are the headers': $(tail -n 1 log)"

# ---- another library ----------------------------------------------------------------------------

# The library but for one function.
other() { # name, C
    echo "#include <ckpt/ckpt.h>
$2" >"$1.c"
    $cc -shared -fPIC -I"$TOP/ckpt/include" -I"$TOP/libfsdp/include" -o "$1.so" "$1.c" -Wl,--no-as-needed -L"$lib" -lckpt >log 2>&1
}
refused() { # name, what its message must have
    FSDP_CKPT_LIBRARY=$PWD/$1.so python3 -c 'import fsdp_ckpt' >log 2>&1
    [ $? = 1 ] && grep -q "^ImportError: '$PWD/$1.so' is not the library of this module: $2" log
}
other same '' && FSDP_CKPT_LIBRARY=$PWD/same.so python3 -c 'import fsdp_ckpt' >log 2>&1
ok $? "a library with the same structures is taken"
other sizes 'size_t ckpt_struct_nbytes(const char *name) { return sizeof *name; }' &&
    refused sizes 'its struct fsdp_err has 1 bytes'
ok $? "one with other structures is refused, by the structure"
other version 'void ckpt_reshard_args_init(struct ckpt_reshard_args *out) { out->version = 77; }' &&
    refused version 'its struct ckpt_reshard_args has version 77'
ok $? "one of another version is refused"
echo 'int nothing;' >older.c && $cc -shared -fPIC -o older.so older.c >log 2>&1 &&
    refused older 'it has no function ckpt_struct_nbytes'
ok $? "one without a function of the module's is refused, by the function"

# ---- what it writes -----------------------------------------------------------------------------

export FSDP_CKPT_LIBRARY=$lib/libckpt.so
mkdir options && (cd options && python3 "$TOP/tests/wheel/options.py" "$TOP" "$BIN") >lines 2>err
status=$?
ok_lines lines
ok $status "options.py comes to its end"

echo "1..$n"
exit $bad
