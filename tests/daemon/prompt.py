"""``nvdp`` on a node that is alone: the requests that a start puts off by chance, for the sake of other nodes, come at
once; how long they are put off is shown by tests/planning/test_start_spread.py and by the fleet of tests/virtual.

    python -m tests.daemon.prompt SECONDS python -m nvdp run FLAGS

The first answer of the API server is waited for as if it had been asked SECONDS ago.
"""

from __future__ import annotations

import sys

import nvdp.app.cluster
from nvdp.__main__ import main
from nvdp.planning.start_spread import StartDelays

PROMPT = (sys.executable, "-m", "tests.daemon.prompt", "0")
"""A launcher for ``Daemon``."""
IMPATIENT = (*PROMPT[:-1], "9.2")
"""The same, for one whose API server is known to be away."""


if __name__ == "__main__":
    seconds, words = float(sys.argv[1]), sys.argv[sys.argv.index("nvdp") :]
    delays = StartDelays(ask_s=-seconds, state_s=0.0, labels_s=0.0, events_s=0.0)
    nvdp.app.cluster.plan_start = lambda *_, **__: delays
    sys.argv = words
    sys.exit(main(words[1:]))
