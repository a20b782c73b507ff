#!/bin/sh
# Half a point for the file, the other half for leaving the poem alone.
rewards=${GYRE_REWARD_DIR:-/logs/verifier}
tests=${GYRE_TESTS_DIR:-/tests}

reward=0
if cmp -s reversed.txt "$tests/expected.txt"; then
    reward=0.5
    cmp -s poem.txt "$tests/poem.txt" && reward=1
fi
echo "$reward" > "$rewards/reward.txt"
