"""What it costs to bring Messages and Responses to an engine that speaks chat/completions.

cells.py        the same loads on three wires
story.py        executions with tool calls
forms.py        how each wire writes them
report.py       bars and table
"""
