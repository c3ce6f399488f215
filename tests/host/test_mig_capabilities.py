"""The device nodes of MIG instances, as the driver tells them under /proc."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nvdp.host.mig_capabilities import MigCapabilities, parse_mig_minors

MINORS = """config 1
monitor 2
gpu0/gi0/access 3
gpu0/gi0/ci0/access 4
gpu0/gi1/access 12
gpu0/gi1/ci0/access 13
gpu0/gi1/ci1/access
gpu0/gi1/ci0/mode 7
gpux/gi1/access 99
gpu7/gi14/ci7/access 1200
"""


def write(proc, name: str, text: str) -> None:
    path = proc / "driver" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_drivers_list_names_the_nodes_and_other_lines_are_passed_over(tmp_path) -> None:
    write(tmp_path, "nvidia-caps/mig-minors", MINORS)
    nodes = MigCapabilities(tmp_path).load()
    assert nodes.minors == {
        (0, 0, None): 3,
        (0, 0, 0): 4,
        (0, 1, None): 12,
        (0, 1, 0): 13,
        (7, 14, 7): 1200,
    }
    assert nodes.find_paths(0, 1, 0) == ("/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13")


def test_without_the_list_the_files_of_the_instances_tell(tmp_path) -> None:
    write(tmp_path, "nvidia/capabilities/mig/config", "DeviceFileMinor: 1\n")
    write(
        tmp_path,
        "nvidia/capabilities/gpu2/mig/gi7/access",
        "DeviceFileMinor: 66\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
    )
    write(tmp_path, "nvidia/capabilities/gpu2/mig/gi7/ci0/access", "DeviceFileMinor: 67\nDeviceFileMode: 292\n")
    write(tmp_path, "nvidia/capabilities/gpu2/mig/gi8/access", "nothing of the kind\n")
    assert MigCapabilities(tmp_path).load().minors == {(2, 7, None): 66, (2, 7, 0): 67}
    write(tmp_path, "nvidia-caps/mig-minors", "gpu2/gi7/access 11\n")
    assert MigCapabilities(tmp_path).load().minors == {(2, 7, None): 11, (2, 7, 0): 67}, "the list counts first"


def test_what_cannot_be_read_is_not_known(tmp_path) -> None:
    assert MigCapabilities(tmp_path).load().minors == {}
    (tmp_path / "driver/nvidia-caps/mig-minors").mkdir(parents=True)
    assert MigCapabilities(tmp_path).load().minors == {}


def test_a_list_of_absurd_length_is_not_read(tmp_path) -> None:
    write(tmp_path, "nvidia-caps/mig-minors", "gpu0/gi0/access 3\n" * 300_000)
    assert MigCapabilities(tmp_path).load().minors == {}


@given(st.text())
def test_no_text_is_more_than_passed_over(text) -> None:
    assert all(isinstance(minor, int) for minor in parse_mig_minors(text).values())
