"""Ctrl-C and SIGTERM end a session whenever they come."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

IN_A_DESTRUCTOR = """
import time
from nvdp.simulate.session import _ending_in_order

class Slow:
    def __del__(self):
        print("now", flush=True)
        time.sleep(1)

with _ending_in_order():
    Slow()
    while True:
        time.sleep(0.1)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_comes_while_a_destructor_runs_is_not_lost(number):
    """The exception of its handler is."""
    with subprocess.Popen(
        [sys.executable, "-c", IN_A_DESTRUCTOR], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        try:
            code = process.wait(15)
        finally:
            process.kill()
    assert code in {128 + number, -number}
