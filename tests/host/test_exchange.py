"""The two files by which the plugin and ``nvdp mps`` know of each other."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from nvdp.errors import HostError
from nvdp.host.mps_claims import ClaimsCopy
from nvdp.host.mps_grants import load_grants, write_grants
from nvdp.host.mps_report import load_report, remove_report, write_report
from nvdp.model.mps import GRANTS_NAME, REPORT_NAME, DaemonReport, DaemonSpec, Grant, MpsGrants, MpsReport, Phase

SPEC = DaemonSpec(resource="nvidia.com/gpu", gpus=("GPU-a", "GPU-b"), thread_percent=25, memory_mib={"GPU-a": 9216})
REPORT = MpsReport(
    at=12.5,
    boot_id="boot",
    pid=7,
    version="1",
    daemons={
        "nvidia.com/gpu": DaemonReport(phase=Phase.READY, running=SPEC, pid=42, started=9, servers={"50": "active"})
    },
    claims={"GPU-a": "Default"},
)
GRANTS = MpsGrants(config="abc", resources={"nvidia.com/gpu": Grant(wanted=SPEC, free=("GPU-a",), held=("GPU-b",))})


def test_what_is_written_is_what_the_other_reads(tmp_path: Path) -> None:
    write_report(tmp_path, REPORT, sync=True)
    write_grants(tmp_path / "state", GRANTS)

    assert load_report(tmp_path) == REPORT
    assert load_grants(tmp_path / "state") == GRANTS


def test_where_nothing_was_written_there_is_nothing_to_read(tmp_path: Path) -> None:
    assert load_report(tmp_path / "nowhere") is None
    assert load_grants(tmp_path) is None


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "damaged"), (b"[1]", "damaged"), (b"[" * 100_000, "damaged"), (b" " * (2**20 + 2), "larger")],
)
def test_a_file_that_says_something_else_is_an_error_that_names_it(tmp_path: Path, content: bytes, words: str) -> None:
    for name, load in ((REPORT_NAME, load_report), (GRANTS_NAME, load_grants)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(HostError, match=words) as failed:
            load(tmp_path)
        assert str(tmp_path / name) in str(failed.value)
        assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"phase": "draining"}, {"phase": Phase.STARTING}),
        ({"pid": "x"}, {"pid": None}),
        ({"running": {"gpus": 3}}, {"running": None}),
        ({"colour": "red"}, {}),
    ],
)
def test_of_a_daemon_of_another_version_all_counts_that_is_understood(tmp_path: Path, change, expected) -> None:
    said = msgspec.to_builtins(REPORT)
    said["daemons"] |= {"nvidia.com/gpu": said["daemons"]["nvidia.com/gpu"] | change, "nvidia.com/odd": 7}
    (tmp_path / REPORT_NAME).write_bytes(msgspec.json.encode(said))
    found = load_report(tmp_path)
    assert found is not None
    assert found.claims == REPORT.claims
    assert found.daemons == {
        "nvidia.com/gpu": msgspec.structs.replace(REPORT.daemons["nvidia.com/gpu"], **expected),
        "nvidia.com/odd": DaemonReport(phase=Phase.STARTING),
    }


def test_the_copy_of_claims_counts_within_its_boot_and_until_it_is_removed(tmp_path: Path) -> None:
    copy = ClaimsCopy(tmp_path / "state" / "mps", boot_id="boot")
    assert copy.load() == {}
    copy.save({"GPU-a": "Default"})
    assert ClaimsCopy(tmp_path / "state" / "mps", boot_id="boot").load() == {"GPU-a": "Default"}
    assert ClaimsCopy(tmp_path / "state" / "mps", boot_id="another").load() == {}
    copy.remove()
    assert copy.load() == {}
    copy.save({"GPU-a": "Default"})
    assert copy.load() == {"GPU-a": "Default"}


def test_a_symbolic_link_is_neither_followed_nor_written_through(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"theirs")
    (tmp_path / REPORT_NAME).symlink_to(elsewhere)
    with pytest.raises(HostError):
        load_report(tmp_path)

    write_report(tmp_path, REPORT)

    assert load_report(tmp_path) == REPORT
    assert elsewhere.read_bytes() == b"theirs"


def test_a_reader_never_sees_a_part_of_a_report(tmp_path: Path) -> None:
    write_report(tmp_path, REPORT)
    stopping = threading.Event()

    def write() -> None:
        while not stopping.is_set():
            write_report(tmp_path, REPORT)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert all(load_report(tmp_path) == REPORT for _ in range(300))
    finally:
        stopping.set()
        writer.join()


def test_a_report_that_is_removed_leaves_nothing_behind(tmp_path: Path) -> None:
    write_report(tmp_path, REPORT)
    (tmp_path / f"{REPORT_NAME}.abandoned.tmp").touch()

    remove_report(tmp_path)
    remove_report(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="nowhere"):
        write_report(tmp_path / "nowhere", REPORT)
