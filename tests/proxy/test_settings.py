"""What the proxy can be told, and what it refuses."""

from __future__ import annotations

import json
import re
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gyre.cli.proxy import Durability as DurabilityFlag
from gyre.cli.proxy import Profile as ProfileFlag
from gyre.proxy import settings as module
from gyre.proxy.errors import ConfigError
from gyre.proxy.settings import Backend, Limits, Log, Pin, ProxySettings, Timeouts, load_settings

DOCS = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
GIVEN = {"logs": "logs", "backends": [{"url": "http://10.0.0.5:8000"}]}
TABLES = {"timeouts": Timeouts, "limits": Limits, "log": Log, "pin": Pin, "backends": Backend}


def load(tmp_path: Path, toml: str, **flags: Any) -> ProxySettings:
    file = tmp_path / "gyre.toml"
    file.write_text(toml)
    return load_settings(file, GIVEN | flags)


def test_a_flag_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    toml = 'port = 1\nhost = "::1"\n[limits]\nhold_s = 1\nhold_calls = 2\n[log]\ndurability = "off"\n'
    settings = load(tmp_path, toml, port=5, host=None, **{"limits.hold_s": 9.0, "log.durability": "always"})
    assert (settings.port, settings.host, settings.workers) == (5, "::1", 1)
    assert (settings.limits.hold_s, settings.limits.hold_calls) == (9.0, 2)
    assert settings.log.durability == "always"
    assert settings.timeouts == Timeouts()


def test_backends_get_names_and_plain_urls(tmp_path: Path) -> None:
    toml = '[[backends]]\nurl = "http://a:1/v1/"\n[[backends]]\nurl = "https://b/api"\nname = "hosted"\n'
    settings = load(tmp_path, toml, backends=None)
    assert [(b.name, b.url) for b in settings.backends] == [
        ("a:1", "http://a:1"),
        ("hosted", "https://b/api"),
    ]


@pytest.mark.parametrize(
    ("toml", "named", "hint"),
    [
        ("prot = 1", "unknown key `prot`", "did you mean `port`?"),
        ("[limits]\nbodi = 1", "unknown key `limits.bodi`", "did you mean `limits.body`?"),
        ('[[backends]]\nurl = "http://a"\nuri = 1', "unknown key `backends.uri`", "`backends.url`"),
        ("zzz = 1", "unknown key `zzz`", "known keys: logs, host"),
        ('port = "x"', "`port`", ""),
        ("port = 70000", "`port`", ""),
        ("workers = 0", "`workers`", ""),
        ("limits = 5", "`limits`", ""),
        ("[timeouts]\nidle = -1", "`timeouts.idle`", ""),
        ("[log]\nsync_s = 0", "`log.sync_s`", ""),
        ('[log]\ndurability = "sometimes"', "`log.durability`", ""),
        ('[[backends]]\nurl = "http://a"\nprofile = "tgi"', "`backends[0].profile`", ""),
        ("port = ", "is not TOML", ""),
        ('host = "0.0.0.0"', "`0.0.0.0` is reachable from other machines", "GYRE_PROXY_TOKEN"),
        ('[[backends]]\nurl = "10.0.0.5:8000"', "`10.0.0.5:8000` is not the base URL", "http://"),
        ('[[backends]]\nurl = "http://me:hunter2@a"', "`a` holds a password", "key_env"),
        ("backends = []", "no engine given", "--upstream"),
        ('logs = ""', "no log folder given", "--logs"),
    ],
)
def test_a_mistake_is_named_and_nothing_secret_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toml: str, named: str, hint: str
) -> None:
    monkeypatch.delenv("GYRE_PROXY_TOKEN", raising=False)
    given = GIVEN | {"backends": None} if "backends" in toml else GIVEN
    given = given | {"logs": None} if "logs" in toml else given
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, toml, **given | {"limits.hold_s": None})
    assert named in caught.value.message
    assert hint in caught.value.hint
    assert "hunter2" not in caught.value.message


def test_a_flag_for_a_table_that_is_none_is_refused_as_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`limits`"):
        load(tmp_path, "limits = 5", **{"limits.hold_s": 1.0})


def test_two_backends_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="same name"):
        load(tmp_path, "", backends=[{"url": "http://a:1"}, {"url": "http://a:1/v1"}])


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path / "none.toml"))):
        load_settings(tmp_path / "none.toml", GIVEN)


def test_off_loopback_a_token_makes_it_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYRE_PROXY_TOKEN", "sesame")
    assert load_settings(None, GIVEN | {"host": "0.0.0.0"}).host == "0.0.0.0"


def test_settings_travel_to_a_worker_as_they_are() -> None:
    settings = load_settings(None, GIVEN | {"pin": {"temperature": 1.0}})
    packed = msgspec.msgpack.encode(settings)
    assert msgspec.msgpack.decode(packed, type=ProxySettings) == settings


def test_flags_offer_what_the_settings_know() -> None:
    assert [profile.value for profile in ProfileFlag] == list(typing.get_args(module.EngineName))
    assert [durability.value for durability in DurabilityFlag] == list(typing.get_args(module.Durability))


def documented_rows() -> dict[str, str]:
    """Key -> what stands as its default."""
    return dict(re.findall(r"^\| `([a-z_.]+)` \| ([^|]*?) ?\|", DOCS, re.MULTILINE))


def fields() -> Iterator[tuple[str, Any]]:
    for prefix, kind in {"": ProxySettings, **{f"{name}.": kind for name, kind in TABLES.items()}}.items():
        for field in msgspec.structs.fields(kind):
            if field.name not in TABLES or field.name == "backends":
                yield prefix + field.name, field.default


def test_every_key_is_documented_with_its_default_and_nothing_else() -> None:
    rows = documented_rows()
    assert set(rows) == {key for key, _ in fields()}
    for key, default in fields():
        match default:
            case None:
                assert rows[key] == "none", key
            case "" | msgspec.NODEFAULT:
                assert rows[key] in ("", "host and port", "`{}`"), key
            case str() | bool() | int() | float():
                assert rows[key] == f"`{json.dumps(default)}`", key


def test_the_example_in_the_docs_is_a_configuration(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", DOCS, re.DOTALL)
    tomllib.loads(example)
    settings = load(tmp_path, example, backends=None, logs=None)
    assert [backend.name for backend in settings.backends] == ["10.0.0.5:8000", "api.example.com"]
    assert settings.pin == Pin(temperature=1.0, top_p=1.0)
