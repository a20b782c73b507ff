# What the examples have in common; each run.sh reads it first. What they make lies in out/EXAMPLE, and what
# `gyre train RUN.toml` makes in runs/RUN beside that file.
#
#     ENGINE        URL of your engine: vLLM, SGLang, llama.cpp. Without it each example brings one.
#     ENGINE_MODEL  the model to ask for, where the engine has several.

set -eu
example=$(cd "$(dirname "$0")" && pwd)
root=${example%/examples/*}
out=out/${example##*/}
tasks=$root/examples/tasks
mkdir -p "$out"

# `make demo` installs into .venv, and what `needs` tells to install goes into .harness.
command -v gyre > /dev/null || PATH=$root/.venv/bin:$PATH
PATH=$PATH:$root/.harness/node_modules/.bin:$root/.harness/venv/bin

needs() { # PROGRAM COMMAND: the script ends here where PROGRAM is missing, and says what installs it
    command -v "$1" > /dev/null && return
    echo "error: \`$1\` is not installed" >&2
    echo "hint: $2" >&2
    exit 1
}

show() { # COMMAND...: prints it, and runs it
    printf '\n$ %s\n' "$*"
    "$@"
}

needs_torch() {
    python3 -c "import torch, tensorboard" 2> /dev/null || needs torch "make demo, or pip install -e '.[train]'"
}

learn() { # FOLDER/NAME.toml: trains as it says, into FOLDER/runs/NAME, or goes on there
    made=${1%/*}/runs/${1##*/}
    again=
    [ ! -e "${made%.toml}/run.json" ] || again=--resume
    show gyre train "$1" $again
}

serve() { # COMMAND...: starts an engine that prints its URL and ends with the script
    rm -f "$out/url"
    mkfifo "$out/url"
    printf '\n$ %s\n' "$*"
    "$@" > "$out/url" &
    trap "kill $! 2> /dev/null || :" EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    ENGINE=$(sed -n 's/.*\(http:[^"]*\).*/\1/p;q' "$out/url")
    rm "$out/url"
    [ -n "$ENGINE" ] || exit 1
}

needs gyre "make demo"
