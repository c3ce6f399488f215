"""What a daemon and its children use of the machine they run on."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import psutil

from tests.daemon.process import wait_until
from tests.daemon.storms.node import Node

_MIB = 2**20


class Use(NamedTuple):
    """What a daemon and its children have, or may have at most. Memory is resident, growth since its first calm."""

    threads: int = 0
    files: int = 0
    children: int = 0
    daemon_mib: float = 0.0
    child_mib: float = 0.0
    growth_mib: float = 0.0

    def is_within(self, bounds: Use) -> bool:
        return all(mine <= most for mine, most in zip(self, bounds, strict=True))

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:.4g}" for name, value in self._asdict().items())


class Meter:
    """Follows the daemons of a node. ``most`` is the most that was in use in any calm."""

    def __init__(self, node: Node, *, bounds: Use) -> None:
        self._node, self._bounds = node, bounds
        self._first_mib: dict[int, float] = {}
        self.most = Use()

    def check(self) -> None:
        """What a storm needed may take a moment to be given back."""
        used: list[Use] = []

        def is_within() -> bool:
            used.append(self._measure())
            return used[-1].is_within(self._bounds)

        try:
            wait_until(is_within, what="bounds")
        except AssertionError as error:
            raise AssertionError(f"{used[-1]}; at most {self._bounds}") from error
        self.most = Use(*map(max, self.most, used[-1]))

    def _measure(self) -> Use:
        process = psutil.Process(self._node.daemon.pid)
        memory_mib = process.memory_info().rss / _MIB
        children = [0.0]
        for child in self._node.find_children():
            with contextlib.suppress(psutil.NoSuchProcess):
                children.append(child.memory_info().rss / _MIB)
        return Use(
            threads=process.num_threads(),
            files=process.num_fds(),
            children=len(children) - 1,
            daemon_mib=memory_mib,
            child_mib=max(children),
            growth_mib=memory_mib - self._first_mib.setdefault(process.pid, memory_mib),
        )
