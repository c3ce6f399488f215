"""What is said of the driver as a whole: ready, missing, mismatched or lost, and when to try again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from nvdp.log import Log
from nvdp.model.duration import build_duration
from nvdp.model.inventory import Driver
from nvdp.model.pause import Pause
from nvdp.model.reasons import Reason
from nvdp.model.status import DriverState, DriverStatus
from nvdp.nvml.client import INIT_LIMIT_S
from nvdp.nvml.frames import Refused
from nvdp.nvml.kinds import NvmlErrorKind
from nvdp.nvml.outcomes import Died, Hung
from nvdp.services.nvml_session import AWAKE_INIT_LIMIT_S

Failure: TypeAlias = Refused | Hung | Died
_FIRST_RETRY_S: Final = 1.0
_REASONS: Final = {
    DriverState.MISSING: Reason.DRIVER_MISSING,
    DriverState.MISMATCH: Reason.DRIVER_MISMATCH,
    DriverState.LOST: Reason.DRIVER_LOST,
}


class DriverWatch:
    """Follows the outcomes of scans and logs each change of state once. Used by one thread.

    ``remembered`` is the driver that a predecessor met in this boot, None if it met none.
    """

    def __init__(self, log: Log, *, clock: Callable[[], float], remembered: Driver | None = None) -> None:
        self._log = log
        self._clock = clock
        self._failures = 0
        self._children = 0
        self._children_of_gpus = 0
        self._hangs = 0
        self._worked = False
        self._was_met = remembered is not None
        self._version = remembered.version if remembered is not None else ""
        self._was_unloaded = False
        self._down_since: float | None = None
        self.status = DriverStatus()

    @property
    def is_ready(self) -> bool:
        return self.status.state is DriverState.READY

    def find_init_limit(self, *, call_timeout_s: float) -> float:
        """How long a new session may take to begin, in seconds.

        A minute, for a driver may have to wake its hardware up. Not if it hung a moment ago: then all shall be known to
        be lost soon, and it is waited for longer only with each time that it hangs again.
        """
        if not self._hangs:
            return INIT_LIMIT_S
        return min(INIT_LIMIT_S, max(AWAKE_INIT_LIMIT_S, call_timeout_s) * 2.0 ** min(self._hangs - 1, 10))

    def note(self, outcome: Failure, *, children: int = 1, of_gpu: bool = False) -> None:
        """A scan failed and cost ``children``; ``of_gpu`` says that one GPU was found to blame."""
        if of_gpu:
            self._children_of_gpus += children
        else:
            self._children += children
        if isinstance(outcome, Hung):
            self._hangs += 1

    def succeed(self, driver: Driver, *, gpus: int, seconds: float) -> bool:
        """A scan of ``gpus`` GPUs was complete after ``seconds``. True if the driver was reloaded since the last one.

        It was if it is another version, or if it was not loaded in between: that resets every GPU. The last one may be
        a predecessor's. A version that cannot be read, now or then, says nothing.
        """
        changed = bool(self._version and driver.version) and driver.version != self._version
        was_reloaded = changed or (self._was_met and self._was_unloaded)
        self._version, self._was_unloaded = driver.version or self._version, False
        self._was_met = True
        self._failures = self._children = self._children_of_gpus = self._hangs = 0
        self._worked = True
        if not self.is_ready:
            away = f", was away for {_spell(self._clock() - self._down_since)}" if self._down_since is not None else ""
            versions = f"driver {driver.version or 'unknown'}, CUDA {driver.cuda_version or 'unknown'}"
            text = f"{versions}, {gpus} {'GPU' if gpus == 1 else 'GPUs'} in {seconds:.3f}s{away}"
            self._log(Reason.DRIVER_READY, text, seconds=round(seconds, 3))
        self._down_since = None
        self.status = DriverStatus(state=DriverState.READY, version=driver.version, cuda_version=driver.cuda_version)
        return was_reloaded

    def pause(self, pause: Pause) -> None:
        """The driver is let go of by order, until it is taken back.

        What failed before counts no more, and no version is known: it may be another driver then.
        """
        self._failures = self._children = self._children_of_gpus = self._hangs = 0
        if self._down_since is None:
            self._down_since = self._clock()
        self.status = DriverStatus(state=DriverState.PAUSED, text=str(pause))

    def take_back(self) -> None:
        """The driver is about to be asked again."""
        self.status = DriverStatus()

    def fail(self, outcome: Failure, *, retry_every_s: float) -> float | None:
        """NVML failed as a whole. None: try again at once, nothing is lost yet; else seconds until the next try.

        A child that has just died may have been killed: the driver counts as lost only when a second one fails too, of
        all that were noted since the last complete scan. After a hang of one GPU, a hang of none is the second one.
        """
        self._failures += 1
        if isinstance(outcome, Refused) and outcome.kind == NvmlErrorKind.DRIVER_NOT_LOADED.word:
            self._was_unloaded = True
        children = self._children + (self._children_of_gpus if isinstance(outcome, Hung) else 0)
        if self.is_ready and children <= 1:
            return None
        if self._down_since is None:
            self._down_since = self._clock()
        text = outcome.text
        state = self._judge(outcome)
        if (state, text) != (self.status.state, self.status.text):
            again = f"Trying again every {_spell(retry_every_s)}"
            fields: dict[str, Any] = {"trace": outcome.trace} if isinstance(outcome, Died) and outcome.trace else {}
            self._log(_REASONS[state], f"{text}. {again}", error=_name(outcome), **fields)
        self.status = msgspec.structs.replace(self.status, state=state, error=_name(outcome), text=text)
        return min(retry_every_s, _FIRST_RETRY_S * 2.0 ** min(self._failures - 1, 10))

    def _judge(self, outcome: Failure) -> DriverState:
        if isinstance(outcome, Refused) and outcome.kind == NvmlErrorKind.LIB_RM_VERSION_MISMATCH.word:
            return DriverState.MISMATCH
        return DriverState.LOST if self._worked else DriverState.MISSING


def _name(outcome: Failure) -> str:
    """The field's word for a failure, for those who count log lines."""
    if isinstance(outcome, Refused):
        return outcome.kind
    return "CallTimeout" if isinstance(outcome, Hung) else "ChildDied"


def _spell(seconds: float) -> str:
    return str(build_duration(seconds=round(seconds)))
