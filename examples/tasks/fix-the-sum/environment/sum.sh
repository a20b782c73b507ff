#!/bin/sh
sum=0
while read -r number; do
    [ -n "$number" ] || break
    sum=$((sum + number))
done < "$1"
echo "$sum"
