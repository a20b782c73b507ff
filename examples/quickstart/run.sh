#!/bin/sh
# A model learns: agents do tasks with it, it is trained on what they did, and they go on with what it became.
#
#     sh examples/quickstart/run.sh [tiny|smollm2|smollm2-copy]
#
# Started again after Ctrl-C it goes on where it was.

. "$(dirname "$0")/../common.sh"
python3 -c "import torch, tensorboard" 2> /dev/null || needs torch "make test, or pip install -e '.[train]'"

kind=${1:-tiny}
show python3 "$example/tasks.py" "$kind"
again=
[ ! -e "$example/runs/$kind/run.json" ] || again=--resume
show gyre train "$example/$kind.toml" $again
