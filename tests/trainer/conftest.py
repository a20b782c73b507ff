"""The trainer's tests use one torch thread: with two cores, more only stand in each other's way."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
