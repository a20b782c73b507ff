"""docs/engine.md names what there is: routes, fields, codes of errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.routing import Route

from gyre.elastic.engine.core import Core
from gyre.elastic.engine.limits import EngineLimits
from gyre.elastic.engine.server import bodies
from gyre.elastic.engine.server.app import create_app
from gyre.elastic.engine.settings import EngineSettings
from gyre.elastic.engine.thread import EngineThread
from tests.engine.server.rig import tiny

ROOT = Path(__file__).parents[3]
CODE = re.compile(
    r'\b[45]\d\d,\s*(?:code=)?"([a-z_]+)"|\bcode(?:: str)? ?= ?"([a-z_]+)"|40[45]: "([a-z_]+)"(?=.*\.get)'
)
DOCS = (ROOT / "docs" / "engine.md").read_text()
TABLE = DOCS[DOCS.index("## Routes") : DOCS.index("## Requests")]
ERRORS = DOCS[DOCS.index("## Errors") : DOCS.index("## Continuations")]


def test_every_route_is_documented_and_no_other() -> None:
    engine = EngineThread(Core(tiny(), EngineLimits(ctx=512)))
    app = create_app(engine, tiny(), EngineSettings(model="tiny"))
    served = {route.path.replace(":path", "") for route in app.routes if isinstance(route, Route)}
    assert set(re.findall(r"`(/[a-z0-9_/{}-]+)(?:\?mode=)?`", TABLE)) == served


@pytest.mark.parametrize("kind", [bodies.ChatBody, bodies.CompletionBody])
def test_every_field_is_documented(kind: type[msgspec.Struct]) -> None:
    named = set(re.findall(r"`([a-z_]+?)(?:\.[a-z_]+)?`", DOCS))
    known: Any = kind.__struct_fields__
    assert [name for name in known if name not in named and not name.startswith("guided_")] == []


def test_every_code_of_an_error_is_documented_and_no_other() -> None:
    sources = [path.read_text() for path in (ROOT / "elastic" / "engine").rglob("*.py")]
    raised = {code for source in sources for found in CODE.findall(source) for code in found if code}
    assert set(re.findall(r"`([a-z_]+)`(?=[^|]*\|[^|]*\|$)", ERRORS, re.MULTILINE)) == raised
