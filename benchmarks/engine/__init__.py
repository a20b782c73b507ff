"""What the embedded engine makes of a CPU-second, and how long it stops for what moves.

loads.py        the requests
sides.py        the engine, and transformers' two ways to generate
throughput.py   they take turns in one process
moves.py        a cached prefix, a weight swap, a hand-over of keys and values
served.py       the same requests over HTTP, to gyre and to llama.cpp
report.py       bars and tables
run.py          starts each of these as a process of its own, with one thread for torch
"""
