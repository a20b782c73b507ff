"""Measurements of gyre against its bars: `make bench`, or `python -m benchmarks --help`.

run.py          ENTRY: starts everything, prints the tables
cells.py        what is measured, and the bars
processes.py    servers pinned to cores, their CPU time and memory
client.py       simulated agents
bodies.py       what they say: every execution grows, no two are alike
upstream.py     an engine that costs next to nothing
passthrough.py  the proxy that records nothing, to compare with
wires/          Messages and Responses beside chat
trees/          what trees cost and deliver
engine/         the embedded engine beside transformers and llama.cpp
train/          training on trees beside training path by path
material.py     seeded text, ids and log-probabilities that all of them share
"""
