#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Recipes of others' build systems: EasyBuild's own parser reads its file, and all are of this version and
# headed 'not built' as long as nobody has built them.
# run: timeout=1800
cd "$TOP" || exit 1
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
version=$(sed -n 's/^#define FSDP_VERSION_STRING "\(.*\)"/\1/p' libfsdp/include/fsdp/base.h)
recipe=$(echo packaging/easybuild/*.eb)
cat >"$TEST_TMP/read.py" <<'END'
import sys
from easybuild.framework.easyconfig.parser import EasyConfigParser
c = EasyConfigParser(sys.argv[1]).get_config_dict()
print(c["name"], c["version"], c["toolchain"]["name"], c["easyblock"], len(c["dependencies"]) > 8)
END
scripts/with_python.sh eb bash -c '"$EB_PYTHON" "$0" "$1"' "$TEST_TMP/read.py" "$recipe" >"$TEST_TMP/log" 2>&1 &&
    [ "$(tail -n 1 "$TEST_TMP/log")" = "libfsdp $version foss ConfigureMake True" ]
ok $? "EasyBuild reads its recipe"
python3 -m py_compile packaging/spack/package.py >"$TEST_TMP/log" 2>&1
ok $? "Spack's recipe is Python"
rm -rf packaging/spack/__pycache__
for file in packaging/spack/package.py packaging/easybuild/*.eb packaging/apptainer.def; do
    head -n 3 "$file" | grep -q '^# NOT BUILT' && grep -q "$version" "$file"
    ok $? "${file#packaging/} is of version $version and headed 'not built'"
done
head -n 4 packaging/fsdp.spec | grep -q 'NOT INSTALLED ON FEDORA' && grep -q "fsdp_version $version" packaging/fsdp.spec
ok $? "the spec is of version $version and says where it was not installed"
echo "1..$n"
exit $bad
