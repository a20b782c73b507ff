#!/bin/sh
# What a text is worth: the share of lowercase letters in it. Prints a number from 0 to 1.
LC_ALL=C tr -cd a-z < text.txt | wc -c | awk -v all="$(wc -c < text.txt)" '{ print all ? $1 / all : 0 }'
