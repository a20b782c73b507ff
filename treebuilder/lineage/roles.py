"""What each context is in its execution. Pure."""

from __future__ import annotations

from gyre.treebuilder.lineage.turn import Context
from gyre.treebuilder.trees import Cause, Confidence, Role

_SUMMARY = {Role.MAIN: Role.MAIN_SUMMARY, Role.SUB: Role.SUB_SUMMARY}
_OF_SUMMARY = {Role.MAIN_SUMMARY: Role.MAIN, Role.SUB_SUMMARY: Role.SUB}


def roles_of(contexts: list[Context]) -> dict[int, Role]:
    """Role by number of the context. A context takes it from the one it began in, which is earlier."""
    roles: dict[int, Role] = {}
    for context in contexts:
        _role(context, roles)
    return roles


def _role(context: Context, roles: dict[int, Role]) -> Role:
    chain = [context]
    while (before := _before(chain[-1])) is not None and before.number not in roles and before not in chain:
        chain.append(before)
    for one in reversed(chain):
        before = _before(one)
        above = roles.get(before.number, Role.MAIN) if before is not None else Role.MAIN
        roles[one.number] = _given(one, above)
    return roles[context.number]


def _given(context: Context, above: Role) -> Role:
    root = context.root
    if root.confidence is Confidence.QUARANTINED:
        return Role.UNKNOWN
    match root.cause:
        case Cause.START:
            return Role.MAIN
        case Cause.SIDE:
            return Role.SIDE
        case Cause.UNKNOWN:
            return Role.UNKNOWN
        case Cause.DELEGATION:
            return Role.SUB
        case Cause.COMPACTION if root.step == "summary":
            return _SUMMARY.get(above, above)
        case _:
            return _OF_SUMMARY.get(above, above)


def _before(context: Context) -> Context | None:
    origin = context.root.origin
    return origin.turn.context if origin is not None and origin.turn is not None else None
