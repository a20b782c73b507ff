"""Executions of agents with tools: an answer is text and a tool call, the next request brings its result.

The first answer holds all tool calls of the history with which the second request comes: the proxy has
then seen them sampled, as it would have one by one. Whatever the wire, an
execution says the same and has the same ids.
"""

from __future__ import annotations

from benchmarks.bodies import SPREAD, Execution, Reader, add, functions, tool_list
from benchmarks.cells import Cell
from benchmarks.material import BYTES_PER_TOKEN, CALL_TOKENS, TOKENS
from benchmarks.wires.forms import FORMS, Answer

SYSTEM = b"You are an agent. Use the tools, one step at a time."
SYSTEM_BYTES = 4000
"""Of the prompt of an agent that has tools to explain."""
_THOUGHT_BYTES = 60
"""What it says before a call of the history."""
_PER_MESSAGE = 20
"""Bytes that a template adds."""


def grow(cell: Cell, name: str, index: int, text: bytes) -> Execution:
    """Execution number `index` of a cell, all its calls."""
    longest = cell.last_bytes // BYTES_PER_TOKEN + cell.output + 4096
    story = _Story(cell, name, index * SPREAD % (TOKENS - longest), text)
    for number in range(cell.calls_each):
        opens = number == 0 and cell.history_calls > 0
        answer = Answer(8, cell.history_calls) if opens else Answer(cell.output - CALL_TOKENS, 1)
        story.ask(answer, 0 if opens else cell.gap_ms)
        story.go_on(answer)
    return story.execution


class _Story:
    def __init__(self, cell: Cell, name: str, start: int, text: bytes) -> None:
        self._cell, self._text = cell, text
        self._form = form = FORMS[cell.wire]
        # Half the material away from the answers, so that no text is sent twice.
        self._reader = Reader(text, (start * BYTES_PER_TOKEN + len(text) // 2) % len(text))
        self._tools = functions(cell.tools)
        self._system = SYSTEM + (b" " + self._reader.read(SYSTEM_BYTES) if cell.tools else b"")
        self._size = len(self._system) + len(tool_list(cell.tools))
        """Bytes of the prompt."""
        self._answer_at = 0
        self.execution = Execution(name, start, path=form.path, head=form.opening(self._system))
        for message in form.first(self._system):
            add(self.execution, message)
        self._hear(b"[%b] " % name.encode() + self._reader.read(120))

    def ask(self, answer: Answer, gap_ms: int) -> None:
        """A request with everything so far, to which the engine says `answer`."""
        execution, prompt = self.execution, self._size // BYTES_PER_TOKEN
        numbers = (execution.start, prompt, answer.tokens, gap_ms * 1000, self._cell.delay_ms, answer.calls)
        script = b"%d %d %d %d %d %d" % numbers
        execution.ends.append(len(execution.messages) - len(self._form.closing))
        execution.tails.append(self._form.tail(script, self._system, self._tools, self._cell.stream))
        execution.events.append(self._form.events(answer))
        execution.outputs.append(answer.tokens)
        execution.new_ids = prompt + answer.tokens
        self._answer_at = execution.start + prompt

    def go_on(self, answer: Answer) -> None:
        """Every call of `answer` and its result."""
        said = self._text[self._answer_at * BYTES_PER_TOKEN :][: answer.said * BYTES_PER_TOKEN]
        for number in range(answer.calls):
            position = self._answer_at + answer.said + number * CALL_TOKENS
            for message in self._form.answer(said, self._text, position):
                add(self.execution, message)
            self._size += len(said) + CALL_TOKENS * BYTES_PER_TOKEN + _PER_MESSAGE
            output = b"step %d: %b" % (number, self._reader.read(self._cell.grow_bytes))
            add(self.execution, self._form.result(position, output))
            self._size += len(output) + _PER_MESSAGE
            said = self._reader.read(_THOUGHT_BYTES)

    def _hear(self, text: bytes) -> None:
        add(self.execution, self._form.user(text))
        self._size += len(text) + _PER_MESSAGE
