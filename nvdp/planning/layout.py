"""Which devices of a node cannot be offered for the way in which its GPUs are cut: the rules of ``flags.migStrategy``.

NVIDIA's plugin ends at most of these; here the device or the GPU concerned is withheld, and the others are offered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from nvdp.config.schema import Config, MigStrategy
from nvdp.errors import FormatError
from nvdp.model.inventory import Gpu
from nvdp.model.names import parse_resource_name
from nvdp.model.reasons import Reason
from nvdp.planning.assignment import Withheld
from nvdp.planning.devices import Device

_PATH: Final = "flags.migStrategy"
_WHOLE: Final = ""


def judge_layout(config: Config, devices: Sequence[Device], *, excluded: Collection[str]) -> dict[str, Withheld]:
    """The devices to withhold, by UUID, of those that are not ``excluded``. ``devices`` are in list order.

    MIG devices that no resource can have are left out, and GPUs in MIG mode without any. Under ``single`` all devices
    of a GPU must be alike, and all GPUs: the kind of which most GPUs are is offered.
    """
    if config.flags.mig_strategy is MigStrategy.NONE:
        return {}
    ours = [device for device in devices if device.uuid not in excluded]
    if config.flags.mig_strategy is MigStrategy.SINGLE and any(device.instance is not None for device in ours):
        # Nobody knows what they are: they have no voice, and are not called whole.
        return _judge_known(config, [device for device in ours if not is_unknown(device.gpu)]) | {
            device.uuid: _withhold(f"{name_gpu_in_text(device.gpu)}: whether it is in MIG mode cannot be read")
            for device in ours
            if is_unknown(device.gpu)
        }
    return _judge_known(config, ours)


def _judge_known(config: Config, ours: Sequence[Device]) -> dict[str, Withheld]:
    texts = {device.uuid: text for device in ours if (text := _find_flaw(device)) is not None}
    if config.flags.mig_strategy is MigStrategy.SINGLE:
        texts |= _find_odd([device for device in ours if device.uuid not in texts])
    return {uuid: _withhold(text) for uuid, text in texts.items()}


def _withhold(text: str) -> Withheld:
    return Withheld(reason=Reason.MIG_INVALID.word, path=_PATH, text=text)


def is_unknown(gpu: Gpu) -> bool:
    """Whether the GPU may be in MIG mode, or not: it did not answer."""
    return gpu.mig is None and gpu.fault is not None


def name_gpu_in_text(gpu: Gpu) -> str:
    """``GPU 3 (GPU-…)``: the beginning of a sentence."""
    return f"GPU {gpu.index} ({gpu.uuid})"


def _find_flaw(device: Device) -> str | None:
    """Why the device can be offered on no node."""
    if device.instance is None:
        return _find_missing(device.gpu) if device.is_in_mig_mode else None
    profile, where = device.profile, f"MIG device {device.index}"
    if profile is None:
        spelled, fault = device.instance.profile, device.instance.fault
        why = f"{spelled!r} is no profile" if spelled else fault.text if fault is not None else "the driver names none"
        return f"the profile of {where} is not known: {why}"
    if profile.is_partial:
        return f"{where} is {profile}, smaller than its GPU instance; only a whole GPU instance can be offered"
    try:
        parse_resource_name(profile.resource_part)
    except FormatError as error:
        return f"the profile of {where} makes no resource: {error}"
    return None


def _find_missing(gpu: Gpu) -> str:
    if gpu.instances is None:
        why = gpu.fault.text if gpu.fault is not None else "the driver does not list them"
        return f"{name_gpu_in_text(gpu)} is in MIG mode, and its MIG devices cannot be listed: {why}"
    return f"{name_gpu_in_text(gpu)} is in MIG mode without MIG devices; create some, or switch MIG off"


def _find_odd(devices: Sequence[Device]) -> dict[str, str]:
    """What is not of the kind that ``single`` offers. A node without MIG devices has one kind."""
    by_gpu: dict[str, list[Device]] = {}
    for device in devices:
        by_gpu.setdefault(device.gpu.uuid, []).append(device)
    if all(device.instance is None for device in devices):
        return {}
    texts: dict[str, str] = {}
    kinds: dict[str, str] = {}
    for uuid, members in by_gpu.items():
        found = list(dict.fromkeys(str(device.profile or _WHOLE) for device in members))
        if len(found) == 1:
            kinds[uuid] = found[0]
            continue
        text = (
            f"{name_gpu_in_text(members[0].gpu)} has unequal MIG devices ({', '.join(found)}); "
            "single offers one kind: make them alike, or set mixed"
        )
        texts |= {device.uuid: text for device in members}
    chosen = _choose(kinds)
    for uuid, kind in kinds.items():
        if kind != chosen:
            members = by_gpu[uuid]
            text = (
                f"{name_gpu_in_text(members[0].gpu)} is {_describe(kind)}, and single offers one kind, here GPUs "
                f"that are {_describe(chosen)}: make them alike, or set mixed"
            )
            texts |= {device.uuid: text for device in members}
    return texts


def _choose(kinds: Mapping[str, str]) -> str:
    """The kind of most GPUs; of as many, MIG devices before whole GPUs, and then that of the first."""
    counts: dict[str, int] = {}
    for kind in kinds.values():
        counts[kind] = counts.get(kind, 0) + 1
    order = list(counts)
    return max(counts, key=lambda kind: (counts[kind], kind != _WHOLE, -order.index(kind)), default=_WHOLE)


def _describe(kind: str) -> str:
    return f"cut into {kind}" if kind else "whole"
