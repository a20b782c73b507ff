#!/bin/sh
# The share of the expected lines that stand in their place; 0 when there are others.
rewards=${GYRE_REWARD_DIR:-/logs/verifier}
tests=${GYRE_TESTS_DIR:-/tests}

all=$(wc -l < "$tests/expected.txt")
right=0 number=0
while read -r line; do
    number=$((number + 1))
    [ "$(sed -n "${number}p" counts.txt 2>/dev/null)" = "$line" ] && right=$((right + 1))
done < "$tests/expected.txt"
[ "$(wc -l 2>/dev/null < counts.txt || echo 0)" -gt "$all" ] && right=0
awk "BEGIN { print $right / $all }" > "$rewards/reward.txt"
