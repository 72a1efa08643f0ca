#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A merge into one large object, killed in the middle: the same command sends only the parts that the store does not
# have, and the object is equal to the bit. Parts of other bytes under the same name are sent again.
# run: timeout=900
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/s3/lib/one.sh"

count merge whole.safetensors && equal whole.safetensors
ok $? "an undisturbed merge"
all=$parts
ok "$([ "$all" -ge 15 ]; echo $?)" "sends $all parts"

killed one.safetensors
ok $? "killed, ${have:-0} parts are there"
count merge one.safetensors
said=$(grep 'from an earlier run' err) && equal one.safetensors
ok $? "the same command completes, equal to the bit: $said"
# One more where the store tells no checksums, and a part is sent to see what its ETags are.
ok "$([ "$parts" -le $((all - have + 1)) ]; echo $?)" "it sent $parts parts, $all without the $have"
ok "$([ "$(s3 uploads one.safetensors)" = 0 ] && [ "$(s3 left one.safetensors)" = one.safetensors ]; echo $?)" "nothing else is left"

killed two.safetensors && s3 spoil two.safetensors
ok $? "killed, and one of ${have:-0} parts has other bytes"
count merge two.safetensors && equal two.safetensors
ok $? "which is sent again"
ok "$([ "$parts" -ge $((all - have + 1)) ] && [ "$parts" -lt $all ]; echo $?)" "it sent $parts parts"

# A store that lists checksums, as AWS does: no part is sent for a trial.
listed=checksums
killed_and_again() { killed five.safetensors && merge five.safetensors; }
count killed_and_again
said=$(sed -n 's/.*: \([0-9]*\) of [0-9]* parts were there.*/\1/p' err)
equal five.safetensors
ok $? "a store that lists checksums: completed, equal"
ok "$([ "$said" = "$have" ]; echo $?)" "all $have parts that were there are proved, without one sent for a trial (${said:-none})"
listed=

# Whether it was completed is not told the first time: the object is known by the job's mark.
killed six.safetensors
listed=completed
count merge six.safetensors && equal six.safetensors
ok "$([ $? = 0 ] && [[ $told == *"lost answer"* ]]; echo $?)" "a resumed upload whose completion was not answered: $told"
listed=
ok "$([ "$(s3 uploads six.safetensors)" = 0 ] && [ "$(s3 left six.safetensors)" = six.safetensors ]; echo $?)" "nothing else is left"

killed three.safetensors
quiet ckpt-merge in.safetensors -o "$at/three.safetensors" --mem 48M --exclude nothing
ok $? "with less memory, and so other parts, it completes, too" # the blocks are the same: so is the job
equal three.safetensors
ok $? "equal"
killed four.safetensors
echo 'w -> v' >other.map
quiet ckpt-merge in.safetensors -o "$at/four.safetensors" --mem 64M --map other.map
ok "$([ $? = 1 ] && grep -q 'begun by another command' err; echo $?)" "another command does not continue it"
merge four.safetensors && equal four.safetensors
ok $? "the same does"
echo "1..$n"
exit $bad
