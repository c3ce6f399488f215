"""A bench for the service that knows the GPUs: real children, a node that can be changed, everything recorded."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

from nvdp.config.schema import HealthSettings, Recovery
from nvdp.host.devnodes import NodeView
from nvdp.host.sysfs import Sysfs
from nvdp.model.duration import build_duration
from nvdp.model.reasons import Reason
from nvdp.model.status import DriverState
from nvdp.nvml.children import NvmlChildren
from nvdp.services.events import GpusScanned
from nvdp.services.gpus import GpuService

RESCAN_S = 0.1
CALL_TIMEOUT_S = 5.0  # no call that returns takes as long, however busy the machine is
HURRIED_S = 0.4
REMOVE_AFTER_S = 60.0
HOLD_OFF = build_duration(seconds=0.2)
HEALTH = HealthSettings(recovery=Recovery(hold_off=HOLD_OFF, max_hold_off=HOLD_OFF))
NO_NODES = NodeView(Path("/nowhere"), is_host=False)


class Bench:
    """Posts, log lines and counts of one service, and waiting for them."""

    def __init__(
        self,
        children: NvmlChildren,
        *,
        sysfs: Sysfs | None = None,
        nodes: NodeView = NO_NODES,
        call_timeout_s: float = CALL_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.children = children
        self.posts: list[GpusScanned] = []
        self.lines: list[tuple[Reason, str, dict[str, object]]] = []
        self.scans: list[float] = []
        self.scans_posted = 0
        self.errors: Counter[tuple[str, str]] = Counter()
        self.timeouts: Counter[str] = Counter()
        self.heard: list[tuple[object, ...]] = []
        self.poison: Exception | None = None
        self.changed = threading.Condition()
        self.service = GpuService(
            children,
            post=self.post,
            log=self.log,
            observer=self,
            sysfs=sysfs,
            nodes=nodes,
            clock=clock,
            first_probe_delay_s=0.1,
        )
        self.configure(call_timeout_s=call_timeout_s)

    def configure(
        self,
        *,
        rescan_interval_s: float = RESCAN_S,
        remove_after_s: float = REMOVE_AFTER_S,
        call_timeout_s: float = CALL_TIMEOUT_S,
        **others,
    ) -> None:
        self.service.configure(
            rescan_interval_s=rescan_interval_s,
            remove_after_s=remove_after_s,
            call_timeout_s=call_timeout_s,
            **{"health": HEALTH, **others},
        )

    def hurry(self, call_timeout_s: float = HURRIED_S) -> None:
        """For what hangs. Now and then another call may count as one that does, and be well again."""
        self.configure(call_timeout_s=call_timeout_s)

    def post(self, event: GpusScanned) -> None:
        poison, self.poison = self.poison, None
        if poison is not None:
            raise poison
        with self.changed:
            if threading.current_thread().name == GpuService.THREAD:
                self.scans_posted = len(self.scans)
            self.posts.append(event)
            self.changed.notify_all()

    def log(self, reason: Reason, msg: str, /, **fields: object) -> None:
        with self.changed:
            self.lines.append((reason, msg, fields))
            self.changed.notify_all()

    def scan_took(self, seconds: float) -> None:
        self.scans.append(seconds)

    def nvml_failed(self, call: str, kind: str) -> None:
        self.errors[call, kind] += 1

    def nvml_timed_out(self, uuid: str) -> None:
        self.timeouts[uuid] += 1

    def xid_seen(self, uuid: str, xid: int, verdict: str) -> None:
        self.heard.append((uuid, xid, verdict))

    def memory_error_seen(self, uuid: str, kind: str) -> None:
        self.heard.append((uuid, kind))

    def wait(self, predicate: Callable[[GpusScanned], bool], *, limit_s: float = 15.0) -> GpusScanned:
        """The first post from now on, or the newest one, that is as wanted."""
        deadline = time.monotonic() + limit_s
        with self.changed:
            seen = max(0, len(self.posts) - 1)
            while True:
                for post in self.posts[seen:]:
                    if predicate(post):
                        return post
                seen = len(self.posts)
                left = deadline - time.monotonic()
                assert left > 0, f"not within {limit_s}s; last post: {self.posts[-1:]}; log: {self.lines}"
                self.changed.wait(left)

    def wait_healthy(self, count: int) -> GpusScanned:
        return self.wait(lambda post: is_ready(post) and len(post.inventory.gpus) == count and not post.ailments)

    def wait_causes(self, **causes: str) -> GpusScanned:
        """Causes by the last word of the UUID: ``two="Lost"`` for GPU-two."""
        wanted = {f"GPU-{name}": cause for name, cause in causes.items()}
        return self.wait(lambda post: {uuid: one.cause.value for uuid, one in post.ailments.items()} == wanted)

    def wait_scans(self, more: int = 2) -> None:
        """Until ``more`` scans were complete from now on, and are posted."""
        before = len(self.scans)
        self.wait(lambda _: self.scans_posted >= before + more)

    def reasons(self) -> list[str]:
        return [reason.word for reason, _, _ in self.lines]


def is_ready(post: GpusScanned) -> bool:
    return post.driver.state is DriverState.READY


class NodeFile:
    """A simulated node of the GPUs ``GPU-zero`` to ``GPU-three`` whose file is rewritten as a whole."""

    NAMES = ("zero", "one", "two", "three")

    def __init__(self, directory: Path) -> None:
        self.path = directory / "node.yaml"
        self._fresh = directory / "fresh.yaml"
        self.write()

    def write(self, *lines: str, gpus: int = 4, busy: Collection[int] = ()) -> None:
        """On the ``busy`` ones a process draws."""
        drawing = [f", processes: [{{pid: {n + 1}, graphics: true}}]" if n in busy else "" for n in range(gpus)]
        names = enumerate(self.NAMES[:gpus])
        cards = [f"- {{model: t4, uuid: GPU-{name}, numa: {n % 2}{drawing[n]}}}" for n, name in names]
        self._fresh.write_text("\n".join(["gpus:", *cards, *lines]) if gpus else "\n".join(lines))
        self._fresh.rename(self.path)
