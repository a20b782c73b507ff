#!/bin/sh
sed '1!G;h;$!d' poem.txt > reversed.txt
