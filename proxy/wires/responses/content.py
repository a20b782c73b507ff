"""Content of messages and of tool results: text as a plain string, else chat's parts in their order."""

from __future__ import annotations

from typing import Any

from gyre.proxy.wires.responses.refusal import malformed, named_at, note, text_at
from gyre.proxy.wires.translation import Json

_TEXTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}
"""Field with the text, by type of part."""
_DETAILS = ("auto", "low", "high")


def content_of(value: Any, place: str, lost: list[str], between: str = "\n") -> str | list[Json]:
    """chat's content; parts that are all text are joined by `between`, which is what engines do with them.

    Raises:
        RequestError: a part is malformed, or only OpenAI's servers could resolve it.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise malformed(place, "must be a string or a list")
    parts = [_part(part, f"{place}[{number}]", lost) for number, part in enumerate(value)]
    if all(part["type"] == "text" for part in parts):
        return between.join(part["text"] for part in parts)
    return parts


def text_of(value: Any, place: str, lost: list[str]) -> str:
    """The same where nothing but text can be: what an assistant said."""
    content = content_of(value, place, lost, between="")
    if not isinstance(content, str):
        raise malformed(place, "has parts that are no text, which no assistant says")
    return content


def _part(part: Any, place: str, lost: list[str]) -> Json:
    if not isinstance(part, dict):
        raise malformed(place, "must be an object")
    match kind := part.get("type"):
        case str() if kind in _TEXTS:
            return {"type": "text", "text": text_at(part, _TEXTS[kind], place)}
        case "input_image":
            return _image(part, place, lost)
        case "input_file":
            return _file(part, place)
        case "input_audio" if isinstance(part.get("input_audio"), dict):
            return {"type": "input_audio", "input_audio": part["input_audio"]}
        case _:
            raise malformed(place, f"is of type `{kind}`, which cannot be carried")


def _image(part: Json, place: str, lost: list[str]) -> Json:
    if part.get("file_id") and not part.get("image_url"):
        raise malformed(place, "is an image by `file_id`; send it as `image_url`, a data URL for instance")
    image = {"url": named_at(part, "image_url", place)}
    detail = part.get("detail")
    if detail in _DETAILS:
        image["detail"] = detail
    elif detail is not None:
        note(lost, f"image_detail_left_out:{detail}")
    return {"type": "image_url", "image_url": image}


def _file(part: Json, place: str) -> Json:
    if not isinstance(data := part.get("file_data"), str):
        raise malformed(place, "is a file without `file_data`; the proxy has no files and fetches none")
    name = part.get("filename")
    return {"type": "file", "file": {"file_data": data, **({"filename": name} if name else {})}}
