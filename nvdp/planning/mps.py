"""What MPS needs of a GPU, and how much of it each client may have.

A client is a process, not a container (configuration contract, "sharing"). What could not be read objects to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from nvdp.config.sharing import MpsResource
from nvdp.model.inventory import Driver
from nvdp.model.quantity import Quantity
from nvdp.planning.devices import Device
from nvdp.planning.entries import Entry
from nvdp.planning.pins import Reference, list_devices, list_limited
from nvdp.planning.sharing import Claims
from nvdp.planning.wording import join_some

_MIB: Final = 2**20
_MIB_PER_GIB: Final = 2**10
_MOST_TOLD: Final = 3  # problems in one sentence
_WHOLE: Final = "a GPU that is not in MIG mode"
_CAPABILITY: Final = (7, 0)  # older GPUs run all clients in one address space, without limits for each
# Clients of one GPU, by the version of CUDA that the driver is for, at least (driver documentation, MPS, limits).
_CLIENTS: Final = (((13, 1), 60), ((0, 0), 48))


class Unsupported(msgspec.Struct, frozen=True, kw_only=True):
    """Why this node cannot honour an entry: the place in the file, and a sentence, which names every GPU in the way.

    ``device`` is the UUID of the first GPU that lacks something, ``minimum`` what it would have to have.
    """

    path: str
    text: str
    device: str
    minimum: str


class ClientLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one client may use of a GPU. ``memory_mib`` is None while the GPU's memory is unknown and nothing is set."""

    thread_percent: int
    memory_mib: int | None

    def __str__(self) -> str:
        memory = "" if self.memory_mib is None else f", {_show_memory(self.memory_mib)}"
        return f"{self.thread_percent} % threads{memory} per client"


class _Case(msgspec.Struct, frozen=True):
    """One GPU that an entry takes."""

    entry: Entry
    setting: MpsResource
    gpu: Device
    pins: Mapping[str, str]
    driver: Driver


def find_unsupported(
    entries: Sequence[Entry], devices: Sequence[Device], claims: Claims, pins: Mapping[str, str], *, driver: Driver
) -> dict[str, Unsupported]:
    """The MPS entries that this node cannot honour, by path, each with what its GPUs lack: each GPU's first problem."""
    problems = {}
    for entry in entries:
        setting = entry.setting
        if not isinstance(setting, MpsResource):
            continue
        taken = [gpu for gpu in devices if gpu.uuid in claims.takers and claims.takers[gpu.uuid] is entry]
        wrong = next(_find_mig_devices(entry, devices, pins), None)
        found = [] if wrong is not None else _find_problems([_Case(entry, setting, gpu, pins, driver) for gpu in taken])
        if wrong is not None:
            problems[entry.path] = wrong
        elif found:
            problems[entry.path] = _join(found, taken)
    return problems


def find_client_limits(entry: Entry, gpu: Device, pins: Mapping[str, str]) -> ClientLimits | None:
    """What a client of the entry may use of a GPU that the entry takes; None where MPS limits nothing: to one replica.

    Memory is a limit of the GPU's own, else the entry's, else an equal share, multiplied where overcommitment says so
    but never more than there is.
    """
    setting = entry.setting
    if not isinstance(setting, MpsResource) or not setting.is_shared:
        return None
    threads = setting.default_active_thread_percentage or max(1, 100 // setting.replicas)
    own = next((limit for _, limit in _list_own_limits(entry, gpu, pins)), setting.default_pinned_device_memory_limit)
    memory_mib = own.mib if own is not None else None
    if own is None and gpu.memory_bytes is not None:
        share = gpu.memory_bytes // setting.replicas * (setting.memory_overcommit_percentage or 100) // 100
        memory_mib = min(share, gpu.memory_bytes) // _MIB
    return ClientLimits(thread_percent=threads, memory_mib=memory_mib)


def _list_own_limits(entry: Entry, gpu: Device, pins: Mapping[str, str]) -> list[tuple[Reference, Quantity]]:
    """The limits that an MPS entry has for this GPU alone."""
    assert isinstance(entry.setting, MpsResource)
    limits = entry.setting.default_per_device_pinned_memory_limit
    limited = [one for one in list_limited(entry) if not one.is_mig and one.matches(gpu, pins)]
    return [(reference, limits[reference.ref]) for reference in limited]


def _find_mig_devices(entry: Entry, devices: Sequence[Device], pins: Mapping[str, str]) -> Iterator[Unsupported]:
    for reference in (*list_devices(entry), *list_limited(entry)):
        mine = next((one for one in devices if reference.is_mig and reference.concerns(one, pins)), None)
        if mine is not None:
            text = f"{reference.ref} is a MIG device; MPS on MIG is not supported"
            yield Unsupported(path=reference.path, text=text, device=mine.uuid, minimum=_WHOLE)


def _find_problems(cases: Sequence[_Case]) -> list[Unsupported]:
    """The first problem of each GPU, in the order of the rules."""
    found: dict[str, Unsupported] = {}
    for rule in _RULES:
        for case in cases:
            if case.gpu.uuid not in found and (problem := rule(case)) is not None:
                found[case.gpu.uuid] = problem
    return list(found.values())


def _join(problems: Sequence[Unsupported], taken: Sequence[Device]) -> Unsupported:
    """One for the whole entry, which is shared as it stands or not at all; with what would be left to share."""
    unfit = {one.device for one in problems}
    texts = list(dict.fromkeys(one.text for one in problems))
    rest = len(texts) - _MOST_TOLD
    text = "; ".join(texts[:_MOST_TOLD]) + (f"; and {rest} more" if rest > 0 else "")
    left = [gpu.index for gpu in taken if gpu.uuid not in unfit]
    if left:
        what = "GPU" if len(unfit) == 1 else "GPUs"
        names = join_some([gpu.index for gpu in taken if gpu.uuid in unfit])
        text += f"; for {what} {names} the whole entry is withheld, devices: [{', '.join(left)}] would share the rest"
    return msgspec.structs.replace(problems[0], text=text)


def _object_to_platform(case: _Case) -> Unsupported | None:
    if not case.gpu.is_all_there_is:
        return None
    text = f"{case.gpu.product or case.gpu.uuid} is all that this system tells of its GPUs; MPS needs NVML"
    return _build(case, text, minimum="NVML")


def _object_to_mig_mode(case: _Case) -> Unsupported | None:
    if not case.gpu.is_in_mig_mode:
        return None
    return _build(case, f"{case.gpu.gpu.uuid} is in MIG mode; MPS on MIG is not supported", minimum=_WHOLE)


def _object_to_capability(case: _Case) -> Unsupported | None:
    known = case.gpu.compute_capability
    if known is None or _parse_version(known) >= _CAPABILITY:
        return None
    least = ".".join(map(str, _CAPABILITY))
    text = f"{case.gpu.product or case.gpu.uuid} has compute capability {known}; MPS needs {least}"
    return _build(case, text, minimum=f"compute capability {least}")


def _object_to_clients(case: _Case) -> Unsupported | None:
    capability, cuda = case.gpu.compute_capability, case.driver.cuda_version
    if capability is None or not cuda:
        return None
    most = next(clients for least, clients in _CLIENTS if _parse_version(cuda) >= least)
    replicas = case.setting.replicas
    if replicas <= most:
        return None
    text = (
        f"{replicas} is more than the {most} clients that MPS allows here "
        f"(compute capability {capability}, driver for CUDA {cuda})"
    )
    return _build(case, text, minimum=f"{replicas} clients", path=f"{case.entry.path}.replicas")


def _object_to_limit(case: _Case) -> Unsupported | None:
    """The limit that counts for the GPU; two for one card, spelled in two ways, contradict each other."""
    own = _list_own_limits(case.entry, case.gpu, case.pins)
    default = case.setting.default_pinned_device_memory_limit
    if len({limit for _, limit in own}) > 1:
        (first, limit), (second, _) = own[:2]
        text = f"{second.introduce(case.gpu)} has {limit} as {first.ref} already; one limit for each device"
        return _build(case, text, minimum="one limit", path=second.path)
    limits = [(reference.path, limit) for reference, limit in own]
    if not limits and default is not None:
        limits = [(f"{case.entry.path}.defaultPinnedDeviceMemoryLimit", default)]
    for path, limit in limits:
        if case.gpu.memory_bytes is not None and limit.mib * _MIB > case.gpu.memory_bytes:
            size = _show_memory(case.gpu.memory_bytes // _MIB)
            text = f"{limit} is more than {case.gpu.uuid} has ({size})"
            return _build(case, text, minimum=f"{limit} of memory", path=path)
    return None


def _object_to_share(case: _Case) -> Unsupported | None:
    """The control daemon counts memory in whole MiB, and takes no limit of 0."""
    limits = find_client_limits(case.entry, case.gpu, case.pins)
    if limits is None or limits.memory_mib is None or limits.memory_mib > 0:
        return None
    assert case.gpu.memory_bytes is not None
    size = _show_memory(case.gpu.memory_bytes // _MIB)
    replicas = case.setting.replicas
    text = f"{case.gpu.uuid} has {size}, which is less than 1 MiB for each of {replicas} clients"
    return _build(case, text, minimum=f"{replicas} MiB of memory", path=f"{case.entry.path}.replicas")


def _build(case: _Case, text: str, *, minimum: str, path: str = "") -> Unsupported:
    """It is the entry's as a whole unless one of its keys, ``path``, is what asks too much."""
    return Unsupported(path=path or case.entry.path, text=text, device=case.gpu.uuid, minimum=minimum)


def _parse_version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _show_memory(mib: int) -> str:
    """Rounded down, so that what is said to be too little looks so."""
    if mib < _MIB_PER_GIB:
        return f"{mib} MiB"
    tenths = mib * 10 // _MIB_PER_GIB
    return f"{tenths // 10}{f'.{tenths % 10}' if tenths % 10 else ''} GiB"


_RULES: Final[tuple[Callable[[_Case], Unsupported | None], ...]] = (
    _object_to_platform,
    _object_to_mig_mode,
    _object_to_capability,
    _object_to_clients,
    _object_to_limit,
    _object_to_share,
)
