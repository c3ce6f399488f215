"""A control program in a short directory, and daemons of it that end with the test."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import pytest

from nvdp.model.mps import DaemonSpec
from nvdp.mps.control import ControlFailedError, ControlPipe
from nvdp.mps.places import Places
from nvdp.mps.process import start_daemon
from nvdp.simulate.mps.install import TWIN_NAME, install_control
from nvdp.simulate.mps.journal import Journal
from nvdp.simulate.mps.orders import Orders

LIMIT_S = 20.0


def wait_until(condition, what: str):
    """The first true answer of ``condition``."""
    deadline = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.01)
    return found


class Bench:
    """One resource's places, the program, and what it does. The limit of questions is long: machines may be busy."""

    def __init__(self, directory: Path, *, name: str = TWIN_NAME) -> None:
        self.program = str(install_control(directory, name=name))
        self.mps_dir = directory / "mps"
        self.places = Places(self.mps_dir, "nvidia.com/gpu")
        self.places.prepare()
        self.pipe = ControlPipe(self.program, self.places.pipe_dir, limit_s=LIMIT_S)
        self.orders = Orders(Path(self.program))
        self.journal = Journal(Path(self.program))
        self._daemons = []

    def start(self, *gpus: str, multi_user: bool = True, answers: bool = True):
        spec = DaemonSpec(resource="nvidia.com/gpu", gpus=gpus)
        daemon = start_daemon(self.program, spec, self.places, multi_user=multi_user)
        self._daemons.append(daemon)
        if answers:
            wait_until(self.does_answer, "a daemon that answers")
        return daemon

    def does_answer(self) -> bool:
        try:
            self.pipe.find_thread_percent()
        except ControlFailedError:
            return False
        return True

    def close(self) -> None:
        for daemon in self._daemons:
            daemon.kill()
            assert daemon.wait(LIMIT_S)
            daemon.close()


@pytest.fixture
def directory():
    path = Path(tempfile.mkdtemp(prefix="nv", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def bench(directory):
    found = Bench(directory)
    yield found
    found.close()
