"""What the whole suite needs of the process that it runs in."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# A shell starts what it puts into the background deaf to Ctrl-C, and children inherit that; tests interrupt theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The suite takes minutes; `make campaign` has the time. No example is judged by a busy machine's clock.
settings.register_profile("suite", max_examples=50, deadline=None)
settings.register_profile("campaign", max_examples=1000, deadline=None)
settings.load_profile("campaign" if os.environ.get("NVDP_CAMPAIGN") == "full" else "suite")
