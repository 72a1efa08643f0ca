#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The wheel on Debian 11 (glibc 2.31, Python 3.9, pip 20.3), which has no compiler, no certificates and none of its
# libraries: it installs, its programs and its module work, and certificates are found where RHEL has them, too.
# run: timeout=900
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/wheel/lib/wheel.sh"
need_wheel
skip() {
    echo "1..0 # SKIP $1"
    exit 0
}
[ "$(id -u)" = 0 ] || skip "clean roots need root"
command -v mmdebstrap >/dev/null || skip "mmdebstrap is missing: scripts/deps.sh packages"
unshare --mount --pid --fork true 2>/dev/null || skip "no namespaces may be made here"
root=$PWD/root
at_end() { [ ! -d "$root" ] || "$TOP/scripts/root.sh" remove "$root"; }
trap at_end EXIT
mkdir share && cp -r "$wheel" "$TOP/tests/data/llama-tiny" "$TOP/tests/data/dcp-fsdp2-2r" "$TOP"/tests/wheel/{bare,https}.py share/
"$TOP/scripts/root.sh" make bullseye "$root" python3 python3-venv >log 2>&1
ok $? "a clean root of Debian 11"
in_root() { "$TOP/scripts/root.sh" enter --bind "$PWD/share:/share" "$root" bash -c "cd /root && $1" >log 2>&1; }
in_root 'python3 -m venv env && env/bin/pip install --no-index /share/fsdp_ckpt-*.whl'
ok $? "its own pip installs the wheel"
in_root 'for p in info verify merge reshard diff cp; do env/bin/ckpt-$p --version || exit 1; done'
ok $? "all programs run"
in_root 'env/bin/ckpt-merge /share/dcp-fsdp2-2r/ckpt -o /share/merged.safetensors && env/bin/ckpt-verify /share/merged.safetensors'
ok $? "a checkpoint of PyTorch is merged"
"$BIN/ckpt-merge" "$TOP/tests/data/dcp-fsdp2-2r/ckpt" -o here.safetensors >log 2>&1 && cmp here.safetensors share/merged.safetensors >>log
ok $? "the bytes are those that this machine writes"
in_root 'env/bin/python /share/bare.py /share/llama-tiny'
status=$?
cp log lines && ok_lines lines
ok $status "the module"

openssl req -x509 -newkey rsa:2048 -nodes -keyout share/key -out share/cert -days 2 -subj /CN=store \
    -addext 'subjectAltName=IP:127.0.0.1' >log 2>&1
ok $? "a certificate of the test's own"
asks() { in_root "$1; env/bin/python /share/https.py env/bin/ckpt-info"; grep -v '^127' log >said; tail -n 1 said; }
asks true | grep -q -i 'certificate.* served: no'
ok $? "a store is refused whose certificate nobody vouches for"
for bundle in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt; do
    asks "mkdir -p ${bundle%/*} && cp /share/cert $bundle" | grep -q 'served: yes'
    ok $? "$bundle vouches"
    in_root "rm $bundle"
done
asks 'export SSL_CERT_FILE=/share/cert' | grep -q 'served: yes'
ok $? "SSL_CERT_FILE vouches"
asks 'export AWS_CA_BUNDLE=/share/cert' | grep -q 'served: yes'
ok $? "AWS_CA_BUNDLE vouches"
echo "1..$n"
exit $bad
