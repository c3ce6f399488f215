"""The kubelet's checkpoint, read: both formats, and every kind of damage."""

from __future__ import annotations

import contextlib
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.errors import HostError
from nvdp.kubelet.checkpoint import (
    SIZE_LIMIT_BYTES,
    load_checkpoint,
    load_registered,
    parse_checkpoint,
    parse_registered,
)
from nvdp.model.held import Holding


def checkpoint(*entries: dict, **more: object) -> dict:
    return {"Data": {"PodDeviceEntries": list(entries), "RegisteredDevices": {}, **more}, "Checksum": 4711}


def entry(device_ids: object, *, pod: str = "uid-1", resource: str = "nvidia.com/gpu") -> dict:
    return {
        "PodUID": pod,
        "ContainerName": "main",
        "ResourceName": resource,
        "DeviceIDs": device_ids,
        "AllocResp": "CgA=",
    }


def holding(device_id: str, pod: str = "uid-1", numa_node: int | None = None) -> Holding:
    return Holding(
        resource="nvidia.com/gpu", device_id=device_id, namespace="", pod=pod, container="main", numa_node=numa_node
    )


def parse(content: object) -> tuple[Holding, ...]:
    return parse_checkpoint(json.dumps(content).encode())


def test_devices_by_numa_node_count_once_each():
    content = checkpoint(
        entry({"0": ["GPU-b", "GPU-a"], "1": ["GPU-a"], "-1": None}), entry({"-1": ["GPU-c"]}, pod="u2")
    )
    assert parse(content) == (
        holding("GPU-a", numa_node=0),
        holding("GPU-b", numa_node=0),
        holding("GPU-c", "u2"),
    )


def test_the_format_before_1_20_has_a_plain_list():
    assert parse(checkpoint(entry(["GPU-b", "GPU-a"]))) == (holding("GPU-a"), holding("GPU-b"))


def test_a_kubelet_without_pods_writes_null():
    assert parse({"Data": {"PodDeviceEntries": None, "RegisteredDevices": {}}, "Checksum": 1}) == ()
    assert parse(checkpoint(entry(None))) == ()


def test_what_a_later_kubelet_adds_is_read_over():
    assert parse(checkpoint({**entry(["GPU-a"]), "New": 1}, More=[1])) == (holding("GPU-a"),)


def test_registered_devices_are_those_that_were_healthy(tmp_path):
    content = checkpoint(RegisteredDevices={"nvidia.com/gpu": ["GPU-b", "GPU-a"], "nvidia.com/gone": None})
    expected = {"nvidia.com/gpu": frozenset({"GPU-a", "GPU-b"}), "nvidia.com/gone": frozenset()}
    assert parse_registered(json.dumps(content).encode()) == expected
    (tmp_path / "file").write_text(json.dumps(content))
    assert load_registered(tmp_path / "file") == expected
    assert parse_registered(json.dumps(checkpoint(RegisteredDevices=None)).encode()) == {}


@pytest.mark.parametrize("content", [b"", b"null", b'{"Data":{}}', b'{"Data":{"RegisteredDevices":[]}}'])
def test_registered_devices_of_a_damaged_file_are_a_host_error(content):
    with pytest.raises(HostError, match="not a checkpoint of the kubelet"):
        parse_registered(content)


def test_holders_are_known_also_where_the_registered_devices_make_no_sense():
    assert parse(checkpoint(entry(["GPU-a"]), RegisteredDevices=[1])) == (holding("GPU-a"),)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"Data":null}',
        b'{"Data":{}}',
        b'{"Data":{"PodDeviceEntries":{}}}',
        b'{"Data":{"PodDeviceEntries":[{"PodUID":"u"}]}}',
        json.dumps(checkpoint(entry({"0": [1]}))).encode(),
        json.dumps(checkpoint(entry(["GPU-a"]))).encode()[:-20] + b"\0" * 20,
        b"[" * 200_000,
    ],
)
def test_damage_is_a_host_error_in_one_line(content):
    with pytest.raises(HostError, match="not a checkpoint of the kubelet") as error:
        parse_checkpoint(content)
    assert "\n" not in str(error.value)


@given(st.binary())
def test_any_bytes_give_holdings_or_a_host_error(content):
    with contextlib.suppress(HostError):
        assert isinstance(parse_checkpoint(content), tuple)


def test_a_file_is_named_in_the_error(tmp_path):
    path = tmp_path / "kubelet_internal_checkpoint"
    with pytest.raises(HostError, match=f"{path}: cannot be read: No such file or directory"):
        load_checkpoint(path)
    path.write_bytes(b"{")
    with pytest.raises(HostError, match=f"{path}: not a checkpoint of the kubelet"):
        load_checkpoint(path)
    path.write_text(json.dumps(checkpoint(entry(["GPU-a"]))))
    assert load_checkpoint(path) == (holding("GPU-a"),)


def test_a_file_of_any_size_costs_bounded_memory(tmp_path):
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(SIZE_LIMIT_BYTES + 1)
    with pytest.raises(HostError, match="larger than 32 MiB"):
        load_checkpoint(path)


def test_what_is_no_file_neither_blocks_nor_is_followed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link", "."):
        with pytest.raises(HostError):
            load_checkpoint(tmp_path / name)
