# SPDX-License-Identifier: Apache-2.0
# Sourced by deb12.sh and deb13.sh: builds the packages in a clean root of a release (suite), installs them in a
# fresh one, where Depends alone brings what they need, and runs the programs there as a user would.
cd "$TOP" || exit 1
skip() {
    echo "1..0 # SKIP $1"
    exit 0
}
[ "$(id -u)" = 0 ] || skip "clean roots need root"
command -v mmdebstrap >/dev/null || skip "mmdebstrap is missing"
unshare --mount --pid --fork true 2>/dev/null || skip "no namespaces may be made here"

n=0 bad=0
ok() { # status, text
    n=$((n + 1))
    if [ "$1" = 0 ]; then
        echo "ok $n - $2"
    else
        echo "not ok $n - $2"
        bad=1
        [ ! -s "$TEST_TMP/log" ] || tail -n 30 "$TEST_TMP/log" | sed 's/^/# /'
    fi
}
root=$TEST_TMP/root
at_end() { [ ! -d "$root" ] || scripts/root.sh remove "$root"; }
trap at_end EXIT
in_root() { nice -n "${PACKAGES_NICE:-10}" scripts/root.sh enter --bind "$TEST_TMP/share:/share" "$root" bash -c "$1" >"$TEST_TMP/log" 2>&1; }

mkdir -p "$TEST_TMP/share"
version=$(sed -n 's/^#define FSDP_VERSION_STRING "\(.*\)"/\1/p' libfsdp/include/fsdp/base.h)
archive=$(scripts/dist.sh "$version" "$TEST_TMP/share")
ok $? "the source archive"

scripts/root.sh make "$suite" "$root" >"$TEST_TMP/log" 2>&1
ok $? "a clean root of $suite"
in_root "cd /root && tar -xzf /share/${archive##*/} && cd libfsdp-$version && make" # there is no compiler
[ $? != 0 ] && grep -q '^missing: gcc' "$TEST_TMP/log" && grep -q 'make deps' "$TEST_TMP/log"
ok $? "make says that a compiler and libraries are missing, and what to type"
in_root "cd /root/libfsdp-$version && make deb"
[ $? != 0 ] && grep -q 'apt-get install build-essential' "$TEST_TMP/log"
ok $? "make deb says what it needs itself"
in_root 'apt-get update && apt-get install -y --no-install-recommends build-essential debhelper fakeroot'
ok $? "that can be installed"
in_root "cd /root/libfsdp-$version && make deb"
[ $? != 0 ] && grep -q "apt-get build-dep /root" "$TEST_TMP/log"
ok $? "then make deb says which libraries are missing"
in_root "$(sed -n 's/.*installs them with: //p' "$TEST_TMP/log") -y --no-install-recommends"
ok $? "the command that it names installs them"
in_root "cd /root/libfsdp-$version && make deb && cp build/dist/deb/*.deb /share"
ok $? "make deb"
debs=$(cd "$TEST_TMP/share" && ls ./*.deb 2>/dev/null | sed 's/_.*//; s/^..//' | paste -sd ' ')
[ "$debs" = "ckpt-tools fsdp-launch libfsdp-dev libfsdp-mpi libfsdp0" ]
ok $? "five packages: $debs"
[ $bad = 0 ] || { echo "1..$n"; exit 1; }
mkdir -p build/dist/deb-$suite && cp "$TEST_TMP/share"/*.deb "build/dist/deb-$suite"
if command -v lintian >/dev/null; then
    lintian --allow-root --fail-on error "$TEST_TMP/share"/*.deb >"$TEST_TMP/log" 2>&1
    ok $? "lintian finds no error"
else
    n=$((n + 1))
    echo "ok $n # SKIP no lintian"
fi

scripts/root.sh remove "$root" && scripts/root.sh make "$suite" "$root" >"$TEST_TMP/log" 2>&1
ok $? "a fresh root"
in_root 'apt-get update && apt-get install -y --no-install-recommends /share/ckpt-tools_*.deb && ckpt-info --version &&
    ! command -v fsdp-launch'
ok $? "ckpt-tools alone"
in_root 'dpkg -l | grep -q -E "^ii +lib(openblas|openmpi|pmix)"'
[ $? != 0 ]
ok $? "it brings neither BLAS nor MPI"
in_root 'apt-get install -y --no-install-recommends /share/fsdp-launch_*.deb /share/libfsdp-mpi_*.deb && fsdp-launch --version'
ok $? "fsdp-launch and libfsdp-mpi"
grep -q '+pmix +hwloc +zstd +curl .* +mpi -cuda' "$TEST_TMP/log"
ok $? "with PMIx, hwloc, zstd, curl and MPI"
config=/usr/share/fsdp/examples/llama-tiny.yaml
in_root "cd && fsdp-launch -n 2 $config train.steps=6 train.global_batch_size=8 checkpoint.path=ckpt checkpoint.interval=3 &&
    ckpt-verify ckpt && ckpt-info ckpt && ckpt-merge ckpt -o merged && ls merged/*.safetensors &&
    fsdp-generate --model merged --prompt 'The ' --max-tokens 8"
ok $? "the example trains on two ranks, without the source tree; its checkpoint is verified, merged, and generates"
in_root "cd && fsdp-launch -n 3 $config train.steps=8 train.global_batch_size=8 checkpoint.path=ckpt | grep -q 'step *8/8'"
ok $? "it resumes on three"
cp tests/house/readme.sh "$TEST_TMP/share"
in_root 'cd && mkdir -p first/t && cd first && bash -c "$(sed -n "s/^    \(ln -s .*\)/\1/p" /usr/share/doc/fsdp/README.md)" &&
    TOP=$PWD BIN=/usr/bin TEST_TMP=$PWD/t bash /share/readme.sh'
ok $? "the links that README names, and its first job"
in_root "test \"\$(ls /usr/lib/*/fsdp/libfsdp-mpi.so | wc -l)\" = 1 && cd &&
    fsdp-launch $config train.steps=1 train.global_batch_size=8 fsdp.backend=mpi checkpoint.path= 2>&1 | tee /dev/stderr | grep -v 'there is no libfsdp-mpi'"
ok $? "the plug-in for MPI is found"
in_root 'zcat -f /usr/share/man/man1/fsdp-launch.1* | grep -q "^.SH" && zcat -f /usr/share/man/man1/ckpt-merge.1* | grep -q "^.SH"'
ok $? "manual pages"
in_root '. /usr/share/fsdp/slurm/env.sh && command -v fsdp-launch && ls /usr/share/fsdp/slurm/train.sbatch \
    /usr/share/fsdp/modulefiles/lua/fsdp/*.lua /usr/share/doc/fsdp/docs/install.md'
ok $? "scripts for Slurm, modulefiles, documents"
in_root 'ls /usr/share/bash-completion/completions/ckpt-merge /usr/share/zsh/vendor-completions/_ckpt-merge \
    /usr/share/fish/vendor_completions.d/ckpt-merge.fish'
ok $? "completions"
in_root 'apt-get install -y --no-install-recommends gcc libc6-dev pkgconf /share/libfsdp0_*.deb /share/libfsdp-dev_*.deb && cd &&
    cp -r /usr/share/fsdp/examples/mlp /usr/share/fsdp/examples/gradcheck . && cd mlp &&
    cc -DGRADCHECK -I../gradcheck -o mlp mlp.c ../gradcheck/gradcheck.c $(pkg-config --cflags --libs fsdp-launch) -lm &&
    ./mlp check && fsdp-launch -n 2 -- ./mlp &&
    printf "#include <ckpt/ckpt.h>\nint main(void) { return ckpt_crc64(0, \"123456789\", 9) != 0x995DC9BBDF1939FA; }\n" >c.c &&
    cc -o c c.c $(pkg-config --cflags --libs ckpt) && ./c'
ok $? "an example and a program of checkpoints build by pkg-config, and run"
in_root 'apt-get purge -y fsdp-launch ckpt-tools libfsdp0 libfsdp-dev libfsdp-mpi && ! ls /usr/bin | grep -E "^(fsdp|ckpt)-" &&
    ! ls -d /usr/share/fsdp /usr/include/fsdp'
ok $? "removal leaves nothing"
echo "1..$n"
exit $bad
