#!/bin/sh
# An agent of one's own, agent.py, on a task: once over chat/completions, once over Responses.
#
#     sh examples/openai-sdk/run.sh                                  # a small real model
#     ENGINE=http://localhost:8000 sh examples/openai-sdk/run.sh     # yours

. "$(dirname "$0")/../common.sh"
python3 -c "import openai" 2> /dev/null || needs openai "make demo, or pip install openai"

limits=
if [ -z "${ENGINE:-}" ]; then
    serve gyre engine --runtime llamacpp --threads 1 --json
    limits="--turns 3 --tokens 100"
fi

for wire in chat responses; do
    show gyre run --task "$tasks/reverse-lines" -x "sdk-$wire" \
        --upstream "$ENGINE" ${ENGINE_MODEL:+--model "$ENGINE_MODEL"} --logs "$out/logs" --runs "$out/runs" \
        -- python3 "$example/agent.py" --wire $wire --model "{model}" $limits "{instruction}"
done

show gyre log check --engine "$ENGINE" "$out/logs"
show gyre-trees build "$out/logs" -o "$out/trees"
show gyre-trees verify "$out/trees"
for wire in chat responses; do
    show gyre-trees show "$out/trees" "sdk-$wire"
done
