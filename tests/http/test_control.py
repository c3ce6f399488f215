"""The control socket over real connections: who may ask, what becomes of what is in its way, and who attacks it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvdp.errors import HostError
from nvdp.http.control import load_status
from nvdp.http.control_server import ControlServer
from nvdp.http.control_socket import SOCKET_NAME, open_socket
from nvdp.http.routes import STATUS_PATH, Response
from nvdp.model.held import Holding
from nvdp.model.inventory import Fault, UnreadableGpu
from nvdp.model.listing import Strategy
from nvdp.model.reasons import Cause, Reason
from nvdp.model.status import (
    ConfigStatus,
    DeviceStatus,
    DriverState,
    DriverStatus,
    ResourceStatus,
    Status,
    Trouble,
    Wait,
    Withheld,
)

LIMIT_S = 10.0
STATUS = Status(
    ready=True,
    reason="",
    config=ConfigStatus(valid=True, hash="sha256:1f0c9a2e77b0", source="/config/mixed", applied_at=1795921927.5),
    driver=DriverStatus(state=DriverState.READY, version="580.65.06", cuda_version="13.0"),
    resources=(
        ResourceStatus(
            name="nvidia.com/gpu",
            planned=1,
            healthy=1,
            unhealthy=0,
            registered=True,
            streams=1,
            strategy=Strategy.NONE,
            replicas=(1,),
        ),
    ),
    devices=(
        DeviceStatus(
            uuid="GPU-0", index=0, pci="0000:47:00.0", product="NVIDIA A10", mig="disabled", memory_bytes=2**34,
            healthy=False, cause=Cause.LOST, text="gone", changed_at=5.0, resource="nvidia.com/gpu",
        ),
    ),
    unreadable=(UnreadableGpu(index=1, pci=None, fault=Fault(call="c", kind="k", text="t")),),
    holders=(Holding(resource="nvidia.com/gpu", device_id="GPU-0", namespace="team", pod="pod", container="main"),),
    waits=(Wait(gpu_uuid="GPU-0", before="a", after="b", devices=1, holders=("team/pod",), since=1.0),),
    withheld=(Withheld(gpu_uuid="GPU-2", reason="MPSUnsupported", path="sharing.mps.resources[0]", text="too old"),),
    unmatched=("devices.cordon[0]: 7 is not on this node",),
    troubles=(Trouble(reason="PortTaken", text="port 9402 is in use"),),
)  # fmt: skip


class Heard:
    """What the server logged, and the exceptions it reported."""

    def __init__(self) -> None:
        self.log: list[tuple[Reason, str]] = []
        self.defects: list[Exception] = []

    def write(self, reason: Reason, msg: str, /, **_fields: object) -> None:
        self.log.append((reason, msg))


def wait_until(predicate: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not predicate():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def answer_status(_query: object) -> Response:
    return Response(body=msgspec.json.encode(STATUS))


@contextlib.contextmanager
def serve(
    run_dir: Path,
    heard: Heard | None = None,
    *,
    answer: Callable = answer_status,
    is_up: Callable[[], bool] | None = None,
) -> Iterator[ControlServer]:
    heard = heard or Heard()
    server = ControlServer(
        run_dir, routes={STATUS_PATH: answer}, log=heard.write, defect=heard.defects.append, look_every_s=0.05
    )
    server.start()
    try:
        wait_until(lambda: heard.log or (is_up or (lambda: answers(run_dir)))(), "neither a socket nor a word about it")
        yield server
    finally:
        server.stop()


def answers(run_dir: Path) -> bool:
    try:
        return load_status(run_dir, timeout_s=LIMIT_S) == STATUS
    except HostError:
        return False


@contextlib.contextmanager
def connect(run_dir: Path) -> Iterator[socket.socket]:
    """A connection; where the queue is full this waits."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(run_dir / SOCKET_NAME))
        connection.settimeout(LIMIT_S)
        yield connection


def send(run_dir: Path, data: bytes) -> bytes:
    """Everything that comes back for ``data``, until the server closes."""
    with connect(run_dir) as connection:
        received = b""
        with contextlib.suppress(OSError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                received += part
        return received


@pytest.fixture
def root() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="nv", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def run_dir(root: Path) -> Path:
    """Not there yet."""
    return root / "run" / "nvdp"


@pytest.fixture(scope="module")
def served() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="nv", dir="/tmp"))
    with serve(path):
        yield path
    shutil.rmtree(path)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# whose it is


def test_the_whole_status_arrives_as_it_was(run_dir: Path):
    with serve(run_dir):
        assert load_status(run_dir, timeout_s=LIMIT_S) == STATUS


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_directory_and_socket_are_roots_alone_from_the_first_moment(root: Path, no_umask: None):
    path = root / "run" / SOCKET_NAME
    seen: set[int] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            with contextlib.suppress(OSError):
                seen.update(mode(one) for one in path.parent.iterdir())

    looking = threading.Thread(target=look)
    looking.start()
    for _ in range(200):
        open_socket(path)[0].close()
    wait_until(lambda: seen, "a look, which may come late on a busy machine")
    done.set()
    looking.join()
    assert seen == {0o600}
    assert mode(path.parent) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_another_user_gets_no_answer_even_where_the_files_would_let_it(run_dir: Path):
    asking = (
        "import os, socket, sys; os.setgid(65534); os.setuid(65534); s = socket.socket(socket.AF_UNIX);"
        "s.settimeout(10); s.connect(sys.argv[1]); s.sendall(b'GET /status HTTP/1.0\\r\\n\\r\\n');"
        "print(len(s.recv(100)))"
    )
    with serve(run_dir):
        for path, wider in ((run_dir.parent.parent, 0o755), (run_dir.parent, 0o755), (run_dir, 0o755)):
            path.chmod(wider)
        (run_dir / SOCKET_NAME).chmod(0o666)
        command = [sys.executable, "-c", asking, str(run_dir / SOCKET_NAME)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.stdout.strip() == "0" or "ConnectionResetError" in done.stderr or "BrokenPipe" in done.stderr
        assert answers(run_dir)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_another_user_is_told_by_the_command_that_only_root_may_ask(run_dir: Path):
    asking = (
        "import os, sys; from pathlib import Path; from nvdp.http.control import load_status; os.setuid(65534);"
        "load_status(Path(sys.argv[1]), timeout_s=10)"
    )
    with serve(run_dir):
        for path in (run_dir.parent.parent, run_dir.parent, run_dir):
            path.chmod(0o755)
        command = [sys.executable, "-c", asking, str(run_dir)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert "only the user that nvdp runs as may ask, which is root" in done.stderr


# what is in its way


def test_the_socket_of_a_dead_process_is_replaced(run_dir: Path):
    open_socket(run_dir / SOCKET_NAME)[0].close()
    with serve(run_dir):
        assert answers(run_dir)


def test_the_socket_of_a_live_one_is_left_alone_told_once_and_taken_over_when_it_goes(run_dir: Path):
    heard = Heard()
    with serve(run_dir) as first:
        before = (run_dir / SOCKET_NAME).lstat().st_ino
        with serve(run_dir, heard) as second:
            assert answers(run_dir)
            time_to_try_again(second)
            assert (run_dir / SOCKET_NAME).lstat().st_ino == before
            assert second.trouble is not None
            first.stop()
            wait_until(lambda: answers(run_dir), "the second one's answer")
            assert second.trouble is None
    ((reason, text),) = heard.log
    assert reason is Reason.PORT_TAKEN
    assert "another nvdp serves it; end that one, or choose another --run-dir. Trying again every 0.05s" in text


def time_to_try_again(server: ControlServer) -> None:
    """Wait until it has tried to open its socket twice more."""
    seen = [server.trouble]

    def tried() -> bool:
        if server.trouble is not seen[-1]:
            seen.append(server.trouble)
        return len(seen) > 2

    wait_until(tried, "two tries more")


@pytest.mark.parametrize(
    ("prepare", "told"),
    [
        (lambda path: path.touch(), "is no socket; remove it"),
        (lambda path: path.mkdir(), "is no socket; remove it"),
        (lambda path: path.symlink_to("/etc/passwd"), "is no socket; remove it"),
        (lambda path: path.parent.chmod(0o777), "others may write there (owner 0, mode 777); chmod it to 700"),
        (lambda path: path.parent.rmdir() or path.parent.touch(), "cannot be made: File exists"),
    ],
)
def test_what_it_may_not_touch_stays_and_is_told_and_the_socket_is_made_once_it_is_gone(root, prepare, told):
    run_dir, heard = root / "run", Heard()
    run_dir.mkdir(mode=0o700)
    prepare(run_dir / SOCKET_NAME)
    before = run_dir.lstat().st_ino, (run_dir / SOCKET_NAME).is_symlink()
    with serve(run_dir, heard) as server:
        assert told.replace("owner 0", f"owner {os.geteuid()}") in heard.log[0][1]
        time_to_try_again(server)
        assert (run_dir.lstat().st_ino, (run_dir / SOCKET_NAME).is_symlink()) == before
        run_dir.rename(root / "away")
        wait_until(lambda: answers(run_dir), "an answer")
    assert len(heard.log) == 1


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (Path("/tmp") / ("d" * 100), "a socket path may have 107 bytes, this one has 118; choose a shorter --run-dir"),
        (Path("/proc/nvdp"), "cannot be made: No such file or directory; see --run-dir"),
    ],
)
def test_a_place_that_cannot_be_had_is_a_warning(path: Path, told: str):
    heard = Heard()
    with serve(path, heard):
        assert heard.log[0][0] is Reason.PORT_TAKEN
        assert told in heard.log[0][1]


def test_a_socket_that_is_deleted_is_made_again(run_dir: Path):
    with serve(run_dir):
        (run_dir / SOCKET_NAME).unlink()
        wait_until(lambda: answers(run_dir), "a new socket")
        shutil.rmtree(run_dir)
        wait_until(lambda: answers(run_dir), "a new directory and socket")


def test_a_socket_that_somebody_put_in_its_place_is_left_alone_also_at_the_end(run_dir: Path):
    path, heard = run_dir / SOCKET_NAME, Heard()
    with serve(run_dir, heard):
        path.unlink()
        with open_socket(path)[0]:
            wait_until(lambda: heard.log, "a word about it")
    assert path.exists()


def test_its_own_socket_is_removed_at_the_end_and_serves_again_after_it(run_dir: Path):
    for _ in range(20):
        with serve(run_dir):
            assert answers(run_dir)
        assert not (run_dir / SOCKET_NAME).exists()


def test_of_many_that_start_at_once_one_serves(run_dir: Path):
    with contextlib.ExitStack() as stack:
        heard = [Heard() for _ in range(8)]
        servers = [
            ControlServer(run_dir, routes={STATUS_PATH: answer_status}, log=one.write, defect=print, look_every_s=0.05)
            for one in heard
        ]
        for server in servers:
            stack.callback(server.stop)
            server.start()
        wait_until(lambda: sum(server.trouble is not None for server in servers) == 7, "seven that wait")
        assert answers(run_dir)


# who asks badly


def test_garbage_and_half_and_oversized_requests_cost_one_connection(served: Path):
    for data in (
        b"",
        b"\0" * 1000,
        b"GET /sta",
        b"GET /status HTTP/1.0\r\n" + b"X: " + b"a" * 1_000_000 + b"\r\n\r\n",
        b"GET /status HTTP/1.0\r\n" + b"X: a\r\n" * 100_000 + b"\r\n",
        b"GET /" + b"a" * 1_000_000 + b" HTTP/1.0\r\n\r\n",
        b"POST /status HTTP/1.0\r\nContent-Length: 1000000000\r\n\r\n",
        b"GET /etc/passwd HTTP/1.0\r\n\r\n",
    ):
        assert b"sha256" not in send(served, data)
        assert answers(served)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_no_bytes_break_it(served: Path, data: bytes):
    send(served, data)
    assert answers(served)


def test_two_hundred_silent_connections_do_not_keep_anybody_out(served: Path):
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            silent = stack.enter_context(connect(served))
            silent.sendall(b"GET /st")
        assert answers(served)


def test_a_peer_that_sends_byte_by_byte_holds_up_nobody(served: Path):
    with connect(served) as slow:
        for byte in b"GET /status HTTP/1.0\r\n":
            slow.sendall(bytes([byte]))
            assert answers(served)


def test_peers_that_hang_up_at_once_do_not_matter(served: Path):
    for _ in range(300):
        with connect(served):
            pass
    assert answers(served)


def test_a_defect_in_an_answer_is_reported_and_the_asker_is_told(run_dir: Path):
    heard = Heard()

    def broken(_query: object) -> Response:
        raise KeyError("secret")

    with serve(run_dir, heard, answer=broken, is_up=(run_dir / SOCKET_NAME).exists):
        assert "500 Internal Server Error" in refusal(run_dir)
    assert {type(error) for error in heard.defects} == {KeyError}


# what the asker is told


@contextlib.contextmanager
def peer(run_dir: Path, *parts: bytes, pause_s: float = 0.0, hold: bool = False) -> Iterator[None]:
    """Somebody else on the socket, who answers one connection with ``parts``."""
    over = threading.Event()
    listening, _ = open_socket(run_dir / SOCKET_NAME)

    def answer() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                for part in parts:
                    connection.sendall(part)
                    over.wait(pause_s)
                if hold:
                    over.wait(LIMIT_S)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        over.set()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        listening.close()


def refusal(run_dir: Path, *, timeout_s: float = LIMIT_S) -> str:
    with pytest.raises(HostError) as caught:
        load_status(run_dir, timeout_s=timeout_s)
    text = str(caught.value)
    assert text.startswith(str(run_dir / SOCKET_NAME))
    assert "\n" not in text
    return text


def test_no_daemon_is_told_with_where_to_look(run_dir: Path):
    assert "no nvdp runs here, or its --run-dir is another one; look at its pod and its log" in refusal(run_dir)


def test_a_daemon_that_was_killed_is_told(run_dir: Path):
    open_socket(run_dir / SOCKET_NAME)[0].close()
    assert "nvdp has ended; the log of its pod says why" in refusal(run_dir)


def test_a_path_that_no_socket_can_have_is_told():
    assert "see --run-dir" in refusal(Path("/tmp") / ("d" * 100))


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ((), "it hung up"),
        ((b"garbage\r\n\r\n",), "what listens there is not nvdp"),
        ((b"HTTP/1.0 200 OK\r\n\r\nnot json",), "no nvdp of this version answers there"),
        ((b"HTTP/1.0 200 OK\r\n\r\n[" + b"[" * 100_000,), "no nvdp of this version answers there"),
        ((b'HTTP/1.0 200 OK\r\n\r\n{"ready": 5}',), "no nvdp of this version answers there"),
        ((b"HTTP/1.0 200 OK\r\n\r\n\xff\xfe",), "no nvdp of this version answers there"),
        ((b"HTTP/1.0 200 OK\r\nContent-Length: 100\r\n\r\n{}",), "not nvdp"),
        ((b"HTTP/1.0 404 Not Found\r\n\r\n",), "404 Not Found"),
        ((b"HTTP/1.0 200 OK\r\n" + b"X: a\r\n" * 1000,), "not nvdp"),
        ((b"HTTP/1.0 200 OK\r\n\r\n", b"a" * (65 * 2**20)), "not nvdp"),
    ],
)
def test_an_answer_that_is_none_is_told(run_dir: Path, parts: tuple[bytes, ...], told: str):
    with peer(run_dir, *parts):
        assert told in refusal(run_dir)


def test_a_daemon_that_does_not_answer_is_given_up_in_time(run_dir: Path):
    with peer(run_dir, hold=True):
        assert "nvdp runs, and does not get to an answer" in refusal(run_dir, timeout_s=0.3)


def test_an_answer_that_comes_too_slowly_is_given_up_in_time(run_dir: Path):
    started = time.monotonic()
    with peer(run_dir, b"HTTP/1.0 200 OK\r\n\r\n", *[b" "] * 1000, pause_s=0.05):
        assert "nvdp runs, and does not get to an answer" in refusal(run_dir, timeout_s=0.5)
    assert time.monotonic() - started < 5
