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

DOCS = (Path(__file__).parents[3] / "docs" / "engine.md").read_text()
TABLE = DOCS[DOCS.index("## Routes") : DOCS.index("## Requests")]


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
