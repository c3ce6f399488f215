"""The log as its readers see it: lines of text, lines of JSON, and what never gets through."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.log import Log, StreamLog, configure_log, describe_exception, write_termination_message
from nvdp.model.reasons import Cause, Level, Reason

GPU = "GPU-9a1b77c0-d33e-4f0b-8f7e-2b1d6a0c9e55"
MOMENT = 1795921927.114  # 2026-11-29T03:12:07.114Z


class Clock:
    def __init__(self) -> None:
        self.now = MOMENT

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def log(stream: io.StringIO, clock: Clock) -> StreamLog:
    return configure_log(format="json", stream=stream, clock=clock)


def read(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_of_json_has_time_level_reason_and_sentence_then_the_fields(log: Log, stream: io.StringIO):
    log(Reason.DEVICE_UNHEALTHY, "fallen off the bus", device=GPU, index=3, pods=["team-a/nb-1"], seconds=0.004)
    assert stream.getvalue() == (
        '{"time":"2026-11-29T03:12:07.114Z","level":"error","reason":"DeviceUnhealthy","msg":"fallen off the bus",'
        f'"device":"{GPU}","index":3,"pods":["team-a/nb-1"],"seconds":0.004}}\n'
    )


def test_a_line_of_text_says_whom_it_concerns_and_does_not_repeat_what_the_sentence_says(
    stream: io.StringIO, clock: Clock
):
    log = configure_log(format="text", stream=stream, clock=clock)
    log(
        Reason.DEVICE_UNHEALTHY,
        "XID 79, fallen off the bus",
        device=GPU,
        index=3,
        pci="0000:47:00.0",
        xid=79,
        seconds=0.004,
    )
    log(Reason.RESOURCE_REGISTERED, "20 devices on 2 GPUs, 20 healthy", resource="nvidia.com/gpu.shared", devices=20)
    log(Reason.SHARING_UNISOLATED, "nvidia.com/gpu: 4 containers share one GPU", resource="nvidia.com/gpu")
    assert stream.getvalue().splitlines() == [
        (
            "2026-11-29T03:12:07.114Z ERROR DeviceUnhealthy     GPU-9a1b77c0 (index 3, 0000:47:00.0): "
            "XID 79, fallen off the bus  (0.004s)"
        ),
        "2026-11-29T03:12:07.114Z INFO  ResourceRegistered  nvidia.com/gpu.shared: 20 devices on 2 GPUs, 20 healthy",
        "2026-11-29T03:12:07.114Z WARN  SharingUnisolated   nvidia.com/gpu: 4 containers share one GPU",
    ]


def test_of_what_a_process_wrote_a_line_of_text_has_the_end_alone_and_once(stream: io.StringIO, clock: Clock):
    log = configure_log(format="text", stream=stream, clock=clock)
    wrote = ["it starts", "no CUDA here"]
    for sentence in ("it has ended: no CUDA here", "it has ended"):
        log(Reason.MPS_DAEMON_FAILED, sentence, resource="nvidia.com/m", last_lines=wrote)
    assert [line.partition("nvidia.com/m: ")[2] for line in stream.getvalue().splitlines()] == [
        "it has ended: no CUDA here",
        "it has ended  (lastLines no CUDA here)",
    ]


@pytest.mark.parametrize(
    ("msg", "seconds", "shown"),
    [
        ("8 GPUs in 0.370s", 0.37, "8 GPUs in 0.370s"),
        ("8 GPUs", 0.37, "8 GPUs  (0.370s)"),
        ("handed out", 0.000171494, "handed out  (0.000171s)"),
        ("back", 12, "back  (12.000s)"),
        ("handed out", "soon", "handed out"),
    ],
)
def test_a_duration_is_told_once_and_not_finer_than_anyone_reads(
    msg: str, seconds: object, shown: str, stream: io.StringIO, clock: Clock
):
    configure_log(format="text", stream=stream, clock=clock)(Reason.ALLOCATION_SERVED, msg, seconds=seconds)
    assert stream.getvalue().rstrip().endswith(f"AllocationServed    {shown}")


def test_keys_are_lower_camel_case_and_enums_are_written_as_their_words(log: Log, stream: io.StringIO):
    log(Reason.STARTING, "nvdp", boot_id="x", cause=Cause.CALL_TIMEOUT, reasons=(Reason.STOPPED,), path=Path("/a"))
    line = read(stream)[0]
    assert (line["bootId"], line["cause"], line["reasons"], line["path"]) == ("x", "CallTimeout", ["Stopped"], "/a")


def test_without_a_format_a_terminal_gets_text_and_anything_else_json():
    leader, follower = os.openpty()
    with os.fdopen(follower, "w") as terminal:
        configure_log(stream=terminal)(Reason.STARTING, "nvdp")
    assert b"INFO  Starting" in os.read(leader, 4096)
    os.close(leader)
    plain = io.StringIO()
    configure_log(stream=plain)(Reason.STARTING, "nvdp")
    assert read(plain)[0]["reason"] == "Starting"


def test_lines_below_the_level_are_not_written(stream: io.StringIO):
    log = configure_log(format="json", level="warning", stream=stream)
    log(Reason.STARTING, "nvdp")
    log(Reason.ALLOCATION_SEEN, "debug")
    log(Reason.PORT_TAKEN, "port 9402 is in use")
    log(Reason.STOPPED, "cannot go on", level=Level.ERROR)
    assert [(line["reason"], line["level"]) for line in read(stream)] == [
        ("PortTaken", "warning"),
        ("Stopped", "error"),
    ]


def test_a_traceback_is_one_field_and_shown_at_debug_level_or_for_a_defect(stream: io.StringIO):
    try:
        raise KeyError("uuid")  # noqa: TRY301 - a traceback is what is tested
    except KeyError as error:
        fields = describe_exception(error)
    info, debug = (
        configure_log(format="json", stream=stream),
        configure_log(format="json", level="debug", stream=stream),
    )
    info(Reason.DRIVER_LOST, "gone", **fields)
    debug(Reason.DRIVER_LOST, "gone", **fields)
    info(Reason.SERVICE_RESTARTED, "gpus died", **fields)
    without, with_trace, defect = read(stream)
    assert without["error"] == "KeyError: 'uuid'"
    assert "trace" not in without
    assert with_trace["trace"] == defect["trace"]
    assert "test_log.py" in defect["trace"]


def test_control_characters_cannot_forge_a_line_or_command_the_terminal(stream: io.StringIO):
    log = configure_log(format="text", stream=stream)
    log(Reason.CONFIG_REFUSED, "a\n2026 INFO Forged\x1b[2J\u2028b", config="x\ry", error="\x00")
    assert len(stream.getvalue().splitlines()) == 1
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", stream.getvalue())


def test_huge_values_are_bounded(log: Log, stream: io.StringIO):
    nested: list = []
    nested.append(nested)
    log(
        Reason.STARTING,
        "x" * 10_000_000,
        error="y" * 10_000_000,
        ids=list(range(100_000)),
        nested=nested,
        map={str(i): i for i in range(10_000)},
        number=1 << 200,
        trace="z" * 10_000_000,
    )
    assert len(stream.getvalue()) < 40_000
    assert read(stream)[0]["ids"][-1] == "… 99900 more"


def test_values_that_cannot_be_shown_lose_no_line(log: Log, stream: io.StringIO):
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError

    class BrokenMap(dict):
        def items(self):
            raise RuntimeError

    log(Reason.STARTING, "one", value=Broken())
    log(Reason.STARTING, "two", value=BrokenMap(a=1))
    assert [line["msg"] for line in read(stream)] == ["one", "two"]


@given(
    st.text(),
    st.dictionaries(
        st.text().filter(lambda name: name not in {"level", "self"}),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=20,
        ),
        max_size=6,
    ),
)
def test_any_sentence_and_any_fields_make_one_object_on_one_line(msg: str, fields: dict):
    stream = io.StringIO()
    configure_log(format="json", stream=stream)(Reason.STARTING, msg, **fields)
    written = stream.getvalue()
    assert written.endswith("\n")
    assert written.count("\n") == 1
    assert json.loads(written)["reason"] == "Starting"
    written.encode()


def test_a_closed_or_full_stderr_is_not_an_error(tmp_path: Path):
    closed = io.StringIO()
    closed.close()
    configure_log(format="json", stream=_NeverTerminal(closed))(Reason.STARTING, "nvdp")
    with Path("/dev/full").open("w") as full:
        configure_log(format="json", stream=full)(Reason.STARTING, "nvdp")


class _NeverTerminal:
    """A closed stream whose ``isatty`` is not asked."""

    def __init__(self, stream: io.StringIO) -> None:
        self.write, self.flush = stream.write, stream.flush


def test_the_same_warning_is_written_once_and_then_counted_every_ten_minutes(
    log: StreamLog, stream: io.StringIO, clock: Clock
):
    for attempt in range(13):
        log(Reason.REGISTRATION_FAILED, f"try {attempt}: no answer", resource="nvidia.com/gpu")
        clock.now += 46
    clock.now += 2
    log(Reason.REGISTRATION_FAILED, "try 13: no answer", resource="nvidia.com/gpu")
    log.flush()
    lines = read(stream)
    assert [line["msg"] for line in lines] == [
        "try 0: no answer",
        "try 12: no answer (again 12 times in 10m)",
        "try 13: no answer (again 1 times in 0s)",
    ]
    assert lines[1]["repeats"] == 12
    assert {line["resource"] for line in lines} == {"nvidia.com/gpu"}


def test_another_subject_or_another_text_is_no_repeat(log: Log, stream: io.StringIO):
    for resource in ("nvidia.com/a", "nvidia.com/b", "nvidia.com/a"):
        log(Reason.REGISTRATION_FAILED, "no answer", resource=resource)
    log(Reason.REGISTRATION_FAILED, "refused", resource="nvidia.com/a")
    assert [(line["resource"], line["msg"]) for line in read(stream)] == [
        ("nvidia.com/a", "no answer"),
        ("nvidia.com/b", "no answer"),
        ("nvidia.com/a", "refused"),
    ]


def test_a_warning_is_news_again_after_something_better_was_said_of_its_subject(log: Log, stream: io.StringIO):
    for _ in range(2):
        log(Reason.DRIVER_MISSING, "libnvidia-ml.so.1 not found")
        log(Reason.DRIVER_MISSING, "libnvidia-ml.so.1 not found")
        log(Reason.DRIVER_READY, "8 GPUs")
    assert [line["msg"] for line in read(stream)] == 2 * [
        "libnvidia-ml.so.1 not found",
        "libnvidia-ml.so.1 not found (again 1 times in 0s)",
        "8 GPUs",
    ]


def test_errors_are_never_folded_and_refused_allocations_only_after_ten(log: StreamLog, stream: io.StringIO):
    for _ in range(15):
        log(Reason.ALLOCATION_REFUSED, "2 asked, 1 allowed", resource="nvidia.com/gpu")
    for _ in range(3):
        log(Reason.CONFIG_REFUSED, "line 3: unknown key")
    log.flush()
    words = [line["reason"] for line in read(stream)]
    assert (words.count("AllocationRefused"), words.count("ConfigRefused")) == (11, 3)


def test_memory_stays_bounded_when_every_warning_is_a_new_one(log: StreamLog):
    for number in range(2000):
        log(Reason.STREAM_LOST, "gone", resource=f"nvidia.com/{'x' * number}")
    assert len(log._repeats._seen) <= 256


def test_lines_of_many_threads_do_not_mix(tmp_path: Path):
    target = tmp_path / "log"
    with target.open("w") as stream:
        log = configure_log(format="json", stream=stream)
        threads = [
            threading.Thread(target=lambda: [log(Reason.ALLOCATION_SERVED, "x" * 3000, ids=["a"]) for _ in range(50)])
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = target.read_text().splitlines()
    assert len(lines) == 400
    assert all(json.loads(line)["reason"] == "AllocationServed" for line in lines)


def test_libraries_write_nothing_beside_the_log():
    program = """
import sys, warnings
from nvdp.log import configure_log, silence_libraries
from nvdp.model.reasons import Reason
silence_libraries()
import logging, grpc
logging.getLogger("grpc._server").error("a library complains")
logging.getLogger("watchdog").warning("another one")
warnings.warn("and Python")
channel = grpc.insecure_channel("unix:///nonexistent/kubelet.sock")
try:
    grpc.channel_ready_future(channel).result(timeout=0.3)
except grpc.FutureTimeoutError:
    pass
server = grpc.server(None)
try:
    server.add_insecure_port("unix:///nonexistent/dir/own.sock")
except RuntimeError:
    pass
configure_log(format="json")(Reason.STOPPED, "done")
"""
    environment = {
        name: value for name, value in os.environ.items() if name not in {"GRPC_VERBOSITY", "PYTHONWARNINGS"}
    }
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert [json.loads(line)["reason"] for line in done.stderr.splitlines()] == ["Stopped"]


def test_the_termination_message_is_bounded_whole_characters_and_only_where_there_is_a_file(tmp_path: Path):
    message = tmp_path / "termination-log"
    write_termination_message(message, "lost")
    assert not message.exists()
    message.write_text("old and longer than the new one")
    write_termination_message(message, "socket path too long; use a shorter --kubelet-root")
    assert message.read_text() == "socket path too long; use a shorter --kubelet-root"
    write_termination_message(message, "é" * 5000)
    assert message.read_text() == "é" * 2048
    write_termination_message(tmp_path, "a directory")
    write_termination_message(Path("/dev/full"), "a full disk")


def test_a_line_costs_little_beside_an_allocation(log: Log, clock: Clock):
    import time

    started = time.perf_counter()
    for _ in range(2000):
        log(Reason.ALLOCATION_SERVED, f"{GPU}::7", resource="nvidia.com/gpu", ids=[GPU], seconds=0.0004)
    assert (time.perf_counter() - started) / 2000 < 0.0005
