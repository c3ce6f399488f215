"""The real control daemon of MPS on a real GPU: what it answers, and whether its limits hold for a client."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from nvdp.errors import HostError
from nvdp.model.mps import DaemonSpec
from nvdp.mps.control import ControlPipe
from nvdp.mps.places import Places
from nvdp.mps.process import start_daemon
from nvdp.mps.program import CONTROL, PIPE_DIRECTORY, VISIBLE_DEVICES

pytestmark = pytest.mark.gpu

LIMIT_MIB = 2048
START_S, END_S, COMMAND_S, CLIENT_S = 15.0, 20.0, 5.0, 60.0
# Prints CUDA's results: of its start, a context, an allocation below the limit, and one above it (2: out of memory).
CLIENT = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
def allocate(mib):
    return cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib << 20))
print(cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0), end=" ")
print(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device), allocate(256), allocate(int(sys.argv[1])))
"""


@pytest.fixture
def places():
    root = Path(tempfile.mkdtemp(prefix="nv", dir="/tmp"))
    root.chmod(0o755)
    made = Places(root, "nvidia.com/gpu")
    made.prepare()
    yield made
    shutil.rmtree(root)


@pytest.fixture
def pipe(idle_gpu, places):
    """The pipe of a daemon with limits, which is gone afterwards."""
    if shutil.which(CONTROL) is None:
        pytest.skip(f"{CONTROL} is not here")
    spec = DaemonSpec(resource="nvidia.com/gpu", gpus=(idle_gpu.uuid,))
    daemon = start_daemon(CONTROL, spec, places, multi_user=os.geteuid() == 0)
    asked = ControlPipe(CONTROL, places.pipe_dir, limit_s=COMMAND_S)
    try:
        wait_answer(asked, places)
        asked.set_thread_percent(25)
        asked.set_memory_limit(idle_gpu.uuid, LIMIT_MIB)
        yield asked
        asked.quit()
        assert daemon.wait(END_S), "it ends when it is told to"
        assert daemon.list_rest() == ()
    finally:
        daemon.kill()
        daemon.wait(END_S)
        daemon.close()


def wait_answer(pipe: ControlPipe, places: Places) -> None:
    until = time.monotonic() + START_S
    percent, problem = None, ""
    while percent is None:
        assert time.monotonic() < until, f"{problem}; {places.read_last_lines(10)}"
        try:
            percent = pipe.find_thread_percent()
        except HostError as error:
            problem = str(error)
            time.sleep(0.1)
    assert percent == 100.0


def test_the_daemon_answers_what_nvdp_reads(pipe) -> None:
    assert pipe.find_thread_percent() == 25.0
    assert pipe.list_servers() == {}
    pipe.ask(f"start_server -uid {os.geteuid()}")
    until = time.monotonic() + START_S
    while (states := list(pipe.list_servers().values())) != ["active"]:
        assert time.monotonic() < until, f"no server that is active, but {states}"
        time.sleep(0.1)
    (server,) = pipe.list_servers()
    assert pipe.list_clients(server) == ()


def test_a_client_gets_no_more_memory_than_its_share(pipe, places) -> None:
    too_much = str(LIMIT_MIB + 1024)
    environment = {**os.environ, PIPE_DIRECTORY: str(places.pipe_dir)}
    environment.pop(VISIBLE_DEVICES, None)  # in a client it would be numbers among the GPUs of the daemon
    client = subprocess.run(
        [sys.executable, "-c", CLIENT, too_much],
        env=environment,
        capture_output=True,
        text=True,
        timeout=CLIENT_S,
        check=True,
    )
    assert client.stdout.split() == ["0", "0", "0", "0", "2"], client.stderr
    assert list(pipe.list_servers().values()) == ["active"]
