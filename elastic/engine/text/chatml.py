"""A ChatML template of our own with Hermes' tools, for models whose own template knows none."""

from __future__ import annotations

import json

_BODY = """
{%- if tools or (default_system and messages[0].role != 'system') %}
    {{- '<|im_start|>system\\n' }}
    {{- messages[0].content if messages[0].role == 'system' else default_system }}
    {%- if tools %}
        {{- '\\n\\nYou can call these functions:\\n<tools>' }}
        {%- for tool in tools %}
            {{- '\\n' + (tool.function | tojson) }}
        {%- endfor %}
        {{- '\\n</tools>\\nTo call one, write its name and arguments as JSON between tags, like this:' }}
        {{- '\\n<tool_call>\\n{"name": "...", "arguments": {...}}\\n</tool_call>' }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if not (tools and loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.reasoning_content %}
            {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
        {%- endif %}
        {%- if message.role == 'tool' %}
            {{- '<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n' if message.content or not loop.first }}
            {{- '<tool_call>\\n{"name": ' + (call.function.name | tojson) + ', "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def chatml(default_system: str = "") -> str:
    """The Jinja template. `default_system` is said when the messages begin with no system message."""
    return "{%- set default_system = " + json.dumps(default_system) + " %}" + _BODY
