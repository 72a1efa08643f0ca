#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What `make install` leaves is complete: programs that run, manual pages, headers and libraries that a
# program of somebody else's builds on, shared and static, with every path filled in; and `make uninstall`
# takes it away again, and nothing else.
# run: long
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
root="$TEST_TMP/a root" prefix=/opt/fsdp
mkdir "$root" && ln -s "$root" "$TEST_TMP/root"
args=(B="$TEST_TMP/build" PREFIX=$prefix DESTDIR="$root")
root=$TEST_TMP/root # a name that pkg-config's output may have
refused() { # pattern, text, make's arguments
    local pattern=$1 text=$2
    shift 2
    make uninstall "$@" >"$TEST_TMP/log" 2>&1
    [ $? = 2 ] && grep -q -e "$pattern" "$TEST_TMP/log"
    ok $? "$text"
}
refused 'begin with a slash' "a relative PREFIX is refused" PREFIX=opt/fsdp
refused 'letters, digits' "and one with a blank" PREFIX="/opt/f sdp"
refused 'letters, digits' "and one with a colon, which PATH takes apart" PREFIX=/opt/f:sdp
refused 'nothing is installed' "what was never installed is not removed" "${args[@]}" DESTDIR="$TEST_TMP"
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
    "$program" --version >"$TEST_TMP/version" 2>&1 &&
        [ "$(head -n 1 "$TEST_TMP/version")" = "$name $(pkg-config --modversion fsdp)" ] &&
        grep -q -E '^[+-]pmix [+-]hwloc [+-]zstd [+-]curl [+-]dnnl [+-]mpi [+-]cuda .*(GCC|Clang) [0-9]' "$TEST_TMP/version"
    ok $? "$name --version has the version and the build's options"
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
[ "$(readelf -d "$TEST_TMP/shared" | grep -c -E 'NEEDED.*lib(fsdp|ckpt).so.0')" = 2 ]
ok $? "it needs libfsdp and libckpt by their sonames"
absent=none
"$BIN/ckpt-info" --version | grep -q -e -curl && absent=ckpt_store_s3
diff <(nm -D --defined-only "$lib/libckpt.so" | awk '{ print $3 }' | sort) \
    <(cat ckpt/include/ckpt/*.h ckpt/include/ckpt/sys/*.h | sed 's@/\*.*\*/@@' |
        grep -h -o -E '\bckpt_[a-z0-9_]+\(|extern const .*;' | sed -E 's/.* //; s/[(;]//' | grep -v '_f$' | grep -v -x "$absent" | sort -u) >"$TEST_TMP/log"
ok $? "libckpt.so has the functions of its headers, and no other"
sed 's/^/# /' "$TEST_TMP/log"
data=$root$prefix/share/fsdp
left=$(grep -r -I -l -E '@(PREFIX|LIBDIR|VERSION|PKGS|LIBS)@' "$root/opt")
[ -z "$left" ]
ok $? "every path and version is filled in"
[ -z "$left" ] || sed 's/^/# /' <<<"$left"
grep -q "\"libfsdp $(pkg-config --modversion fsdp)\"" "$root$prefix"/share/man/man1/fsdp-launch.1
ok $? "manual pages name the version"
grep -q "'$prefix'" "$data/slurm/env.sh" && bash -n "$data/slurm/env.sh"
ok $? "env.sh knows where the programs are"
[ -n "$(find "$root/opt" -name 'fsdp-launch.bash' -o -path '*/completions/fsdp-launch')" ] ||
    ! "$root$prefix/bin/fsdp-launch" --completion bash >/dev/null 2>&1
ok $? "completions are installed where programs have them"
broken=$(cd "$root$prefix/share/doc/fsdp" && for doc in *.md docs/*.md; do
    while read -r link; do
        [ -e "$(dirname "$doc")/$link" ] || echo "$doc: $link"
    done < <(grep -o -E '\]\([^)#:]+\)' "$doc" | tr -d '])(')
done | grep -v -E ': (\.\./)*(libfsdp|launcher|ckpt|models|tests|scripts|\.ci)/')
[ -z "$broken" ]
ok $? "links between installed documents lead somewhere"
[ -z "$broken" ] || sed 's/^/# /' <<<"$broken"
export LD_LIBRARY_PATH=$lib
launch=$root$prefix/bin/fsdp-launch
cc -Wall -Wextra -Werror -o "$TEST_TMP/mlp" "$data/examples/mlp/mlp.c" $(pc --cflags --libs fsdp-launch) -lm &&
    "$TEST_TMP/mlp" >"$TEST_TMP/one" && "$launch" -n 3 -- "$TEST_TMP/mlp" >"$TEST_TMP/three" &&
    grep -q '^step 299' "$TEST_TMP/one" &&
    [ "$(sed 's/ gradient.*//' "$TEST_TMP/one")" = "$(sed 's/ gradient.*//' "$TEST_TMP/three")" ]
ok $? "the example of a model of one's own builds by pkg-config alone, and learns the same on 3 ranks"
cc -O2 -Wall -Wextra -Werror -o "$TEST_TMP/blocks" "$data/examples/blocks/blocks.c" $(pc --cflags --libs fsdp-launch) -lm &&
    "$launch" -n 2 -- "$TEST_TMP/blocks" -w 32 -s 5 | grep -q '^step   4'
ok $? "so does the example of blocks"
cc -DGRADCHECK -I"$data/examples/gradcheck" -o "$TEST_TMP/mlp" "$data/examples/mlp/mlp.c" "$data/examples/gradcheck/gradcheck.c" \
    $(pc --cflags --libs fsdp-launch) -lm && "$TEST_TMP/mlp" check >/dev/null
ok $? "it checks its own gradients"
unset LD_LIBRARY_PATH
foreign=$(for f in "$lib"/*.a; do nm -A -g --defined-only "$f"; done | awk 'NF >= 3 && $NF !~ /^(fsdp|ckpt)_/')
foreign+=$(for f in "$lib"/*.so; do nm -A -D --defined-only "$f"; done | awk '$NF !~ /^(fsdp|ckpt)_/ && $(NF - 1) != "A"')
[ -z "$foreign" ] || sed 's/^/# /' <<<"$foreign"
[ -z "$foreign" ] && [ "$(nm -g --defined-only "$lib/libfsdp.a" | grep -c ' T fsdp_')" -gt 100 ]
ok $? "every symbol that a library shows begins with fsdp_ or ckpt_"
mkdir "$TEST_TMP/kept" && mv "$lib"/lib*.so* "$TEST_TMP/kept"
cc -o "$TEST_TMP/mlp" "$data/examples/mlp/mlp.c" $(pc --cflags --libs --static fsdp-launch) -lm &&
    [ "$("$launch" -n 2 -- "$TEST_TMP/mlp" | sed 's/ gradient.*//')" = "$(sed 's/ gradient.*//' "$TEST_TMP/one")" ]
ok $? "the same with the static libraries, under fsdp-launch"
cc -o "$TEST_TMP/static" "$TEST_TMP/user.c" $(pc --cflags ckpt) $(pc --libs --static ckpt) &&
    [ "$("$TEST_TMP/static")" = 995DC9BBDF1939FA ]
ok $? "a program of checkpoints with the static libraries"

mv "$TEST_TMP/kept"/* "$lib"

# A site's changes outlive an update, and a removal takes nothing of other people's.
echo 'FSDP_SRUN_ARGS=--exclusive' >>"$data/slurm/env.sh"
echo theirs >"$TEST_TMP/theirs"
ln -sf "$TEST_TMP/theirs" "$root$prefix/bin/ckpt-info"
ln -s "$TEST_TMP/theirs" "$lib/libother.so"
mkdir -p "$root/opt/other"
make "${args[@]}" install >"$TEST_TMP/log" 2>&1 && tail -n 1 "$data/slurm/env.sh" | grep -q exclusive &&
    [ -f "$data/slurm/env.sh.new" ] && grep -q 'env.sh was changed, and stays' "$TEST_TMP/log"
ok $? "an update keeps the env.sh that a site has edited"
make "${args[@]}" install >"$TEST_TMP/log" 2>&1 && tail -n 1 "$data/slurm/env.sh" | grep -q exclusive
ok $? "so does the next one"
[ "$(cat "$TEST_TMP/theirs")" = theirs ] && [ ! -L "$root$prefix/bin/ckpt-info" ]
ok $? "it replaces a link, and not the file behind it"
rm "$root$prefix/bin/ckpt-info" && ln -s "$TEST_TMP/theirs" "$root$prefix/bin/ckpt-info"
make "${args[@]}" uninstall >"$TEST_TMP/log" 2>&1 && grep -q 'bin/ckpt-info was changed' "$TEST_TMP/log"
ok $? "make uninstall names what it leaves"
[ "$(cd "$root" && find . ! -type d | sort | paste -sd ' ')" = \
    "./opt/fsdp/bin/ckpt-info ./opt/fsdp/lib/libother.so ./opt/fsdp/share/fsdp/slurm/env.sh" ] && [ -s "$TEST_TMP/theirs" ]
ok $? "it leaves other people's files and links, and changed ones"
find "$root/opt" ! -type d | sed 's/^/# /'
make "${args[@]}" DESTDIR="$(realpath --relative-to=. "$TEST_TMP")/rel" install uninstall >"$TEST_TMP/log" 2>&1
ok $? "a relative DESTDIR: installed and removed"
left=$(find "$TEST_TMP/rel" -mindepth 1)
[ -z "$left" ]
ok $? "make uninstall leaves nothing, not even a folder"
[ -z "$left" ] || sed 's/^/# /' <<<"$left"

echo "1..$n"
exit $bad
