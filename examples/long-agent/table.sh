#!/bin/sh
# What keeping few trajectories costs and saves, as QwenGyre's paper asks: the same recorded executions are trained on
# with cap 1, cap 5 and no cap, through trees and path by path. Needs torch.
#
#     sh examples/long-agent/table.sh

. "$(dirname "$0")/../common.sh"
python3 -c "import torch, tensorboard" 2> /dev/null || needs torch "make test, or pip install -e '.[train]'"

[ -e "$out/tasks" ] || show python3 "$example/tasks.py" --out "$out/tasks"

if [ ! -e "$out/logs" ]; then
    mkdir -p "$out/recorded"
    for list in 00 01 02 03 04 05 06 07; do cp -r "$out/tasks/train/list-$list" "$out/recorded"; done
    serve gyre engine --model "$example/small" --threads 1 --json
    show gyre run --tasks "$out/recorded" --n 8 --jobs 4 --upstream "$ENGINE" --logs "$out/logs" --runs "$out/runs" \
        -- python3 "$example/agent.py" "{model}" "{instruction}" --limit 1250
    kill $!
    wait $! || :
fi

show python3 "$example/table.py" "$out/logs" --model "$example/small" --tasks "$out/tasks/held-out" --out "$out/table"
