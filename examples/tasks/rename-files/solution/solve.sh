#!/bin/sh
cd photos
for file in *; do
    date=${file%% *}
    rest=$(echo "${file#* }" | tr 'A-Z ' 'a-z_')
    year=${date%%-*} month=${date#*-} day=${date##*-}
    month=${month%-*}
    mv "$file" "$(printf '%s-%02d-%02d_%s' "$year" "$month" "$day" "$rest")"
done
