"""What an actor says of its daemon: put together while it works, and posted whenever it has changed."""

from __future__ import annotations

import msgspec

from nvdp.log import Log
from nvdp.model.mps import DaemonReport, DaemonSpec, Phase
from nvdp.model.reasons import Reason
from nvdp.mps.process import DaemonProcess
from nvdp.services.mps_asking import Clients
from nvdp.services.mps_events import DaemonSeen, MpsPost
from nvdp.services.mps_left import Adopted


class Card:
    """Used by the actor's thread. ``seen`` is what will be posted by ``show``."""

    def __init__(self, resource: str, post: MpsPost, adopted: Adopted | None) -> None:
        self.seen = DaemonSeen(resource=resource, daemon=DaemonReport(phase=Phase.WAITING))
        if adopted is not None:
            self.take_over(adopted)
        self._post = post
        self._posted: DaemonSeen | None = None

    @property
    def daemon(self) -> DaemonReport:
        return self.seen.daemon

    def take_over(self, adopted: Adopted) -> None:
        """There is that daemon, of which nothing else is known before it was asked."""
        daemon = msgspec.structs.replace(
            adopted.report,
            phase=Phase.STARTING,
            text="it was found running and has not answered yet",
            pid=adopted.process.pid,
            started=adopted.process.started,
        )
        self.change(daemon=daemon, are_clients_known=False)

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


def tell_up(log: Log, process: DaemonProcess, running: DaemonSpec, *, target: DaemonSpec) -> None:
    """A daemon is ready, which may lack an option of what it was to be."""
    text = f"control daemon {process.pid} answers: {_describe(running)}"
    log(Reason.MPS_DAEMON_READY, text, resource=running.resource, pid=process.pid, gpus=list(running.gpus))
    if running != target:
        text = "this driver's control daemon has no multiUser: pods of different users wait for each other"
        log(Reason.MPS_UNSUPPORTED, text, resource=running.resource)


def _describe(spec: DaemonSpec) -> str:
    """``2 GPUs, 25 % threads, 9216 MiB``."""
    memory = sorted(set(spec.memory_mib.values()))
    parts = [
        f"{len(spec.gpus)} GPU{'s' if len(spec.gpus) > 1 else ''}",
        f"{spec.thread_percent} % threads" if spec.thread_percent is not None else "no limits",
        " or ".join(f"{mib} MiB" for mib in memory),
        "" if spec.multi_user else "one user at a time",
    ]
    return ", ".join(filter(None, parts))
