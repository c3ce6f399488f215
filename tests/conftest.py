"""What the whole suite needs of the process that it runs in."""

from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import settings

# Seven thousand tests stay in memory to the end. To look through them for garbage, again and again, costs each process
# seconds: nothing is looked for while they are collected, and they are left out from then on.
gc.disable()

# A shell starts what it puts into the background deaf to Ctrl-C, and children inherit that; tests interrupt theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The suite takes minutes; `make campaign` has the time. No example is judged by a busy machine's clock.
settings.register_profile("suite", max_examples=50, deadline=None)
settings.register_profile("campaign", max_examples=1000, deadline=None)
settings.load_profile("campaign" if os.environ.get("NVDP_CAMPAIGN") == "full" else "suite")


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.collect()
    gc.freeze()
    gc.enable()
