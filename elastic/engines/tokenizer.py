"""Whether an engine splits text as the trained model's own tokenizer does."""

from __future__ import annotations

from pathlib import Path

from gyre.elastic.engines.connection import Connection
from gyre.elastic.engines.face import Engine
from gyre.proxy.errors import EngineError

FILE = "tokenizer.json"
PROBE = (
    "The quick brown fox, 1234567 times: caf\u00e9 na\u00efve \u4f60\u597d \U0001f600\n"
    "\tdef f(x):\n        return x['k'] != 0x1F  # TODO\r\n   trailing   "
)


def ids_of_probe(folder: Path) -> list[int] | None:
    """Of a short text, by the folder's own tokenizer; None: it has none that can be read here."""
    if (folder / FILE).is_file():
        from tokenizers import Tokenizer

        ids: list[int] = Tokenizer.from_file(str(folder / FILE)).encode(PROBE, add_special_tokens=False).ids
        return ids
    from transformers import AutoTokenizer

    try:
        older = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, ImportError):  # no files; of no kind that it knows; a package is missing
        return None
    # Of a kind that `config.json` names it makes one without any tokens, where there are no files of it.
    return older.encode(PROBE, add_special_tokens=False) or None


def check_tokenizer(engine: Engine, model: str, folder: Path) -> None:
    """Raises EngineError where it does not. A folder without a tokenizer of its own says nothing."""
    own = ids_of_probe(folder)
    if own is None:
        return
    body = {"model": model, "prompt": PROBE, "add_special_tokens": False}
    told = Connection(engine.name, engine.url, key=engine.key).ask("POST", "/tokenize", body).get("tokens")
    if told != own:
        raise EngineError(
            f"engine `{engine.name}` has another tokenizer than the model in `{folder}`: it makes "
            f"{len(told or ())} tokens of a text that has {len(own)}",
            "start it with the same model",
        )
