#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make rpm, and rpmlint over what it makes. On Debian the dependencies' names cannot be checked.
# run: timeout=2400
cd "$TOP" || exit 1
for program in rpmbuild rpmlint rpm2cpio cpio; do
    command -v $program >/dev/null || { echo "1..0 # SKIP $program is missing"; exit 0; }
done
n=0 bad=0
ok() { # status, text
    n=$((n + 1))
    if [ "$1" = 0 ]; then
        echo "ok $n - $2"
    else
        echo "not ok $n - $2"
        bad=1
        tail -n 30 "$TEST_TMP/log" | sed 's/^/# /'
    fi
}
nice -n 10 make rpm >"$TEST_TMP/log" 2>&1
ok $? "make rpm"
names=$(for f in build/dist/rpm/*.rpm; do rpm -qp --qf '%{NAME} ' "$f" 2>/dev/null; done)
[ "$names" = "ckpt-tools fsdp fsdp-devel fsdp-libs " ]
ok $? "four packages: $names"
# What Fedora does not ask of a package that is built outside its own system (signatures), or no longer
# (ldconfig, the old hash section), and what this machine's rpmlint does not know (the licence's name).
cat >"$TEST_TMP/rpmlint.toml" <<'END'
Filters = ["no-signature", "no-packager-tag", "no-group-tag", "invalid-license", "invalid-url", "no-buildhost-tag",
  "no-url-tag", "spelling-error", "no-changelogname-tag", "unable-to-read", "library-without-ldconfig", "missing-hash-section",
  "outside-libdir-files /usr/share/licenses", "static-library-without-debuginfo",
  "not-standard-release-extension"]
END
rpmlint -c "$TEST_TMP/rpmlint.toml" build/dist/rpm/*.rpm 2>&1 | grep -v ': W: ' >"$TEST_TMP/log"
grep -q '4 packages and 0 specfiles checked; 0 errors' "$TEST_TMP/log"
ok $? "rpmlint finds no error but those that Fedora does not ask"
mkdir "$TEST_TMP/root" && for f in build/dist/rpm/*.rpm; do rpm2cpio "$f" | (cd "$TEST_TMP/root" && cpio -id --quiet); done
"$TEST_TMP/root/usr/bin/ckpt-info" --version >"$TEST_TMP/log" 2>&1 && "$TEST_TMP/root/usr/bin/fsdp-launch" --version >>"$TEST_TMP/log" 2>&1
ok $? "the programs run, unpacked"
echo "1..$n"
exit $bad
