"""Random executions of agents whose truth is known: which call came from which, and why.

A `Story` is what happens; `World` lets agents, a toy model and a toy chat template act it out and
writes down a row per call with its `Truth`; `emit` turns rows into what the builder or the log takes.
"""
