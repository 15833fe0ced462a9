"""Settings of every test run: no network, one thread per worker, reproducible examples under CI."""

import os


# Before anything imports huggingface_hub: a test that would reach out fails at once instead of waiting.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # AsyncGRPO and OnlineDPO are tested on purpose

import torch
from hypothesis import settings


# Tiny tensors gain nothing from threads, and on a busy machine threads that wait for each other cost a hundredfold.
torch.set_num_threads(1)

# Timings vary with the machine's load, so no example has a deadline; CI draws the same examples every time.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "default")
