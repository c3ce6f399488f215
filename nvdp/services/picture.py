"""The picture that others may see of the daemon: put together after every turn from what each part knows.

Belongs to the main thread. All that it remembers itself is since when something is as it is.
"""

from __future__ import annotations

from collections.abc import Callable

from nvdp.model.held import Held, Holding
from nvdp.model.mps import MpsView
from nvdp.model.pause import Pause
from nvdp.model.reasons import Reason
from nvdp.model.status import DriverState, DriverStatus, Status, Trouble, Wait
from nvdp.planning.plan import Plan
from nvdp.planning.reporting import Situation, build_status
from nvdp.planning.waits import find_waits
from nvdp.services.adoption import Adoption
from nvdp.services.events import GpusScanned
from nvdp.services.offers import Offers
from nvdp.services.restarts import Restarts

_HOLDERS_UNKNOWN = "neither the kubelet's PodResources nor its checkpoint can be read: nobody knows who holds what"


class Picture:
    """``clock`` gives the seconds in which events tell their times, ``wall`` those in which people do."""

    def __init__(
        self,
        *,
        adoption: Adoption,
        offers: Offers,
        restarts: Restarts,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._adoption = adoption
        self._offers = offers
        self._restarts = restarts
        self._clock = clock
        self._wall = wall
        self._changed_at: dict[str, float] = {}
        self._holders: tuple[Holding, ...] = ()
        self._waits: tuple[Wait, ...] = ()

    def note_health(self, uuid: str, wall: float) -> None:
        """The health of a GPU changed."""
        self._changed_at[uuid] = wall

    def note_plan(self, plan: Plan) -> None:
        """A new plan is in force: what there is one of for each pod is looked at now, not at every turn."""
        self._holders = tuple(holding for held in plan.holders.values() for holding in held.values())
        self._waits = find_waits(plan, self._waits, wall=self._wall())

    def build(
        self,
        scan: GpusScanned | None,
        plan: Plan | None,
        *,
        pause: Pause | None,
        planning_error: str,
        held: Held,
        podresources_up: bool,
        mps: MpsView | None = None,
    ) -> Status:
        """The status now; ``mps`` is None until ``nvdp mps`` was looked for."""
        config = self._adoption.expected
        return build_status(
            Situation(
                config=self._adoption.status,
                fail_on_init_error=config is None or config.flags.fail_on_init_error,
                pause=pause,
                driver=scan.driver if scan is not None else DriverStatus(),
                inventory=scan.inventory if scan is not None else None,
                ailments=scan.ailments if scan is not None else {},
                changed_at=self._changed_at,
                plan=plan,
                planning_error=planning_error,
                serving=self._offers.serving,
                holders=self._holders,
                waits=self._waits,
                unmatched=(*self._adoption.unmatched, *(plan.unmet if plan is not None else ())),
                troubles=self._find_troubles(scan, held),
                mps=mps,
                podresources_up=podresources_up,
                scanned_at=scan.scanned_at if scan is not None else None,
                nvml_children_abandoned=scan.children_abandoned if scan is not None else 0,
            )
        )

    def _find_troubles(self, scan: GpusScanned | None, held: Held) -> tuple[Trouble, ...]:
        found = [(Reason.SERVICE_RESTARTED, text, at) for at, text in self._restarts.recent]
        if held.unreadable_since is not None:
            found.append((Reason.HOLDERS_UNKNOWN, _HOLDERS_UNKNOWN, held.unreadable_since))
        began = self._wall() - self._clock()
        troubles = [Trouble(reason=reason.word, text=text, since=began + at) for reason, text, at in found]
        if scan is not None and scan.trouble is not None and scan.driver.state is DriverState.READY:
            troubles.append(scan.trouble)
        return tuple(troubles)
