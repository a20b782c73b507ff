"""What rebuilding executions costs, and how much of what was sampled reaches training.

`story` has agents that talk: made-up calls with token ids, texts and tools, as a recorder would commit
them. `long_run` and `cases` are executions made of that, `logs` writes them as a log. `from_memory` and
`from_log` are measured, each in a process of its own that `run` starts; `report` has the bars.
"""
