#!/bin/sh
# Two rewards; the one called `reward` counts.
rewards=${GYRE_REWARD_DIR:-/logs/verifier}
tests=${GYRE_TESTS_DIR:-/tests}

right=0
while read -r name content; do
    [ "$(cat "photos/$name" 2>/dev/null)" = "$content" ] && right=$((right + 1))
done < "$tests/expected.txt"
others=$(($(ls photos 2>/dev/null | wc -l) - right))

reward=0
[ "$right" -eq 4 ] && [ "$others" -eq 0 ] && reward=1
echo "{\"reward\": $reward, \"renamed\": $right, \"others\": $others}" > "$rewards/reward.json"
