"""Where the time of a live run goes, and which of its processes take the CPU.

run.py      the quickstart's tiny run for a few batches, as a user starts it
cpu.py      CPU time by kind of process, while they live
report.py   bars and tables
"""
