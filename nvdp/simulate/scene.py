"""What the steps of the tour have in common: what was seen so far, how they wait, and how they find fault."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from nvdp.simulate.edits import SharedConfig
from nvdp.simulate.kubelet import ListMessage, Pod
from nvdp.simulate.stage import Stage

T = TypeVar("T")

PATIENCE_S = 5.0  # how long a step looks for what should come within its limit, so that it can say what came

_LINE_SHOWN = 200


class Outcome(msgspec.Struct, frozen=True):
    """A step that went as expected: how long what it is about took, and what to show."""

    seconds: float
    lines: tuple[str, ...]


class UnexpectedError(Exception):
    """A step did not see what it expected. Both texts are for people."""

    def __init__(self, *, expected: str, seen: str) -> None:
        super().__init__(f"expected {expected}; seen {seen}")
        self.expected = expected
        self.seen = seen


class Scene:
    """The stage with all that earlier steps left: the configuration in force and the pods that run."""

    def __init__(self, stage: Stage, shared: SharedConfig) -> None:
        self.stage = stage
        self.kubelet = stage.kubelet
        self.shared = shared
        self.pods: dict[str, Pod] = {}
        self.indices = {gpu.uuid: index for index, gpu in enumerate(stage.node.present)}

    @property
    def resource(self) -> str:
        return self.shared.resource

    @property
    def wanted(self) -> int:
        """How many devices the node should offer under the configuration in force."""
        return len(self.indices) * self.shared.replicas

    @property
    def newest(self) -> ListMessage:
        """The list that the kubelet has."""
        return self.kubelet.messages(self.resource)[-1]

    def count_registrations(self) -> int:
        return sum(registration.resource == self.resource for registration in self.kubelet.registrations)

    def wait_list(self, *, after: int, expected: str) -> ListMessage:
        """The first list beyond the first ``after`` that has all the devices wanted, Healthy and each once.

        Raises UnexpectedError if there is none within PATIENCE_S, or the daemon ends.
        """

        def find() -> ListMessage | None:
            messages = self.kubelet.messages(self.resource)[after:]
            return next((message for message in messages if self._is_whole(message)), None)

        return self.wait(find, expected=expected, seen=lambda: self._describe_lists(after))

    def wait(self, find: Callable[[], T | None], *, expected: str, seen: Callable[[], str]) -> T:
        """What ``find`` finds in what the kubelet saw; it is asked at each change. Raises UnexpectedError."""
        began = time.monotonic()
        found: list[T] = []

        def look() -> bool:
            one = find()
            if one:
                found.append(one)
            return bool(one) or self.stage.daemon.exit_code is not None

        with contextlib.suppress(TimeoutError):
            self.kubelet.wait_until(look, PATIENCE_S)
        if found:
            return found[0]
        waited = "" if self.stage.daemon.exit_code is not None else f" in {time.monotonic() - began:.0f} s"
        raise UnexpectedError(expected=expected, seen=f"{seen()}{waited}; {self.describe_daemon()}")

    def watch_quiet(self, seconds: float, *, after: int, expected: str) -> None:
        """Watch for ``seconds`` that no list comes beyond the first ``after``. Raises UnexpectedError at once if so."""
        try:
            self.kubelet.wait_until(lambda: len(self.kubelet.messages(self.resource)) > after, seconds)
        except TimeoutError:
            return
        raise UnexpectedError(expected=expected, seen=self._describe_lists(after))

    def describe_daemon(self) -> str:
        """What became of the daemon, as far as its log tells."""
        code = self.stage.daemon.exit_code
        state = "last line of the daemon" if code is None else f"the daemon ended with {code}"
        line = " ".join(self.stage.daemon.last_line.split())
        return f"{state}: {line[:_LINE_SHOWN]}"

    def name_gpu(self, uuid: str) -> str:
        """``GPU 3``, by NVML index."""
        return f"GPU {self.indices[uuid]}" if uuid in self.indices else f"{uuid}, which does not exist"

    def _is_whole(self, message: ListMessage) -> bool:
        healthy = message.healthy
        return len(message.devices) == len(healthy) == len(set(healthy)) == self.wanted

    def _describe_lists(self, after: int) -> str:
        messages = self.kubelet.messages(self.resource)[after:]
        if not messages:
            return "no new list" if after or self.count_registrations() else f"no Register of {self.resource}"
        return f"a list of {len(messages[-1].devices)} devices, {len(messages[-1].healthy)} Healthy"


def check(condition: object, *, expected: str, seen: str) -> None:
    """Raise UnexpectedError unless ``condition`` is true."""
    if not condition:
        raise UnexpectedError(expected=expected, seen=seen)
