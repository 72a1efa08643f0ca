#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What `make install` leaves is complete: programs that run, manual pages, headers and libraries that a
# program of somebody else's builds on, shared and static; and `make uninstall` takes it away again.
cd "$TOP" || exit 1

if [ -n "${TEST_SANITIZER:-}" ]; then
    echo "1..0 # SKIP a sanitizer's build is not installed"
    exit 0
fi

n=0 bad=0
ok() { # status, text
    n=$((n + 1))
    if [ "$1" = 0 ]; then
        echo "ok $n - $2"
    else
        echo "not ok $n - $2"
        bad=1
    fi
}

# Its own build folder: this test must not rebuild what other tests are running.
root=$TEST_TMP/root prefix=/opt/fsdp
args=(B="$TEST_TMP/build" PREFIX=$prefix DESTDIR="$root")
make "${args[@]}" install >"$TEST_TMP/log" 2>&1
ok $? "make install"
[ $bad = 0 ] || sed 's/^/# /' "$TEST_TMP/log"

lib=$root$prefix/lib
export PKG_CONFIG_PATH=$lib/pkgconfig
for program in "$root$prefix"/bin/*; do
    name=$(basename "$program")
    "$program" --help >"$TEST_TMP/help" 2>&1 && grep -q "$name" "$TEST_TMP/help"
    ok $? "$name --help runs"
    test -f "$root$prefix/share/man/man1/$name.1"
    ok $? "$name has a manual page"
done
CKPT_FAULT=fail:1 "$root$prefix/bin/ckpt-info" tests/data/llama-tiny >/dev/null
ok $? "installed programs ignore the fault injection of the tests"
[ "$(readlink "$lib/libfsdp.so.0")" = "libfsdp.so.$(pkg-config --modversion fsdp)" ]
ok $? "pkg-config's version is the library's"

cat >"$TEST_TMP/user.c" <<'END'
#include <stdio.h>
#include <ckpt/ckpt.h>
#include <fsdp/fsdp.h>
int main(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_device *device;
    if (fsdp_device_open(&device, "cpu", 0, &err) != FSDP_OK)
        return 1;
    fsdp_device_close(device);
    printf("%016llX\n", (unsigned long long)ckpt_crc64(0, "123456789", 9));
    return 0;
}
END
pc() { pkg-config --define-variable=prefix="$root$prefix" --define-variable=libdir="$lib" "$@"; }
cc -o "$TEST_TMP/shared" "$TEST_TMP/user.c" $(pc --cflags ckpt) $(pc --libs --static ckpt) &&
    [ "$(LD_LIBRARY_PATH=$lib "$TEST_TMP/shared")" = 995DC9BBDF1939FA ]
ok $? "a program builds on the installed tree"
readelf -d "$TEST_TMP/shared" | grep -q 'NEEDED.*libfsdp.so.0'
ok $? "it needs libfsdp by its soname"
export LD_LIBRARY_PATH=$lib
launch=$root$prefix/bin/fsdp-launch
cc -Wall -Wextra -Werror -o "$TEST_TMP/mlp" examples/mlp/mlp.c $(pc --cflags --libs fsdp-launch) -lm &&
    "$TEST_TMP/mlp" >"$TEST_TMP/one" && "$launch" -n 3 -- "$TEST_TMP/mlp" >"$TEST_TMP/three" &&
    grep -q '^step 299' "$TEST_TMP/one" &&
    [ "$(sed 's/ gradient.*//' "$TEST_TMP/one")" = "$(sed 's/ gradient.*//' "$TEST_TMP/three")" ]
ok $? "the example of a model of one's own builds by pkg-config alone, and learns the same on 3 ranks"
cc -O2 -Wall -Wextra -Werror -o "$TEST_TMP/blocks" examples/blocks/blocks.c $(pc --cflags --libs fsdp-launch) -lm &&
    "$launch" -n 2 -- "$TEST_TMP/blocks" -w 32 -s 5 | grep -q '^step   4'
ok $? "so does the example of blocks"
cc -DGRADCHECK -Imodels/check -o "$TEST_TMP/mlp" examples/mlp/mlp.c models/check/gradcheck.c \
    $(pc --cflags --libs fsdp-launch) -lm && "$TEST_TMP/mlp" check >/dev/null
ok $? "it checks its own gradients"
unset LD_LIBRARY_PATH
foreign=$(for f in "$lib"/*.a; do nm -A -g --defined-only "$f"; done | awk 'NF >= 3 && $NF !~ /^(fsdp|ckpt)_/')
foreign+=$(for f in "$lib"/*.so; do nm -A -D --defined-only "$f"; done | awk '$NF !~ /^(fsdp|ckpt)_/ && $(NF - 1) != "A"')
[ -z "$foreign" ] || sed 's/^/# /' <<<"$foreign"
[ -z "$foreign" ] && [ "$(nm -g --defined-only "$lib/libfsdp.a" | grep -c ' T fsdp_')" -gt 100 ]
ok $? "every symbol that a library shows begins with fsdp_ or ckpt_"
rm -f "$lib"/libfsdp.so* "$lib"/libfsdp-launch.so*
cc -o "$TEST_TMP/mlp" examples/mlp/mlp.c $(pc --cflags --libs --static fsdp-launch) -lm &&
    [ "$("$launch" -n 2 -- "$TEST_TMP/mlp" | sed 's/ gradient.*//')" = "$(sed 's/ gradient.*//' "$TEST_TMP/one")" ]
ok $? "the same with the static libraries, under fsdp-launch"
cc -o "$TEST_TMP/static" "$TEST_TMP/user.c" $(pc --cflags ckpt) $(pc --libs --static ckpt) &&
    [ "$("$TEST_TMP/static")" = 995DC9BBDF1939FA ]
ok $? "a program of checkpoints with the static libraries"

make "${args[@]}" uninstall >/dev/null 2>&1
left=$(find "$root" -type f -o -type l)
[ -z "$left" ]
ok $? "make uninstall leaves nothing"
[ -z "$left" ] || sed 's/^/# /' <<<"$left"

echo "1..$n"
exit $bad
