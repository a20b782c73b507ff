#!/bin/sh
# From executions to a model that does better: 48 are recorded, scored, built into trees and trained on, and the
# trained model does the same tasks again. It is small and random, so that all of this takes a minute on a CPU.
#
#     sh examples/train/run.sh

. "$(dirname "$0")/../common.sh"
needs_torch

work() { # FOLDER ARGUMENTS...: 24 executions of each task with the engine that runs
    folder=$1
    shift
    show gyre run --tasks "$example/tasks" --n 24 --jobs 4 --upstream "$ENGINE" --logs "$folder/logs" --runs "$folder/runs" "$@" \
        --score "sh $example/score.sh" -- python3 "$example/agent.py" "{model}" "{instruction}"
}

serve gyre engine --model tiny --threads 1 --json
work "$out"
show gyre log check --engine "$ENGINE" "$out/logs"
kill $! # the engine
wait $! || :

show gyre-trees build "$out/logs" -o "$out/trees"
show gyre-trees verify "$out/trees"
show gyre-trees show "$out/trees" river-0

again=
[ ! -e "$out/run/latest" ] || again=--resume
set -- --trees "$out/trees" --model tiny --config "$example/train.toml" --out "$out/run"
show gyre train "$@" --dry-run
show gyre train "$@" $again

serve gyre engine --model "$out/run/latest/model" --threads 1 --json
work "$out/after" --evaluation
