#!/bin/sh
# A model learns: agents do tasks with it, it is trained on what they did, and they go on with what it became.
#
#     sh examples/quickstart/run.sh [tiny|smollm2|smollm2-copy]
#
# Started again after Ctrl-C it goes on where it was; to begin anew remove examples/quickstart/runs/tiny.

. "$(dirname "$0")/../common.sh"
needs_torch

kind=${1:-tiny}
show python3 "$example/tasks.py" "$kind"
learn "$example/$kind.toml"
