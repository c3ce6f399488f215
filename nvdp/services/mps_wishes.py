"""What is wanted of the control daemons: by the plugin's word, or by the configuration where no plugin ever spoke."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nvdp.config.schema import Config, ModeChange
from nvdp.log import Log
from nvdp.model.inventory import Inventory
from nvdp.model.mps import DaemonSpec, Grant, MpsGrants
from nvdp.model.reasons import Reason
from nvdp.planning.allotment import allot
from nvdp.planning.daemon_course import Wish
from nvdp.planning.mps_specs import build_specs
from nvdp.services.mps_events import GrantsRead


class Wishes:
    """Belongs to the main thread.

    The plugin's word counts whatever its age: a plugin that is away changes nothing on the node. One that cannot be
    read changes nothing either. By the configuration alone, GPUs are free on which no process computes, and a daemon is
    in use while it has clients.
    """

    def __init__(self, *, log: Log) -> None:
        self._log = log
        self._grants: MpsGrants | None = None
        self._was_read = False
        self._problem = ""
        self._basis: tuple[object, ...] = ()
        self._specs: Mapping[str, DaemonSpec] | None = None
        self._at_once = False

    def find_problem(self, expected: Config | None) -> str:
        """Why nobody knows what is wanted, or empty. ``expected`` is the configuration that is or will be in force."""
        if not self._was_read:
            return "it is not known yet what the plugin wants"
        if self._grants is not None or self._problem:
            return self._problem if self._grants is None else ""
        if self._specs is not None or (expected is not None and expected.sharing.mps is None):
            return ""
        return "no configuration is in force yet" if expected is None else "the driver has not answered yet"

    def take(self, event: GrantsRead) -> None:
        """The plugin's word has changed. A file that is gone says nothing new."""
        self._was_read = True
        if event.problem and event.problem != self._problem:
            text = f"{event.problem}; the daemons stay as they are until the plugin writes it anew"
            self._log(Reason.STATE_DAMAGED, text, error=event.problem)
        self._problem = event.problem
        if event.grants is not None:
            self._grants = event.grants

    @property
    def digest(self) -> str:
        """What tells the plugin's word from all others; empty while there is none."""
        return self._grants.digest if self._grants is not None else ""

    def follow(self, config: Config, inventory: Inventory, pins: Mapping[str, str]) -> None:
        """What the configuration in force calls for."""
        if self._basis == (basis := (config.hash, inventory, pins)):
            return
        self._specs = build_specs(config, allot(config, inventory, pins))
        self._at_once = config.allocation.mode_change is ModeChange.IMMEDIATE
        self._basis = basis

    def may_need_driver(self, config: Config | None) -> bool:
        """Whether there is, or may be, anything to do for which the driver must be asked."""
        if not self._was_read or (self._problem and self._grants is None):
            return False
        if self._grants is not None:
            return any(grant.wanted or grant.kept for grant in self._grants.resources.values())
        return config is not None and config.sharing.mps is not None

    def find_uncertain(self, claims: Collection[str]) -> frozenset[str]:
        """The GPUs of which has to be found out whether processes compute on them. What is claimed is ours already."""
        if self._grants is not None or not self._was_read or self._problem or self._at_once:
            return frozenset()
        return frozenset(gpu for spec in (self._specs or {}).values() for gpu in spec.gpus) - frozenset(claims)

    def build(
        self, in_use: Mapping[str, bool], *, claims: Collection[str], occupied: Mapping[str, str]
    ) -> dict[str, Wish]:
        """The wish for each resource; ``in_use`` says by resource whether its daemon has clients, or may have some.

        ``claims`` are the GPUs that we have taken; ``occupied`` is what is known of others, empty for those that are
        free.
        """
        if self._grants is not None:
            return {resource: _build_granted(grant) for resource, grant in self._grants.resources.items()}
        specs = self._specs or {}
        unknown = "not free for all that is known: it is looked at whether processes compute on it"
        reasons = {gpu: occupied.get(gpu, unknown) for gpu in self.find_uncertain(claims)}
        occupied = {gpu: reason for gpu, reason in reasons.items() if reason}
        return {
            resource: Wish(
                wanted=specs.get(resource),
                free=tuple(gpu for gpu in specs[resource].gpus if gpu not in occupied) if resource in specs else (),
                occupied=occupied,
                is_in_use=in_use.get(resource, False),
                counts_clients=True,
                at_once=self._at_once,
            )
            for resource in specs.keys() | in_use.keys()
        }


def _build_granted(grant: Grant) -> Wish:
    return Wish(
        wanted=grant.wanted, kept=grant.kept, free=grant.free, is_in_use=bool(grant.held), at_once=grant.at_once
    )
