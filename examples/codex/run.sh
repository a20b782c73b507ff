#!/bin/sh
# Codex on four tasks, twice each: two executions of a task are a group, and what is learned from is
# how they differ. Started again after Ctrl-C it goes on where it stopped.
#
#     sh examples/codex/run.sh                                  # a scripted model
#     ENGINE=http://localhost:8000 sh examples/codex/run.sh     # yours
#
# Further arguments go to `gyre run`: --timeout 30m, --context 131072, -- -c model_reasoning_effort=high

. "$(dirname "$0")/../common.sh"
needs codex "npm install --prefix $root/.harness @openai/codex@0.171.0"

# Codex begins with 10,000 tokens, more than SmolLM2 takes in.
[ -n "${ENGINE:-}" ] || serve env PYTHONPATH="$root" python3 "$example/model.py"

show gyre run --harness codex --tasks "$tasks" --n 2 --jobs 2 \
    --upstream "$ENGINE" ${ENGINE_MODEL:+--model "$ENGINE_MODEL"} --logs "$out/logs" --runs "$out/runs" "$@" ||
    echo "what a failed execution did is recorded all the same"

show gyre log check --engine "$ENGINE" "$out/logs"
show gyre-trees build "$out/logs" -o "$out/trees"
show gyre-trees verify "$out/trees"
show gyre-trees stats "$out/trees"
show gyre-trees show "$out/trees" reverse-lines-0
