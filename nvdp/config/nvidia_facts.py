"""What NVIDIA's plugin (v0.20.0) makes of single values: whether it takes them, and what they come to there.

The questions that the table of differences (``nvidia_rows``) asks about one key of a file, and the words that depend on
what stands there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from nvdp.config.goyaml import find_kind, is_respelt
from nvdp.config.nodes import Scalar
from nvdp.config.schema import Config, MigStrategy, NamedPattern, PreStartCheck
from nvdp.config.sharing import SharedResource
from nvdp.config.written import Written
from nvdp.errors import quote
from nvdp.model.duration import build_duration, is_bare_number
from nvdp.model.listing import DeviceListStrategy, SharedPolicy
from nvdp.model.names import GPU_RESOURCE, ResourceName

IGNORED_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
MPS_CLIENTS: Final = 48  # replicas of one GPU under MPS, whatever its driver allows
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_NAME: Final = re.compile(rf"nvidia\.com/{_LABEL}(?:\.{_LABEL})*")
_DEVICE: Final = re.compile(r"[0-9]+(?::[0-9]+)?|(?:GPU|MIG)-[0-9a-fA-F-]+|MIG-GPU-[0-9a-fA-F-]+/[0-9]+/[0-9]+")
_CDI: Final = frozenset({DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI})
_NO_TIME: Final = build_duration(seconds=0)


# Of any key


def is_written(_: Written) -> bool:
    """Whatever the value: nothing there corresponds to the key."""
    return True


def is_on(written: Written) -> bool:
    """True, or a list that is not empty."""
    return bool(written.value)


def is_off(written: Written) -> bool:
    return not written.value


def is_value(value: Any) -> Callable[[Written], bool]:
    return lambda written: bool(written.value == value)


# Spellings


def is_no_text(written: Written) -> bool:
    return isinstance(written.node, Scalar) and find_kind(written.node) != "text"


def becomes_other_text(written: Written) -> bool:
    return isinstance(written.node, Scalar) and is_respelt(written.node)


def tell_kind(written: Written) -> str:
    assert isinstance(written.node, Scalar)
    return f"{written.text} is {find_kind(written.node)}; write {quote(written.text)}"


def tell_value(written: Written) -> str:
    return f"{quote(written.text)} is not"


def is_no_name(written: Written) -> bool:
    return bool(written.value) and not _NAME.fullmatch(written.value)


def is_no_device(written: Written) -> bool:
    return not _DEVICE.fullmatch(written.text)


def lacks_unit(written: Written) -> bool:
    return _is_quoted(written) and is_bare_number(written.text) and written.text != "0"


def is_nanoseconds(written: Written) -> bool:
    return not _is_quoted(written) and is_bare_number(written.text) and written.value != _NO_TIME


def tell_duration(written: Written) -> str:
    return f"write {written.value}"


def _is_quoted(written: Written) -> bool:
    return isinstance(written.node, Scalar) and written.node.quoted


# Names of resources


def renames_mig(written: Written) -> bool:
    strategy = written.config.flags.mig_strategy
    return strategy is not MigStrategy.NONE and written.value != _find_mig_name(written.blocks[0], strategy)


def has_no_mig(written: Written) -> bool:
    return written.config.flags.mig_strategy is MigStrategy.NONE


def renames_gpus(written: Written) -> bool:
    return bool(written.value != GPU_RESOURCE)


def is_own_name(written: Written) -> bool:
    return written.value in _list_own_names(written.config)


def _find_mig_name(rule: NamedPattern, strategy: MigStrategy) -> str | None:
    """The name that the MIG devices of a rule have by default; None where they may have several."""
    if strategy is MigStrategy.SINGLE:
        return GPU_RESOURCE
    pattern = rule.pattern.text
    return None if "*" in pattern else f"nvidia.com/mig-{pattern.replace('+', '.')}"


def _list_own_names(config: Config) -> frozenset[ResourceName]:
    """Names that exist only where ``resources`` is honoured."""
    strategy = config.flags.mig_strategy
    mig = config.resources.mig if strategy is not MigStrategy.NONE else ()
    own = {rule.name for rule in mig if rule.name != _find_mig_name(rule, strategy)}
    return frozenset(own | {rule.name for rule in config.resources.gpus}) - {GPU_RESOURCE}


# Sharing


def is_beside_mps(written: Written) -> bool:
    """MPS is what counts where both are written, once an entry of it shares anything."""
    mps = written.config.sharing.mps
    return mps is not None and any(entry.is_shared for entry in mps.resources)


def lacks_gpu_entry(written: Written) -> bool:
    return is_beside_mps(written) and all(entry.name != GPU_RESOURCE for entry in written.value)


def has_too_many_clients(written: Written) -> bool:
    return bool(written.value > MPS_CLIENTS)


def is_renamed(written: Written) -> bool:
    return bool(written.value) and written.value != _find_shared_name(written) and _shares(written)


def tell_shared_name(written: Written) -> str:
    name = _find_shared_name(written)
    if written.value == written.blocks[0].name.build_shared():
        return f"these devices are {name}; with renameByDefault: true they are {written.value} there too"
    return f"these devices are {name}"


def is_part(written: Written) -> bool:
    return not written.value.is_all and _shares(written)


def may_repeat_gpus(written: Written) -> bool:
    refuses = written.blocks[0].fail_requests_greater_than_one
    return bool(written.value) and not refuses and not is_beside_mps(written)


def is_other_percentage(written: Written) -> bool:
    return bool(written.value != 100 // written.blocks[0].replicas)


def is_other_memory(written: Written) -> bool:
    """A limit, or an overcommitment that is one."""
    return bool(written.value) and written.value != 100  # noqa: PLR2004 - percent: as much as there is


def _shares(written: Written) -> bool:
    """Whether the entry around shares anything there."""
    overruled = written.path.startswith("sharing.timeSlicing") and is_beside_mps(written)
    return not overruled and written.blocks[0].name not in _list_own_names(written.config)


def _find_shared_name(written: Written) -> ResourceName:
    entry, block = written.blocks[:2]
    assert isinstance(entry, SharedResource)
    return entry.build_default_name(rename_by_default=block.rename_by_default)


# Flags, allocation, health


def is_strategy_beside_mps(strategy: MigStrategy) -> Callable[[Written], bool]:
    return lambda written: written.value is strategy and is_beside_mps(written)


def needs_nvml_anyway(written: Written) -> bool:
    return is_off(written) and bool(_CDI & set(written.config.flags.plugin.device_list_strategy))


def names_devices_twice(written: Written) -> bool:
    return _CDI.issubset(written.value)


def needs_channel(written: Written) -> bool:
    return is_on(written) and bool(written.config.imex.channel_ids)


def has_several(written: Written) -> bool:
    return len(written.value) > 1


def is_other_policy(written: Written) -> bool:
    old = written.config.flags.plugin.shared_devices_allocation_policy
    return written.value is not (old or SharedPolicy.DISTRIBUTED)


def tell_policy_key(written: Written) -> str:
    if written.value is SharedPolicy.SPREAD:
        return ""
    return f"flags.plugin.sharedDevicesAllocationPolicy: {written.value.value} means it to both"


def checks_before_start(written: Written) -> bool:
    return bool(written.blocks[0].pre_start_check is PreStartCheck.IDLE)


def ignores_more(written: Written) -> bool:
    return written.value.every or not IGNORED_XIDS.issuperset(written.value.numbers)


def ignores_less(written: Written) -> bool:
    return written.value.every or not IGNORED_XIDS.isdisjoint(written.value.numbers)


def tell_variable(variable: str) -> Callable[[Written], str]:
    def tell(written: Written) -> str:
        xids = "all" if written.value.every else ",".join(map(str, written.value.numbers))
        return f"set {variable}={xids} for its container"

    return tell


def recovers(written: Written) -> bool:
    return bool(written.blocks[0].hold_off != _NO_TIME)
