"""What training on trees costs beside training path by path.

cases.py        the trees
steps.py        the passes take turns in one process, on the same trees
peak.py         memory of one pass, in a process of its own
report.py       bars and tables
run.py          starts each of these, with one thread for torch
"""
