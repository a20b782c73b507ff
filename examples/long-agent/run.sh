#!/bin/sh
# A small model learns long work: two dozen calls an execution, helpers, and a memory that a summary replaces.
#
#     sh examples/long-agent/run.sh
#
# Started again after Ctrl-C it goes on where it was; to begin anew remove examples/long-agent/runs.

. "$(dirname "$0")/../common.sh"
needs_torch

show python3 "$example/tasks.py"
learn "$example/long-agent.toml"
first=$(ls "$example/runs/long-agent/executions" | grep '^g' | head -n 1)
show gyre-trees show "$example/runs/long-agent/trees" "$first"
