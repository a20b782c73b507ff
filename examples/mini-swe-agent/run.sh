#!/bin/sh
# mini-swe-agent on a task: every call recorded with exact token ids, the work scored, the run a tree.
#
#     sh examples/mini-swe-agent/run.sh                                  # a small real model
#     ENGINE=http://localhost:8000 sh examples/mini-swe-agent/run.sh     # yours
#
# Further arguments go to `gyre run`: --timeout 30m, -- -c mini.yaml -c agent.step_limit=50

. "$(dirname "$0")/../common.sh"
needs mini "python3 -m venv $root/.harness/venv && $root/.harness/venv/bin/pip install mini-swe-agent==2.4.6"

if [ -z "${ENGINE:-}" ]; then
    # SmolLM2 knows no tools: three answers without a command, and mini-swe-agent gives up.
    serve gyre engine --runtime llamacpp --threads 1 --json
    set -- "$@" -- -c mini.yaml -c model.model_kwargs.max_tokens=100
fi

show gyre run --harness mini-swe-agent --task "$tasks/reverse-lines" -x mini-swe-agent-1 \
    --upstream "$ENGINE" ${ENGINE_MODEL:+--model "$ENGINE_MODEL"} --logs "$out/logs" --runs "$out/runs" "$@" ||
    echo "what a failed execution did is recorded all the same"

show gyre log check --engine "$ENGINE" "$out/logs"
show gyre-trees build "$out/logs" -o "$out/trees"
show gyre-trees verify "$out/trees"
show gyre-trees show "$out/trees" mini-swe-agent-1
