"""``nvdp status``: its text, its JSON, its exit codes, and what it does while it watches."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from nvdp.__main__ import main
from nvdp.commands.status_text import WIDTH, build_text, no_style
from nvdp.http.control_server import ControlServer
from nvdp.http.routes import STATUS_PATH, Response
from nvdp.model.held import Holding
from nvdp.model.inventory import Fault, UnreadableGpu
from nvdp.model.listing import Strategy
from nvdp.model.mps import Phase
from nvdp.model.pause import Pause
from nvdp.model.reasons import Cause
from nvdp.model.status import (
    ConfigStatus,
    DeviceStatus,
    DriverState,
    DriverStatus,
    MpsDaemonStatus,
    MpsMemoryStatus,
    MpsServerStatus,
    MpsStatus,
    ResourceStatus,
    Status,
    Trouble,
    Wait,
    Withheld,
)
from nvdp.planning.diagnosis import diagnose

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 20.0
LONGEST = "example.com/" + "x" * 51  # a resource's name has 63 characters at most
AT = 1795921927.0


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-d33e-4f0b-8f7e-2b1d6a0c9e55"


def device(number: int, **facts: object) -> DeviceStatus:
    known: dict[str, object] = {
        "pci": f"0000:{number:02x}:00.0",
        "product": "NVIDIA A100-SXM4-80GB",
        "mig": "disabled",
        "memory_bytes": 80 * 2**30,
        "healthy": True,
        "cause": None,
        "text": "",
        "changed_at": 0.0,
        "resource": "nvidia.com/gpu.shared",
        "replicas": 10,
        "strategy": Strategy.TIME_SLICING,
    }
    return DeviceStatus(**({"uuid": uuid(number), "index": number} | known | facts))


def holding(number: int, replica: int, pod: str, resource: str = "nvidia.com/gpu.shared") -> Holding:
    device_id = f"{uuid(number)}::{replica}"
    return Holding(resource=resource, device_id=device_id, namespace="team-a", pod=pod, container="main")


def resource(name: str = "nvidia.com/gpu.shared", **facts: object) -> ResourceStatus:
    known: dict[str, object] = {
        "planned": 20,
        "healthy": 20,
        "unhealthy": 0,
        "registered": True,
        "streams": 1,
        "strategy": Strategy.TIME_SLICING,
        "replicas": (10,),
    }
    return ResourceStatus(name=name, **(known | facts))


WELL = Status(
    ready=True,
    reason="",
    config=ConfigStatus(valid=True, hash="sha256:1f0c9a2e77b0", source="/config/mixed", applied_at=AT),
    driver=DriverStatus(state=DriverState.READY, version="580.65.06", cuda_version="13.0"),
    resources=(resource(),),
    devices=(device(0), device(1)),
    holders=(holding(0, 0, "nb-1"), holding(0, 1, "nb-1"), holding(1, 0, "nb-2")),
    podresources_up=True,
    scanned_at=AT,
)
DEGRADED = msgspec.structs.replace(WELL, troubles=(Trouble(reason="PortTaken", text="port 9402 is in use"),))
NOT_READY = Status(
    reason="DriverMissing",
    config=ConfigStatus(valid=True, hash="sha256:1f0c9a2e77b0", source="/config/mixed"),
    driver=DriverStatus(state=DriverState.MISSING, text="libnvidia-ml.so.1 not found"),
)


def text_of(status: Status) -> str:
    return build_text(status, diagnose(status), style=no_style)


# what it looks like


def test_a_node_on_which_all_is_well_is_shown_in_a_few_lines():
    assert text_of(WELL) == (
        "ready\n\n"
        "RESOURCES\n"
        "RESOURCE               DEVICES  HEALTHY  SHARING            KUBELET\n"
        "nvidia.com/gpu.shared       20       20  time-slicing × 10  registered\n\n"
        "DEVICES\n"
        "INDEX  GPU           PRODUCT                STATE    OFFERED AS\n"
        "    0  GPU-00000000  NVIDIA A100-SXM4-80GB  healthy  nvidia.com/gpu.shared × 10\n"
        "    1  GPU-00000001  NVIDIA A100-SXM4-80GB  healthy  nvidia.com/gpu.shared × 10\n\n"
        "HELD BY\n"
        "GPU 0  nvidia.com/gpu.shared  2  team-a/nb-1 × 2\n"
        "GPU 1  nvidia.com/gpu.shared  1  team-a/nb-2\n\n"
        "CONFIGURATION\n"
        "in force  sha256:1f0c9a2e77b0  /config/mixed  since 2026-11-29T03:12:07Z\n\n"
        "DRIVER\n"
        "Ready  580.65.06, CUDA 13.0"
    )


def test_what_is_wrong_comes_first_with_what_to_do():
    assert text_of(NOT_READY).startswith(
        "not ready: DriverMissing\n\n"
        "DriverMissing: libnvidia-ml.so.1 not found\n"
        "  → if nvidia-smi fails on the node too, install the driver; else"
    )
    assert text_of(DEGRADED).startswith("ready, but degraded\n\nPortTaken: port 9402 is in use\n  → ss -ltnp")


def test_a_node_without_anything_says_so():
    text = text_of(Status())
    assert "RESOURCES\nnone" in text
    assert "DEVICES\nnone" in text
    assert "CONFIGURATION\nin force  none" in text


def test_every_state_of_a_device_has_its_word():
    devices = (
        device(0, healthy=False, cause=Cause.LOST, withheld="Held"),
        device(1, withheld="Held"),
        device(2, withheld="MPSUnsupported", resource=""),
        device(3, resource="nvidia.com/gpu", strategy=Strategy.NONE, replicas=1),
    )
    unreadable = UnreadableGpu(index=4, fault=Fault(call="c", kind="k", text="t"))
    text = text_of(msgspec.structs.replace(WELL, devices=devices, unreadable=(unreadable,)))
    table = text.split("\n\nDEVICES\n")[1].split("\n\n")[0].splitlines()[1:]
    assert [re.split(r"  +", line.strip())[3:] for line in table] == [
        ["Lost", "nvidia.com/gpu.shared × 10"],
        ["Held", "nvidia.com/gpu.shared × 10"],
        ["MPSUnsupported", "-"],
        ["healthy", "nvidia.com/gpu"],
        ["unreadable", "-"],
    ]


def test_a_gpu_that_is_offered_in_mig_devices_says_so():
    part = device(
        0, uuid="MIG-1", parent_uuid=uuid(0), instance=0, profile="1g.10gb", resource="nvidia.com/mig-1g.10gb"
    )
    whole = device(0, resource="", mig="enabled")
    idle = device(1, resource="", mig="enabled")
    text = text_of(msgspec.structs.replace(WELL, devices=(whole, part, idle)))
    table = text.split("\n\nDEVICES\n")[1].split("\n\n")[0].splitlines()[1:]
    assert [re.split(r"  +", line.strip())[-1] for line in table] == [
        "in MIG devices",
        "nvidia.com/mig-1g.10gb × 10",
        "-",
    ]


@pytest.mark.parametrize(
    ("facts", "word"),
    [({}, "registered"), ({"registered": False}, "not registered"), ({"registered": False, "planned": 0}, "leaving")],
)
def test_every_state_before_the_kubelet_has_its_word(facts, word):
    text = text_of(msgspec.structs.replace(WELL, resources=(resource(**facts),)))
    assert f"time-slicing × 10  {word}\n" in text


def test_a_control_daemon_of_mps_has_a_line_of_its_own_and_what_nobody_knows_is_said_so():
    servers = tuple(
        MpsServerStatus(pid=pid, state=state) for pid, state in ((8, "active"), (9, "active"), (10, "fault"))
    )
    daemons = (
        MpsDaemonStatus(resource="nvidia.com/a.mps", phase=Phase.FAILED, restarts=12),
        MpsDaemonStatus(
            resource="nvidia.com/b.mps",
            phase=Phase.READY,
            gpus=(uuid(0),),
            thread_percent=25,
            memory=(MpsMemoryStatus(gpu_uuid=uuid(0), mib=9216),),
            pid=4711,
            clients=3,
            servers=servers,
        ),
        MpsDaemonStatus(resource="nvidia.com/c.mps"),
    )
    text = text_of(msgspec.structs.replace(WELL, mps=MpsStatus(daemons=daemons)))
    assert text.split("\n\nMPS\n")[1].split("\n\n")[0] == (
        "CONTROL DAEMON    STATE     PID  GPUS  LIMITS          CLIENTS  SERVERS          RESTARTS\n"
        "nvidia.com/a.mps  failed      -     0  -                     0  -                      12\n"
        "nvidia.com/b.mps  ready    4711     1  25 %, 9216 MiB        3  2 active, fault         0\n"
        "nvidia.com/c.mps  unknown     -     0  -                     0  -                       0"
    )
    assert "\nMPS\n" not in text_of(WELL)


def test_what_a_control_daemon_waits_with_is_among_the_waits_with_its_pods():
    pods = tuple(f"team-a/notebook-{number}" for number in range(9))
    waiting = MpsDaemonStatus(
        resource="nvidia.com/a.mps", phase=Phase.READY, pending="GPU 1 leaves it, 25 % → 50 % threads", holders=pods
    )
    idle = msgspec.structs.replace(waiting, resource="nvidia.com/b.mps", holders=())
    text = text_of(msgspec.structs.replace(WELL, mps=MpsStatus(daemons=(waiting, idle))))
    assert "nvidia.com/a.mps  GPU 1 leaves it, 25 % → 50 % threads  for team-a/notebook-0 and 8 more" in text
    assert "nvidia.com/b.mps  GPU 1" not in text


def test_waits_and_a_refused_and_a_waiting_edit_are_shown():
    config = msgspec.structs.replace(
        WELL.config, valid=False, refused="/config/mixed:1:1: wrong", pending="sha256:2", pending_until=AT
    )
    waits = (
        Wait(gpu_uuid=uuid(0), before="a", after="b", devices=1, holders=("team-a/nb-1",), since=AT),
        Wait(gpu_uuid="GPU-gone-for-good", before="a", devices=3, since=AT),
        Wait(gpu_uuid=uuid(0), before="a", devices=1, holders=("team-a/nb-1",), text="held as index 3", since=AT),
    )
    text = text_of(msgspec.structs.replace(WELL, config=config, waits=waits))
    assert "GPU 0  a → b  for team-a/nb-1 since 2026-11-29T03:12:07Z\n" in text
    assert "GPU 0  no new pods: held as index 3  since 2026-11-29T03:12:07Z\n" in text
    assert "GPU-gone-for  3 of a leave  for the kubelet to take note since" in text
    assert "refused   /config/mixed:1:1: wrong\nwaits     sha256:2  until 2026-11-29T03:12:07Z" in text


def test_what_chose_the_configuration_is_shown_and_what_is_known_of_the_choice():
    chosen = msgspec.structs.replace(WELL.config, source="configmap nvdp/c:mixed", chosen_by="label a=mixed")
    unknown = msgspec.structs.replace(chosen, refused="configmap nvdp/c: label a=zzz names none", unknown=True)
    awaited = msgspec.structs.replace(chosen, waiting="node gpu-a3: not answered yet")
    for config, line in (
        (chosen, "in force  sha256:1f0c9a2e77b0  configmap nvdp/c:mixed (label a=mixed)  since"),
        (unknown, "unknown   configmap nvdp/c: label a=zzz names none"),
        (awaited, "awaited   node gpu-a3: not answered yet"),
    ):
        assert line in text_of(msgspec.structs.replace(WELL, config=config))


def build_large() -> Status:
    """16 GPUs with the longest of names, each held by 100 pods, all of which wait for something."""
    devices = tuple(device(number, product="NVIDIA " + "X" * 60, resource=LONGEST) for number in range(16))
    holders = tuple(holding(n, r, f"notebook-of-somebody-{n}-{r}", LONGEST) for n in range(16) for r in range(100))
    waits = tuple(
        Wait(
            gpu_uuid=one.uuid,
            before=LONGEST,
            after="y" * 63,
            devices=100,
            holders=tuple(held.holder for held in holders),
            since=AT,
        )
        for one in devices
    )
    withheld = tuple(
        Withheld(gpu_uuid=one.uuid, reason="MPSUnsupported", path=f"sharing.mps.resources[{one.index}]", text="z" * 500)
        for one in devices
    )
    return msgspec.structs.replace(
        WELL,
        pause=Pause(by="nvdp pause", note="w" * 200, since=AT),
        resources=(resource(LONGEST, replicas=(10, 100)), resource("nvidia.com/gpu", replicas=(1,))),
        devices=devices,
        holders=holders,
        waits=waits,
        withheld=withheld,
        unreadable=(UnreadableGpu(index=16, fault=Fault(call="c", kind="k", text="t")),),
        troubles=(Trouble(reason="PortTaken", text="port 9402 is in use"),),
        mps=MpsStatus(
            daemons=tuple(
                MpsDaemonStatus(
                    resource=f"{LONGEST[:-2]}{number:02}",
                    phase=Phase.FAILED,
                    text="u" * 200,
                    servers=(MpsServerStatus(pid=2**22, state="initializing"),),
                    thread_percent=100,
                    memory=tuple(MpsMemoryStatus(gpu_uuid=one.uuid, mib=2**17 - one.index) for one in devices),
                    pending="p" * 300,
                    holders=("team-a/" + "q" * 60,),
                    last_lines=("v" * 500,) * 10,
                )
                for number in range(4)
            )
        ),
        unmatched=tuple(f"devices.cordon[{number}]: {uuid(100)} is not on this node" for number in range(50)),
    )


def test_a_large_node_stays_readable_and_no_line_is_longer_than_100_columns():
    text = text_of(build_large())
    assert max(map(len, text.splitlines())) <= WIDTH
    assert len(text.splitlines()) < 250
    assert LONGEST in text.splitlines()
    assert "team-a/notebook-of-somebody-0-0, team-a/notebook-of-somebody-0-1 and 98 more" in text
    assert "more, which nvdp status --json has" in text


def test_where_there_is_room_more_pods_are_named():
    holders = tuple(holding(0, number, f"nb-{number}") for number in range(100))
    (line,) = [line for line in text_of(msgspec.structs.replace(WELL, holders=holders)).splitlines() if "and" in line]
    assert re.fullmatch(r"GPU 0  nvidia.com/gpu.shared  100  (team-a/nb-\d+, ){3}team-a/nb-\d+ and 96 more", line)
    assert len(line) <= WIDTH


# the command


class Daemon:
    """Answers for one: its status is what a test says."""

    def __init__(self, run_dir: Path, status: Status) -> None:
        self.run_dir, self.status, self.asked = run_dir, status, 0
        self._server: ControlServer | None = None

    def start(self) -> None:
        self._server = ControlServer(
            self.run_dir,
            routes={STATUS_PATH: self._answer},
            log=lambda *_, **__: None,
            defect=print,
        )
        self._server.start()
        deadline = time.monotonic() + LIMIT_S
        while not (self.run_dir / "control.sock").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def _answer(self, _query: object) -> Response:
        self.asked += 1
        return Response(body=msgspec.json.encode(self.status))

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    run_dir = Path(tempfile.mkdtemp(prefix="nv", dir="/tmp"))
    found = Daemon(run_dir, WELL)
    found.start()
    yield found
    found.stop()
    shutil.rmtree(run_dir)


@pytest.mark.parametrize(("status", "code"), [(WELL, 0), (DEGRADED, 3), (NOT_READY, 4)])
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_the_exit_code_says_how_it_is(daemon, status, code, flags, capsys):
    daemon.status = status
    assert main(["status", "--run-dir", str(daemon.run_dir), *flags]) == code
    assert capsys.readouterr().out


def test_notes_are_no_degradation(daemon, capsys):
    daemon.status = msgspec.structs.replace(WELL, unmatched=("devices.cordon[0]: 7 is not on this node",))
    assert main(["status", "--run-dir", str(daemon.run_dir)]) == 0
    assert capsys.readouterr().out.startswith("ready\n\nConfigReferenceUnmatched: ")


def test_a_daemon_that_cannot_be_asked_is_one_line_and_exit_code_1(daemon, capsys):
    daemon.stop()
    assert main(["status", "--run-dir", str(daemon.run_dir)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith(f"{daemon.run_dir}/control.sock: no nvdp runs here")


def test_the_directory_comes_from_the_environment_too(daemon, monkeypatch, capsys):
    monkeypatch.setenv("NVDP_RUN_DIR", str(daemon.run_dir))
    assert main(["status"]) == 0
    assert capsys.readouterr().out.startswith("ready\n")


def test_wrong_usage_is_exit_code_2(capsys):
    assert main(["status", "--no-such-flag"]) == 2
    assert main(["status", "everything"]) == 2
    assert "Try nvdp status --help" in capsys.readouterr().err


def test_json_has_all_of_it_under_the_names_that_are_documented(daemon, capsys):
    daemon.status = build_large()
    main(["status", "--json", "--run-dir", str(daemon.run_dir)])
    document = json.loads(capsys.readouterr().out)
    page = (ROOT / "docs/status.md").read_text()
    documented = set(re.findall(r"^\| `\.([\w.\[\]]+)`", page, re.MULTILINE))
    assert set(list_names(document)) == documented
    assert len(document["holders"]) == 1600
    assert document["config"]["appliedAt"] == "2026-11-29T03:12:07Z"
    assert document["devices"][0]["changedAt"] is None


def list_names(value: object, before: str = "") -> Iterator[str]:
    """The dotted names of a document, with ``[]`` for the members of a list."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f"{before}{name}"
            yield from list_names(inner, f"{before}{name}.")
    elif isinstance(value, list):
        for item in value:
            yield from list_names(item, f"{before.removesuffix('.')}[].")


def run(daemon: Daemon, *flags: str, **environment: str) -> list[str]:
    return [sys.executable, "-m", "nvdp", "status", "--run-dir", str(daemon.run_dir), *flags]


def test_it_is_quick_and_imports_nothing_heavy(daemon):
    asking = (
        "import sys; from nvdp.__main__ import main; main(sys.argv[1:]);"
        "print([name for name in ('grpc', 'yaml', 'rich', 'pynvml', 'watchdog', 'prometheus_client')"
        " if name in sys.modules])"
    )
    command = [sys.executable, "-c", asking, "status", "--run-dir", str(daemon.run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def read_terminal(command: list[str], environment: dict[str, str]) -> bytes:
    """What a command writes to a terminal of its own, until it ends."""
    leader, follower = pty.openpty()
    with subprocess.Popen(command, stdout=follower, stderr=follower, env={**os.environ, **environment}) as process:
        os.close(follower)
        received = b""
        with contextlib.suppress(OSError):  # the terminal ends with its last user
            while part := os.read(leader, 65536):
                received += part
        process.wait(LIMIT_S)
    os.close(leader)
    return received


@pytest.mark.parametrize(
    ("environment", "has_colour"),
    [({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": "", "TERM": "dumb"}, False)],
)
def test_a_terminal_gets_colours_unless_it_wants_none(daemon, environment, has_colour):
    daemon.status = NOT_READY
    received = read_terminal(run(daemon), {"TERM": "xterm", **environment})
    assert (b"\x1b[" in received) is has_colour
    plain = re.sub(rb"\x1b\[[0-9;]*m", b"", received).replace(b"\r\n", b"\n").decode()
    assert plain == text_of(NOT_READY) + "\n"


class Watching:
    """``nvdp status --watch``, whose output is read as it comes."""

    def __init__(self, daemon: Daemon, *flags: str) -> None:
        self._output = Path(tempfile.mkstemp(prefix="nv")[1])
        with self._output.open("wb") as stream:
            self.process = subprocess.Popen(run(daemon, "--watch", *flags), stdout=stream, stderr=stream)

    def read(self) -> str:
        return self._output.read_text()

    def wait_for(self, predicate: Callable[[str], bool], what: str) -> str:
        deadline = time.monotonic() + LIMIT_S
        while not predicate(self.read()):
            assert self.process.poll() is None, self.read()
            assert time.monotonic() < deadline, f"{what} in {self.read()!r}"
            time.sleep(0.02)
        return self.read()

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(LIMIT_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._output.unlink()


@pytest.fixture
def watch(daemon) -> Iterator[Callable[..., Watching]]:
    started: list[Watching] = []

    def start(*flags: str) -> Watching:
        started.append(Watching(daemon, *flags))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_watching_shows_each_change_once_through_restarts_of_the_daemon_until_interrupted(daemon, watch):
    watching = watch()
    watching.wait_for(lambda text: "\nready\n" in text, "ready")
    daemon.status = msgspec.structs.replace(WELL, scanned_at=AT + 10, queue_length=1)  # nothing that matters
    time_to_look(daemon)
    daemon.status = DEGRADED
    watching.wait_for(lambda text: "PortTaken" in text, "a change")
    daemon.stop()
    watching.wait_for(lambda text: "no nvdp runs here" in text, "that it is away")
    daemon.status = WELL
    daemon.start()
    text = watching.wait_for(lambda text: text.count("\nready\n") == 2, "that it is back")
    assert watching.interrupt() == 130
    assert text.count("\nat 2") + text.startswith("at 2") == 4


def time_to_look(daemon: Daemon) -> None:
    """Wait until it was asked twice more: the first of them may have been under way."""
    before, deadline = daemon.asked, time.monotonic() + LIMIT_S
    while daemon.asked < before + 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_watching_as_json_is_an_object_a_line(daemon, watch):
    watching = watch("--json")
    watching.wait_for(lambda text: text.count("\n") == 1, "one line")
    daemon.stop()
    lines = watching.wait_for(lambda text: text.count("\n") == 2, "two lines").splitlines()
    assert watching.interrupt() == 130
    first, second = map(json.loads, lines)
    assert (first["ready"], first["scannedAt"]) == (True, None)
    assert "no nvdp runs here" in second["error"]


def test_watching_on_a_terminal_fills_it_from_the_top_and_no_further_than_it_goes(daemon):
    daemon.status = build_large()
    leader, follower = pty.openpty()
    with subprocess.Popen(run(daemon, "--watch"), stdout=follower, env={**os.environ, "TERM": "xterm"}) as process:
        os.close(follower)
        received = b""
        while b"lines more" not in received:
            received += os.read(leader, 65536)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
    os.close(leader)
    assert received.startswith(b"\x1b[H\x1b[2J")
    assert received.count(b"\n") <= 24
