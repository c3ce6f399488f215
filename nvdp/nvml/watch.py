"""The events of one NVML session: which GPUs are registered for them, and the thread that waits. Runs in the child.

NVML may be asked by several threads at once: while this one waits, the thread that answers commands scans.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import pynvml

from nvdp.errors import NvmlError
from nvdp.nvml.asking import NO_SUCH_FACT, Asker, GpuFacts, translate
from nvdp.nvml.frames import WAIT_S, Ecc, Notice, Watch, WatchFailed, Xid
from nvdp.nvml.kinds import NvmlErrorKind

_XID: Final = pynvml.nvmlEventTypeXidCriticalError
_DOUBLE_BIT: Final = pynvml.nvmlEventTypeDoubleBitEccError
_WANTED: Final[int] = _XID | _DOUBLE_BIT | pynvml.nvmlEventTypeSingleBitEccError
_CALLS: Final = (
    "nvmlEventSetCreate",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceRegisterEvents",
    "nvmlEventSetWait_v2",
)
_NO_INSTANCE: Final = 0xFFFFFFFF
# A library that says at once that it has waited is not asked more often than this.
_SHORTEST_WAIT_S: Final = 0.1


class EventWatch:
    """Used by the thread that answers commands, but for what its own thread, named ``nvml-wait``, does.

    ``push`` is called by that thread with all that it hears, in order, and at last with WatchFailed if a wait fails:
    then it ends, and a new session is needed to hear more. Its calls leave no breadcrumbs, for they wait by design.
    """

    def __init__(self, asker: Asker, push: Callable[[Notice], None]) -> None:
        self._asker = asker
        self._push = push
        self._set: Any = None
        self._problem = self._kind = ""
        self._failed = False
        self._uuids: dict[int, str] = {}
        self._unsupported: set[str] = set()
        self._thread: threading.Thread | None = None
        self._waits = 0
        self._returned_at = 0.0

    def prepare(self) -> None:
        """Create the event set, if there is none yet. Failing that is told in ``report`` and disturbs nothing else."""
        if self._set is not None:
            return
        missing = next((call for call in _CALLS if not hasattr(pynvml.nvmlLib, call)), None)
        if missing is not None:
            self._problem = f"{missing}: {NvmlErrorKind.FUNCTION_NOT_FOUND.text}"
            self._kind = NvmlErrorKind.FUNCTION_NOT_FOUND.word
            return
        try:
            self._set = self._asker.ask("nvmlEventSetCreate", pynvml.nvmlEventSetCreate)
            self._problem = self._kind = ""
        except NvmlError as error:
            self._problem, self._kind = str(error), error.kind

    def register(self, handle: Any, facts: GpuFacts) -> None:
        """Turn the events of a GPU on, once. One that has none is left alone; any other failure is its fault."""
        uuid = facts.ref.uuid
        if self._set is None or uuid is None or self.has(uuid) or uuid in self._unsupported:
            return
        address = _find_address(handle)
        try:
            types = facts.ask("nvmlDeviceGetSupportedEventTypes", _find_types, handle)
            if types:
                self._uuids[address] = uuid  # before its first event
                facts.ask("nvmlDeviceRegisterEvents", pynvml.nvmlDeviceRegisterEvents, handle, types, self._set)
                return
        except NvmlError as error:
            self._uuids.pop(address, None)
            if error.kind not in NO_SUCH_FACT:
                facts.note(error)
                return
        self._unsupported.add(uuid)

    def has(self, uuid: str) -> bool:
        """Whether the events of this GPU are on."""
        return uuid in self._uuids.values()

    def start(self) -> None:
        """Wait from now on, in a thread; nothing if there is nothing to wait for, or if the thread runs or has run."""
        if self._thread is not None or not self._uuids:
            return
        self._problem, self._returned_at = "", time.monotonic()
        self._thread = threading.Thread(target=self._run, name="nvml-wait", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._problem, self._thread = f"no thread can wait for events: {error}; see the pod's limits", None

    def report(self) -> Watch:
        """How it goes, now."""
        silent_s = time.monotonic() - self._returned_at if self._thread is not None else 0.0
        return Watch(problem=self._problem, kind=self._kind, failed=self._failed, waits=self._waits, silent_s=silent_s)

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the daemon has gone: the process ends
            try:
                while True:
                    self._wait()
            except NvmlError as error:
                self._problem, self._kind, self._failed = str(error), error.kind, True
                self._push(WatchFailed(kind=error.kind, text=str(error)))

    def _wait(self) -> None:
        asked_at = time.monotonic()
        try:
            data = pynvml.nvmlEventSetWait_v2(self._set, int(WAIT_S * 1000))
        except Exception as error:  # noqa: BLE001 - as in Asker
            if not isinstance(error, pynvml.NVMLError) or error.value != pynvml.NVML_ERROR_TIMEOUT:
                translate(error, call="nvmlEventSetWait")
            data = None
        self._returned_at = time.monotonic()
        self._waits += 1
        if data is not None:
            self._tell(data)
        elif self._returned_at - asked_at < _SHORTEST_WAIT_S:
            time.sleep(_SHORTEST_WAIT_S)

    def _tell(self, data: Any) -> None:
        uuid = self._uuids.get(_find_address(data.device))
        if uuid is None:
            text = "nvmlEventSetWait: an event of a GPU that was never registered"
            raise NvmlError(text, kind=NvmlErrorKind.UNKNOWN.word, call="nvmlEventSetWait")
        if data.eventType == _XID:
            self._push(
                Xid(
                    uuid=uuid,
                    code=data.eventData,
                    gpu_instance=_find_instance(data.gpuInstanceId),
                    compute_instance=_find_instance(data.computeInstanceId),
                    at=self._returned_at,
                )
            )
        elif data.eventType & _WANTED:
            self._push(Ecc(uuid=uuid, double=data.eventType == _DOUBLE_BIT, at=self._returned_at))


def _find_types(handle: object) -> int:
    """Those that we want and the GPU has."""
    return int(pynvml.nvmlDeviceGetSupportedEventTypes(handle)) & _WANTED


def _find_address(handle: Any) -> int:
    address: int | None = ctypes.cast(handle, ctypes.c_void_p).value
    return address or 0


def _find_instance(number: int) -> int | None:
    return None if number == _NO_INSTANCE else number
