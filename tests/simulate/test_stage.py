"""The parts of the stage that the tour leans on: a ConfigMap's directory, and the daemon seen from outside."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import nvdp
from nvdp.simulate.configmap import ConfigMapDirectory
from nvdp.simulate.process import DaemonProcess, find_free_port


@pytest.fixture
def directory():
    path = Path(tempfile.mkdtemp(prefix="nv", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def start(script, directory, port=0):
    return DaemonProcess([sys.executable, "-c", script], log=directory / "log", port=port)


def test_an_edit_swaps_a_link_as_the_kubelet_does(directory):
    config = ConfigMapDirectory(directory)
    config.write("one")
    entry, first = os.lstat(config.path), config.path.resolve()
    assert config.path.read_text() == "one"
    config.write("two")
    assert config.path.read_text() == "two"
    assert os.lstat(config.path) == entry
    assert config.path.readlink() == Path("..data/config.yaml")
    assert config.path.resolve().parent.name.startswith("..20")
    assert not first.exists()
    assert sorted(path.name for path in directory.iterdir() if not path.name.startswith("..20")) == [
        "..data",
        "config.yaml",
    ]


def test_a_process_that_does_not_stop_is_ended_by_force(directory):
    script = "import signal,time;signal.signal(15,lambda *_:None);print('up',flush=True)\nwhile True: time.sleep(9)"
    daemon = start(script, directory)
    while "up" not in daemon.read_log():
        assert daemon.exit_code is None
    daemon.close(grace_s=0.1)
    assert daemon.exit_code == -9


def test_the_last_line_is_the_logs_own_where_there_is_one(directory):
    lines = "2026-11-29T15:13:46.000Z WARN  StreamLost  gone\nI1129 15:12:38.401379 645 a library says something"
    daemon = start(f"print('''{lines}''')", directory)
    daemon.wait_exit(10)
    assert daemon.last_line == "WARN  StreamLost  gone"
    daemon.close()


def test_a_process_that_wrote_nothing_is_said_to_have_written_nothing(directory):
    daemon = start("", directory)
    assert daemon.wait_exit(10) == 0
    assert daemon.last_line == "(it has written nothing)"


def test_a_port_where_nobody_answers_is_no_answer(directory):
    daemon = start("", directory, port=find_free_port())
    daemon.wait_exit(10)
    assert daemon.find_answer("/readyz") is None
    assert daemon.find_metric("nvdp_config_valid") is None


def test_a_fresh_checkout_is_compiled_before_its_daemon_is_timed(directory):
    package = directory / "nvdp"
    shutil.copytree(Path(nvdp.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    compile_it = "from nvdp.simulate.process import compile_package; compile_package()"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", compile_it], cwd=directory, env=environment, check=True)
    sources = {path.relative_to(package) for path in package.rglob("*.py")}
    compiled = {path.relative_to(package) for path in package.rglob("*.pyc")}
    assert {path.parent.parent / f"{path.name.split('.')[0]}.py" for path in compiled} == sources


def test_a_process_is_closed_though_an_interrupted_look_at_it_left_a_lock(directory):
    """As the exception of Ctrl-C does where it comes at the wrong moment."""
    process = start("import time; time.sleep(60)", directory)
    process._process._waitpid_lock.acquire()
    at = time.monotonic()
    process.close(grace_s=0.1)
    assert time.monotonic() - at < 5
    process._process._waitpid_lock.release()
    assert process.wait_exit(5) == -signal.SIGTERM
