#!/bin/sh
# Claude Code on a task: every call recorded with exact token ids, the work scored, the run a tree.
#
#     sh examples/claude-code/run.sh                                  # a small real model
#     ENGINE=http://localhost:8000 sh examples/claude-code/run.sh     # yours
#
# Further arguments go to `gyre run`: --timeout 30m, --context 131072, -- --max-turns 20

. "$(dirname "$0")/../common.sh"
needs claude "npm install --prefix $root/.harness @anthropic-ai/claude-code@2.1.220"

if [ -z "${ENGINE:-}" ]; then
    # SmolLM2 takes in 8,192 tokens. Claude Code begins with 20,000, and with 200 when it is bare.
    serve gyre engine --runtime llamacpp --threads 1 --json
    set -- --env CLAUDE_CODE_MAX_OUTPUT_TOKENS=100 "$@" -- --bare
fi

show gyre run --harness claude-code --task "$tasks/reverse-lines" -x claude-code-1 \
    --upstream "$ENGINE" ${ENGINE_MODEL:+--model "$ENGINE_MODEL"} --logs "$out/logs" --runs "$out/runs" "$@" ||
    echo "what a failed execution did is recorded all the same"

show gyre log check --engine "$ENGINE" "$out/logs"
show gyre-trees build "$out/logs" -o "$out/trees"
show gyre-trees verify "$out/trees"
show gyre-trees show "$out/trees" claude-code-1
