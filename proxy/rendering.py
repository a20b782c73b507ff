"""What of a chat request decides its prompt, as the engines' own routes for templates take it. Pure."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

_FIELDS = (
    *("messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"),
    *("documents", "chat_template"),
)
_OF_LLAMACPP = ("tool_choice", "response_format")


def tokenize_body(chat: Json) -> Json:
    """For `POST /tokenize` of vLLM and of our own engine.

    It reads `reasoning` where chat takes the older name too, and an effort only as a template's variable.
    """
    body = {name: chat[name] for name in _FIELDS if name in chat} | {"model": chat.get("model")}
    body["messages"] = [_renamed(message) for message in chat.get("messages", ())]
    effort = chat.get("reasoning_effort")
    if effort is not None:
        implied = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        body["chat_template_kwargs"] = implied | (chat.get("chat_template_kwargs") or {})
    return body


def apply_template_body(chat: Json) -> Json:
    """For `POST /apply-template` of llama.cpp."""
    return {name: chat[name] for name in (*_FIELDS, *_OF_LLAMACPP) if name in chat}


def _renamed(message: Any) -> Any:
    if not isinstance(message, dict) or "reasoning_content" not in message:
        return message
    rest = {name: value for name, value in message.items() if name != "reasoning_content"}
    return {"reasoning": message["reasoning_content"], **rest}
