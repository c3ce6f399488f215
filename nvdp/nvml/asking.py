"""NVML calls, each announced before and guarded: whatever goes wrong becomes an NvmlError. Runs in the child."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, NoReturn, TypeAlias

import pynvml

from nvdp.errors import NvmlError
from nvdp.model.inventory import Driver, Fault, GpuRef
from nvdp.nvml.kinds import NvmlErrorKind, describe_code

# "This GPU, or this driver, has no such fact": not a fault. WSL has no minor numbers, a T4 no MIG mode, an integrated
# GPU no memory of its own, an old library none of the newer calls.
NO_SUCH_FACT: Final = frozenset({NvmlErrorKind.NOT_SUPPORTED.word, NvmlErrorKind.FUNCTION_NOT_FOUND.word})
# The same for one process only. In MIG mode a container without privileges may not ask a GPU as a whole.
NOT_FOR_US: Final = NO_SUCH_FACT | {NvmlErrorKind.NO_PERMISSION.word}

Announce: TypeAlias = Callable[[str, GpuRef | None], None]


class Asker:
    """Makes calls; ``announce`` is told the name of each, and the GPU it is about, before it is made.

    NVML must be initialised. A call that does not return blocks for ever: the daemon ends the process then.
    """

    def __init__(self, announce: Announce) -> None:
        self._announce = announce

    def ask(self, call: str, function: Callable[..., Any], *arguments: object, gpu: GpuRef | None = None) -> Any:
        """What ``function`` returns. Raises NvmlError that names the call, the GPU, and our own text."""
        self._announce(call, gpu)
        try:
            return function(*arguments)
        except Exception as error:  # noqa: BLE001 - pynvml also raises what it meets in answers, as UnicodeDecodeError
            translate(error, call=call, gpu=gpu)

    def find_fact(self, call: str, function: Callable[[], Any]) -> Any:
        """What ``function`` returns; None if it fails."""
        try:
            return self.ask(call, function)
        except NvmlError:
            return None


class GpuFacts:
    """Reads the facts of one GPU, or of a part of it, and keeps the first fault.

    ``ref`` grows as more of the GPU is recognised.
    """

    def __init__(self, asker: Asker, ref: GpuRef) -> None:
        self._asker = asker
        self.ref = ref
        self.fault: Fault | None = None

    def part(self) -> GpuFacts:
        """Reads the facts of a part of the GPU, with a fault of its own."""
        return GpuFacts(self._asker, self.ref)

    def ask(self, call: str, function: Callable[..., Any], *arguments: object) -> Any:
        """See ``Asker.ask``."""
        return self._asker.ask(call, function, *arguments, gpu=self.ref)

    def read(
        self,
        call: str,
        function: Callable[[], Any],
        *,
        otherwise: Any = None,
        no_such_fact: Collection[str] = NO_SUCH_FACT,
    ) -> Any:
        """The fact; ``otherwise`` if there is ``no_such_fact``; None after another failure, which is noted."""
        try:
            return self.ask(call, function)
        except NvmlError as error:
            if error.kind in no_such_fact:
                return otherwise
            self.note(error)
            return None

    def note(self, error: NvmlError) -> None:
        """The GPU's fault, unless it had one before."""
        self.fault = self.fault or build_fault(error)


def read_driver(asker: Asker) -> Driver:
    """Versions are for people: one that cannot be read is empty, and the scan goes on."""
    cuda = asker.find_fact("nvmlSystemGetCudaDriverVersion", pynvml.nvmlSystemGetCudaDriverVersion_v2)
    return Driver(
        version=asker.find_fact("nvmlSystemGetDriverVersion", pynvml.nvmlSystemGetDriverVersion) or "",
        cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
    )


def read_uuid(handle: object) -> str:
    """The UUID of a GPU or a MIG device. Raises ValueError if the driver gives it an empty one."""
    uuid: str = pynvml.nvmlDeviceGetUUID(handle)
    if not uuid:
        raise ValueError("an empty UUID")
    return uuid


def translate(error: Exception, *, call: str, gpu: GpuRef | None = None) -> NoReturn:
    """Raises NvmlError for whatever a function of pynvml raised."""
    if isinstance(error, pynvml.NVMLError):
        word, text = describe_code(error.value)
    elif isinstance(error, pynvml.NVMLLibraryMismatchError):
        word, text = NvmlErrorKind.FUNCTION_NOT_FOUND.word, NvmlErrorKind.FUNCTION_NOT_FOUND.text
    else:
        word, text = NvmlErrorKind.UNKNOWN.word, f"the answer makes no sense: {error}"
    raise NvmlError(f"{call}: {text}", kind=word, call=call, gpu=str(gpu or "")) from error


def build_fault(error: NvmlError) -> Fault:
    """The failure of a call as a fault of the GPU that it was about."""
    return Fault(call=error.call, kind=error.kind, text=str(error))
