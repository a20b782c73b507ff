#!/bin/sh
# What keeping few trajectories costs and saves, as QwenGyre's paper asks: the same recorded executions are trained on
# with cap 1, cap 5 and no cap, through trees and path by path. Needs torch.
#
#     sh examples/long-agent/table.sh

. "$(dirname "$0")/../common.sh"
needs_torch

[ -e "$out/tasks" ] || show python3 "$example/tasks.py" --out "$out/tasks"

# Of what is there already nothing is recorded again.
mkdir -p "$out/recorded"
for list in 00 01 02 03 04 05 06 07; do cp -r "$out/tasks/train/list-$list" "$out/recorded"; done
serve gyre engine --model "$example/small" --threads 1 --json
show gyre run --tasks "$out/recorded" --n 8 --jobs 4 --upstream "$ENGINE" --logs "$out/logs" --runs "$out/runs" \
    -- python3 "$example/agent.py" "{model}" "{instruction}" --limit 1250
kill $!
wait $! || :

show python3 "$example/table.py" "$out/logs" --model "$example/small" --tasks "$out/tasks/held-out" --out "$out/table"
