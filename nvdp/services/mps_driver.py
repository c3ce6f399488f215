"""When ``nvdp mps`` has the driver open: only while it is needed, and not while it is paused."""

from __future__ import annotations

from collections.abc import Collection

from nvdp.config.schema import Config
from nvdp.log import Log
from nvdp.model.pause import Pause
from nvdp.model.reasons import Reason
from nvdp.planning.wording import join_some
from nvdp.services.steering import Gpus, build_source

_UNNEEDED = Pause(by="a configuration without MPS", since=0.0)


class DriverUse:
    """Belongs to the main thread. ``is_open``: the driver may be asked."""

    def __init__(self, gpus: Gpus, *, log: Log) -> None:
        self._gpus = gpus
        self._log = log
        self._config: Config | None = None
        self._pause: Pause | None = _UNNEEDED
        self.is_open = False

    def configure(self, config: Config | None) -> None:
        """From now on as this configuration has it; None changes nothing."""
        if config is None or config is self._config:
            return
        self._config = config
        self._gpus.configure(
            rescan_interval_s=config.devices.rescan_interval.seconds,
            remove_after_s=config.devices.remove_after.seconds,
            call_timeout_s=config.health.call_timeout.seconds,
            source=build_source(config),
            health=config.health,
        )

    def consider(
        self, *, pause: Pause | None, is_needed: bool, is_settled: bool, staying: Collection[str] = ()
    ) -> None:
        """``is_settled``: no daemon is to be ended any more, and no GPU to be given its own compute mode back that can
        be. ``staying`` are the
        resources whose daemons are in use: they have the driver open whatever is wanted.

        That is done before the driver is let go of. What is paused from the start is not touched at all.
        """
        wanted = pause or (None if is_needed else _UNNEEDED)
        if wanted == self._pause or (wanted is not None and self.is_open and not is_settled):
            return
        before, self._pause = self._pause, wanted
        if wanted is None:
            self.is_open = True
            self._gpus.resume()
            if before is not None and before is not _UNNEEDED:
                self._log(Reason.DRIVER_RESUMED, f"the driver is taken back; was {before}", by=before.by)
            return
        self.is_open = False
        self._gpus.pause(wanted)
        if wanted is not _UNNEEDED:
            used = f"not free: pods use the control daemons of {join_some(sorted(staying))}"
            text = f"{wanted}: no control daemon is started, and none that is not in use stays; the driver is "
            text += used if staying else "free"
            self._log(Reason.DRIVER_PAUSED, text, by=wanted.by)
