"""Whom the supervisor commands and tells: what it asks of each, and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from nvdp.log import Log
from nvdp.model.inventory import Inventory
from nvdp.model.listing import DeviceListStrategy
from nvdp.model.mps import MpsGrants
from nvdp.model.status import Status
from nvdp.planning.course import Record
from nvdp.planning.node_facts import LabelFacts
from nvdp.services.adoption import Adoption
from nvdp.services.offers import Offers
from nvdp.services.specs import SpecWriter
from nvdp.services.steering import Steering
from nvdp.services.telling import HealthObserver


class Holders(Protocol):
    """The service that knows who holds what (services/held.py)."""

    def ask(self) -> None: ...

    def set_waiting(self, waiting: bool, /) -> None:  # noqa: FBT001 - a setter's one value
        ...


class Standing(Protocol):
    """The service that asks what the kubelet offers of ours (services/standing.py)."""

    def ask_soon(self) -> None: ...


class Runtime(Protocol):
    """Who knows how the container runtime is configured (host/runtime_config.py)."""

    def judge(self, strategies: Iterable[DeviceListStrategy], /) -> None: ...


class MpsDaemons(Protocol):
    """Who looks after what is said of the daemons of MPS (services/mps.py)."""

    def use(self, *, is_used: bool) -> None: ...


class Grants(Protocol):
    """Who tells ``nvdp mps`` what it may do (services/granting.py); ``found`` is what it was told last, before us."""

    @property
    def found(self) -> MpsGrants: ...

    def want(self, grants: MpsGrants, /) -> None: ...


class Memory(Protocol):
    """What outlives the process (services/remembering.py): the names of the resources that were ever given out, the
    indices by which pods know what they hold, what they got by CDI, what is on offer by MPS, the GPUs of MIG devices,
    and what is known of the GPUs.
    """

    @property
    def names(self) -> frozenset[str]: ...

    @property
    def indices(self) -> Mapping[str, Mapping[str, str]]: ...

    @property
    def by_cdi(self) -> Mapping[str, tuple[str, ...]]: ...

    @property
    def by_mps(self) -> Mapping[str, tuple[str, ...]]: ...

    @property
    def parents(self) -> Mapping[str, str]: ...

    def remember_names(self, names: Iterable[str]) -> None: ...

    def remember_handed_out(
        self,
        *,
        indices: Mapping[str, Mapping[str, str]],
        by_cdi: Mapping[str, tuple[str, ...]],
        parents: Mapping[str, str],
    ) -> None: ...

    def remember_by_mps(self, by_mps: Mapping[str, tuple[str, ...]], /) -> None: ...

    def remember_health(self, records: Mapping[str, Record]) -> None: ...

    def remember_inventory(self, inventory: Inventory) -> None: ...


class Observer(HealthObserver, Protocol):
    """Counts what the supervisor sees (metrics/)."""

    def service_restarted(self, service: str) -> None: ...


class Collaborators(msgspec.Struct, frozen=True, kw_only=True):
    """Whom the supervisor sends commands to.

    ``restart`` starts a service anew by the name of its thread, and is false for a name that it does not know;
    ``look_now`` makes every service look at its source at once (SIGHUP). ``label`` is told what the node's labels are
    made of, after every turn with a scan that the driver answered in full; it is None where none are written.
    """

    adoption: Adoption
    offers: Offers
    steering: Steering
    holders: Holders
    standing: Standing
    specs: SpecWriter
    mps: MpsDaemons
    grants: Grants
    runtime: Runtime
    memory: Memory
    observer: Observer
    log: Log
    restart: Callable[[str], bool]
    look_now: Callable[[], None]
    publish_status: Callable[[Status], None]
    label: Callable[[LabelFacts], None] | None
