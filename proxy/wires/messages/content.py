"""Content blocks of Messages as content parts of chat/completions.

Text stays text, an image becomes `image_url` (base64 as a data URL), a PDF becomes a `file` part.
Plain-text documents and search results become text, title first. Blocks of tools that Anthropic's own
servers ran (`server_tool_use`, `web_search_tool_result`, ...) exist on no engine: they are carried as
their JSON in a text part and flagged `block_as_text:<type>`. `cache_control` is dropped: it says nothing
to the model. What refers to a file or page that only Anthropic can open is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gyre.proxy.wires.messages.lost import Lost, object_at, refusal, spelled, text_at
from gyre.proxy.wires.translation import Json

_AS_TEXT = {
    "server_tool_use",
    "mcp_tool_use",
    "mcp_tool_result",
    "mcp_tool_listing",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "advisor_tool_result",
    "container_upload",
    "browser_state",
    "compaction",
    "fallback",
}


def blocks_at(content: Any, place: str) -> Iterator[tuple[str, str, Json]]:
    """Place, type and block of each block in a list."""
    if not isinstance(content, list):
        raise refusal(place, "must be a string or a list of blocks")
    for number, block in enumerate(content):
        at = f"{place}[{number}]"
        yield at, text_at(object_at(block, at).get("type"), f"{at}.type"), block


def parts_of(block: Json, kind: str, place: str, lost: Lost) -> list[Json]:
    """Chat parts of one block; none for empty text.

    Raises:
        RequestError: the block has a type or shape that cannot be carried; names the place.
    """
    match kind:
        case "text":
            if block.get("citations"):
                lost.add("citations_left_out")
            return _text(text_at(block.get("text"), f"{place}.text"))
        case "image":
            return [_image(block, place)]
        case "document":
            return _document(block, place, lost)
        case "search_result":
            return _titled([block.get("title"), block.get("source")], _inner(block, place, lost))
        case "tool_reference":
            lost.add("block_as_text:tool_reference")
            return _text(text_at(block.get("tool_name"), f"{place}.tool_name"))
        case _ if kind in _AS_TEXT:
            lost.add(f"block_as_text:{kind}")
            return _text(spelled({k: v for k, v in block.items() if k != "cache_control"}, place))
    raise refusal(place, f"has the type `{kind}`, which cannot be carried here")


def joined(parts: list[Json]) -> str | list[Json]:
    """One text as a string, as templates of small models want it; more stay a list.

    How several texts are joined is the template's business: engines know whether it takes lists.
    """
    if len(parts) == 1 and parts[0]["type"] == "text":
        text: str = parts[0]["text"]
        return text
    return parts


def _text(text: str) -> list[Json]:
    return [{"type": "text", "text": text}] if text else []


def _titled(titles: list[Any], parts: list[Json]) -> list[Json]:
    """Titles stand as lines before the first text, so that text and title are one part."""
    head = "\n".join(title for title in titles if isinstance(title, str) and title)
    if not head:
        return parts
    if parts and parts[0]["type"] == "text":
        return [{"type": "text", "text": f"{head}\n\n{parts[0]['text']}"}, *parts[1:]]
    return [{"type": "text", "text": head}, *parts]


def _image(block: Json, place: str) -> Json:
    source = object_at(block.get("source"), f"{place}.source")
    match source:
        case {"type": "base64", "data": str(data)}:
            url = f"data:{source.get('media_type') or 'image/jpeg'};base64,{data}"
        case {"type": "url", "url": str(url)}:
            pass
        case _:
            raise _elsewhere(source, place)
    return {"type": "image_url", "image_url": {"url": url}}


def _document(block: Json, place: str, lost: Lost) -> list[Json]:
    source = object_at(block.get("source"), f"{place}.source")
    title = block.get("title")
    match source:
        case {"type": "text", "data": str(data)}:
            parts = _text(data)
        case {"type": "content"}:
            parts = _inner(source, f"{place}.source", lost)
        case {"type": "base64", "data": str(data)}:
            kind = source.get("media_type") or "application/pdf"
            name = title if isinstance(title, str) and title else "document.pdf"
            file = {"filename": name, "file_data": f"data:{kind};base64,{data}"}
            return [*_titled([block.get("context")], []), {"type": "file", "file": file}]
        case _:
            raise _elsewhere(source, place)
    return _titled([title, block.get("context")], parts)


def _inner(holder: Json, place: str, lost: Lost) -> list[Json]:
    content = holder.get("content")
    if isinstance(content, str):
        return _text(content)
    blocks = blocks_at(content, f"{place}.content")
    return [part for at, kind, block in blocks for part in parts_of(block, kind, at, lost)]


def _elsewhere(source: Json, place: str) -> Exception:
    return refusal(
        f"{place}.source",
        f"of type `{source.get('type')}` cannot be carried to this engine",
        "send the data itself, as base64 or text",
    )
