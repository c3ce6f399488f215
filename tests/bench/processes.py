"""What processes use, as the kernel counts it: memory, threads, open files, processor time."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

_PAGE_BYTES = 4096
_PRESENT, _OF_FILE = 1 << 63, 1 << 61  # bits of an entry of /proc/PID/pagemap
_MIB = 1 << 20
_FilePage = tuple[str, str, int]  # device, inode, page of the file


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """MiB of one process. ``proportional`` shares the pages of a file among all processes of the machine that have it.

    ``alone`` shares them only among the processes that were looked at together, as if nobody else had these files:
    libraries in a container's image usually are nobody else's.
    """

    rss: float
    private: float
    proportional: float
    alone: float


def load_memory(pids: Sequence[int]) -> tuple[Memory, ...]:
    """Of each process, looked at together. Raises OSError for one that is not ours, or has gone."""
    pages = [_load_pages(pid) for pid in pids]
    users: dict[_FilePage, int] = {}
    for _, files in pages:
        for page in files:
            users[page] = users.get(page, 0) + 1
    return tuple(
        _build_memory(_load_rollup(pid), (own + sum(1 / users[page] for page in files)) * _PAGE_BYTES / _MIB)
        for pid, (own, files) in zip(pids, pages, strict=True)
    )


def count_threads(pid: int) -> int:
    return psutil.Process(pid).num_threads()


def count_files(pid: int) -> int:
    return psutil.Process(pid).num_fds()


def load_cpu_s(pid: int) -> float:
    """Processor seconds since its start, to 0.01."""
    times: Any = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _build_memory(rollup: dict[str, float], alone: float) -> Memory:
    private = rollup["Private_Clean"] + rollup["Private_Dirty"]
    return Memory(rss=rollup["Rss"], private=private, proportional=rollup["Pss"], alone=alone)


def _load_rollup(pid: int) -> dict[str, float]:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return {name: int(kib) / 1024 for name, kib in re.findall(r"^(\w+): +(\d+) kB$", text, re.MULTILINE)}


def _load_pages(pid: int) -> tuple[int, set[_FilePage]]:
    """The number of pages in memory that are the process's own, and those that are a file's."""
    own, files = 0, set()
    with Path(f"/proc/{pid}/pagemap").open("rb") as pagemap:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, _, offset, device, inode, *name = line.split(None, 5)
            if name and name[0].startswith(("[v", "[uprobes")):
                continue  # the kernel's own pages, in every process
            start, end = (int(address, 16) for address in span.split("-"))
            pagemap.seek(start // _PAGE_BYTES * 8)
            entries = pagemap.read((end - start) // _PAGE_BYTES * 8)
            first = int(offset, 16) // _PAGE_BYTES
            for number, (entry,) in enumerate(struct.iter_unpack("=Q", entries)):
                if entry & _PRESENT and entry & _OF_FILE:
                    files.add((device, inode, first + number))
                elif entry & _PRESENT:
                    own += 1
    return own, files
