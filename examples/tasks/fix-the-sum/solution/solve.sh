#!/bin/sh
cat > sum.sh <<'END'
#!/bin/sh
sum=0
while read -r number || [ -n "$number" ]; do
    [ -n "$number" ] || continue
    sum=$((sum + number))
done < "$1"
echo "$sum"
END
