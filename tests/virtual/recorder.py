"""Memory, observers and log in one: what was remembered, counted and told."""

from __future__ import annotations

from nvdp.host.state import AppliedConfig
from nvdp.model.reasons import Level, Reason
from nvdp.model.status import Status
from nvdp.planning.node_facts import LabelFacts


class Recorder:
    """``told`` are the lines of the log, ``counted`` the calls of observers, ``latencies`` in seconds."""

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self.pins: dict[str, str] = {}
        self.indices: dict[str, dict[str, str]] = {}
        self.by_cdi: dict[str, tuple[str, ...]] = {}
        self.by_mps: dict[str, tuple[str, ...]] = {}
        self.parents: dict[str, str] = {}
        self.plans = 0
        self.config: AppliedConfig | None = None
        self.candidate: AppliedConfig | None = None
        self.told: list[tuple[Reason, str]] = []
        self.levels: list[Level] = []
        self.counted: list[tuple[object, ...]] = []
        self.latencies: list[tuple[str, float]] = []
        self.statuses: list[Status] = []
        self.labelled: list[LabelFacts] = []

    def forget(self) -> None:
        """The state directory is lost."""
        self.names, self.by_mps, self.parents, self.pins = frozenset(), {}, {}, {}

    def remember_names(self, names) -> None:
        self.names |= set(names)

    def remember_by_mps(self, by_mps) -> None:
        self.by_mps = dict(by_mps)

    def remember_handed_out(self, *, indices, by_cdi, parents) -> None:
        self.plans += 1  # it is told once a plan
        self.indices, self.by_cdi, self.parents = dict(indices), dict(by_cdi), dict(parents)

    def remember_inventory(self, inventory) -> None: ...

    def remember_health(self, records) -> None:
        self.health = dict(records)

    def remember_pins(self, pins, /) -> None:
        self.pins = dict(pins)

    def remember_config(self, config, pins, /) -> None:
        self.config, self.candidate, self.pins = config, None, dict(pins)

    def remember_candidate(self, candidate, /) -> None:
        self.candidate = candidate

    def __call__(self, reason: Reason, msg: str, /, *, level: Level | None = None, **fields: object) -> None:
        self.told.append((reason, msg))
        self.levels.append(level or reason.level)

    def texts(self, reason: Reason) -> list[str]:
        return [text for told, text in self.told if told is reason]

    def list_latency(self, cause: str, seconds: float) -> None:
        self.latencies.append((cause, round(seconds, 3)))

    def config_applied(self, seconds: float) -> None:
        self.counted.append(("config_applied", round(seconds, 3)))

    def kubelet_restarted(self) -> None:
        self.counted.append(("kubelet_restarted",))

    def device_health_changed(self, uuid: str, to: str) -> None:
        self.counted.append(("health", uuid, to))

    def service_restarted(self, service: str) -> None:
        self.counted.append(("restarted", service))

    def edits(self) -> list[object]:
        return [one[1] for one in self.counted if one[0] == "edit"]
