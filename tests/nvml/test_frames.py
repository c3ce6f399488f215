"""Frames between daemon and child survive any cutting of the byte stream, and nonsense is told apart."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.model.inventory import ComputeMode, Driver, GpuRef, Inventory
from nvdp.nvml.frames import (
    BODY_LIMIT_BYTES,
    Breadcrumb,
    ComputeModeSet,
    FrameBuffer,
    Probe,
    Probed,
    Refused,
    Scan,
    Scanned,
    encode_frame,
    read_command,
    write_frame,
)

REF = GpuRef(index=3, count=8, pci="0000:1b:00.0", uuid="GPU-1")
MESSAGES = [
    Breadcrumb(call="nvmlInit"),
    Breadcrumb(call="nvmlDeviceGetName", gpu=REF),
    Scanned(inventory=Inventory(driver=Driver(version="1", cuda_version="2")), skipped=(REF,)),
    Refused(call="nvmlInit", kind="Unknown", text="no"),
    Probed(),
    ComputeModeSet(mode=ComputeMode.EXCLUSIVE_PROCESS),
]


@given(st.lists(st.sampled_from(MESSAGES), max_size=8), st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_messages_come_out_as_they_went_in_however_the_stream_is_cut(messages, sizes) -> None:
    stream = b"".join(encode_frame(message) for message in messages)
    buffer, received, at = FrameBuffer(), [], 0
    while at < len(stream):
        size = sizes[at % len(sizes)]
        buffer.add(stream[at : at + size])
        at += size
        received += buffer.take()
    assert received == messages


@given(st.binary(min_size=4, max_size=200))
def test_anything_else_is_a_value_error_or_waits_for_more(data) -> None:
    buffer = FrameBuffer()
    buffer.add(data)
    try:
        list(buffer.take())
    except ValueError:
        return
    assert int.from_bytes(data[:4], "big") <= BODY_LIMIT_BYTES


@pytest.mark.parametrize("data", [b"\0\0\0\0", b"\0\0\0\1\xff", b"\xff\xff\xff\xff"])
def test_empty_broken_and_endless_frames_are_refused(data) -> None:
    buffer = FrameBuffer()
    buffer.add(data)
    with pytest.raises(ValueError, match=r"."):
        list(buffer.take())


def test_the_child_reads_commands_until_the_daemon_is_gone() -> None:
    reader, writer = os.pipe()
    os.write(writer, encode_frame(Scan(skip=(REF,))) + encode_frame(Probe(gpu=REF)) + b"\0\0")
    os.close(writer)
    assert read_command(reader) == Scan(skip=(REF,))
    assert read_command(reader) == Probe(gpu=REF)
    assert read_command(reader) is None, "half a frame is no command"
    os.close(reader)


def test_the_child_writes_all_of_a_long_answer() -> None:
    reader, writer = os.pipe()
    answer = Refused(call="c", kind="k", text="x" * 40_000)
    write_frame(writer, answer)
    os.close(writer)
    buffer = FrameBuffer()
    while data := os.read(reader, 1000):
        buffer.add(data)
    assert list(buffer.take()) == [answer]
    os.close(reader)
