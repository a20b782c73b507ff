"""An environment for Harbor that is a folder of this machine, for tasks that need no container."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, override

from harbor.environments.base import BaseEnvironment, ExecResult

_INSIDE = re.compile(r"(?<![\w.$}/-])/(logs|tests|solution|app)(?![\w-])")


class Folder(BaseEnvironment):
    """What stands below `/app`, `/tests` or `/logs` in a container stands in a folder here."""

    root: Path

    @staticmethod
    @override
    def type() -> str:
        return "folder"

    @override
    def _validate_definition(self) -> None:
        pass

    @override
    async def start(self, force_build: bool) -> None:
        self.root = Path(tempfile.mkdtemp())
        shutil.copytree(self.environment_dir, self.root / "app", ignore=shutil.ignore_patterns("Dockerfile"))
        for name in ("logs/agent", "logs/verifier", "logs/artifacts", "tests"):
            (self.root / name).mkdir(parents=True)

    @override
    async def stop(self, delete: bool) -> None:
        shutil.rmtree(self.root)

    def _place(self, path: str | Path) -> Path:
        return self.root / str(path).lstrip("/")

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        self._place(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source_path, self._place(target_path))

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        shutil.copytree(source_dir, self._place(target_dir), dirs_exist_ok=True)

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        shutil.copy2(self._place(source_path), target_path)

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        shutil.copytree(self._place(source_dir), target_dir, dirs_exist_ok=True)

    @override
    async def exec(
        self, command: str, cwd: str | None = None, env: Any = None, *_: Any, **__: Any
    ) -> ExecResult:
        ours = {
            "GYRE_REWARD_DIR": str(self.root / "logs/verifier"),
            "GYRE_TESTS_DIR": str(self.root / "tests"),
        }
        process = await asyncio.create_subprocess_shell(
            _INSIDE.sub(rf"{self.root}/\1", command),
            cwd=self._place(cwd or "/app"),
            env={**os.environ, **ours, **(env or {})},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=process.returncode or 0)
