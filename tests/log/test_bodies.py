"""Messages by their address: at hand for a while, and looked for from the newest on."""

from __future__ import annotations

from pathlib import Path

from gyre.proxy.log.reading.bodies import RecentBodies, find_bodies
from gyre.proxy.log.sealing.seal import seal
from tests.log.builders import LogBuilder, address, message

A, B, C = (message(text * 10) for text in "abc")


def spelt(body: bytes) -> str:
    return address(body).hex()


def test_what_nobody_refers_to_goes_first() -> None:
    bodies = RecentBodies(most_bytes=2 * len(A))
    bodies.put("a", A)
    bodies.put("b", B)
    bodies.touch(["a", "never"])
    bodies.put("c", C)
    assert [bodies.get(name) for name in "abc"] == [A, None, C]
    bodies.put("a", A)
    bodies.put("b", B)
    assert [bodies.get(name) for name in "abc"] == [A, B, None]


def test_one_that_is_larger_than_all_may_is_kept_until_the_next_comes() -> None:
    bodies = RecentBodies(most_bytes=1)
    bodies.put("a", A)
    assert bodies.get("a") == A
    bodies.put("b", B)
    assert (bodies.get("a"), bodies.get("b")) == (None, B)


def test_they_are_found_in_the_journal_and_in_sealed_files(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path / "logs")
    for number, body in enumerate((A, B)):
        worker = log.worker(f"w{number}")
        worker.call(f"c{number}", messages=[body])
        worker.close()
        seal(log.root)
    log.worker("live").call("c2", messages=[C])
    wanted = [spelt(body) for body in (A, B, C)]
    assert find_bodies(log.folder, [*wanted, "0" * 32]) == dict(zip(wanted, (A, B, C), strict=True))


def test_no_more_is_read_than_is_needed(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path / "logs")
    for number, body in enumerate((A, B)):
        worker = log.worker(f"w{number}")
        worker.call(f"c{number}", messages=[body])
        worker.close()
        seal(log.root)
    log.folder.sealed("messages")[0].write_bytes(b"damaged")
    assert find_bodies(log.folder, [spelt(B)]) == {spelt(B): B}
    assert find_bodies(log.folder, [spelt(A), spelt(B)]) == {spelt(B): B}
