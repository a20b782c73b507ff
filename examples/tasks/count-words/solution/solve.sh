#!/bin/sh
tr -cs 'A-Za-z' '\n' < letter.txt | tr 'A-Z' 'a-z' | grep . | sort | uniq -c |
    awk '$1 > 1 { print $1, $2 }' | LC_ALL=C sort -k1,1nr -k2,2 > counts.txt
