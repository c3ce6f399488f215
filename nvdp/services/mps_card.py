"""What an actor says of its daemon: put together while it works, and posted whenever it has changed."""

from __future__ import annotations

import msgspec

from nvdp.model.mps import DaemonReport, DaemonSpec, Phase
from nvdp.mps.process import DaemonProcess
from nvdp.services.mps_asking import Clients
from nvdp.services.mps_events import DaemonSeen, MpsPost


class Adopted(msgspec.Struct, frozen=True):
    """A daemon that an earlier ``nvdp mps`` left alive: its process, and what that one reported of it."""

    process: DaemonProcess
    report: DaemonReport


class Card:
    """Used by the actor's thread. ``seen`` is what will be posted by ``show``."""

    def __init__(self, resource: str, post: MpsPost, adopted: Adopted | None) -> None:
        report = DaemonReport(phase=Phase.WAITING) if adopted is None else _take_over(adopted)
        self.seen = DaemonSeen(resource=resource, daemon=report)
        self._post = post
        self._posted: DaemonSeen | None = None

    @property
    def daemon(self) -> DaemonReport:
        return self.seen.daemon

    def report(self, **changes: object) -> None:
        """Change what others are told of the daemon."""
        self.change(daemon=msgspec.structs.replace(self.seen.daemon, **changes))

    def report_clients(self, clients: Clients | None, waiting_users: tuple[int, ...]) -> None:
        """None: they are not known yet."""
        known = clients or Clients()
        self.report(clients=known.count, servers=known.servers, waiting_users=waiting_users)
        self.change(are_clients_known=clients is not None)

    def change(self, **changes: object) -> None:
        """Change what the main thread alone is told."""
        self.seen = msgspec.structs.replace(self.seen, **changes)

    def show(self) -> None:
        """Post what is not posted yet."""
        if self.seen != self._posted:
            self._posted = self.seen
            self._post(self.seen)


def describe_spec(spec: DaemonSpec) -> str:
    """``2 GPUs, 25 % threads, 9216 MiB``."""
    memory = sorted(set(spec.memory_mib.values()))
    parts = [
        f"{len(spec.gpus)} GPU{'s' if len(spec.gpus) > 1 else ''}",
        f"{spec.thread_percent} % threads" if spec.thread_percent is not None else "no limits",
        " or ".join(f"{mib} MiB" for mib in memory),
        "" if spec.multi_user else "one user at a time",
    ]
    return ", ".join(filter(None, parts))


def _take_over(adopted: Adopted) -> DaemonReport:
    """What is known of a daemon before it was asked."""
    return msgspec.structs.replace(
        adopted.report,
        phase=Phase.STARTING,
        text="it was found running and has not answered yet",
        pid=adopted.process.pid,
        started=adopted.process.started,
    )
