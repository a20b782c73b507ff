#!/bin/sh
# Two of these four files are added up right from the start; half a point for each other one.
rewards=${GYRE_REWARD_DIR:-/logs/verifier}
files=$(mktemp -d)
printf '1\n2\n3\n' > "$files/6"
printf '3\n\n4\n5' > "$files/12"
printf '\n\n-7\n10' > "$files/3"
: > "$files/0"

right=0
for file in "$files"/*; do
    [ "$(sh sum.sh "$file" 2>&1)" = "${file##*/}" ] && right=$((right + 1))
done
rm -r "$files"
case $right in
    4) echo 1 ;;
    3) echo 0.5 ;;
    *) echo 0 ;;
esac > "$rewards/reward.txt"
