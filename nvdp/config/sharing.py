"""The ``sharing`` block: several containers on one GPU, by time-slicing and by MPS. Part of ``schema``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from nvdp.config.keys import Setting, camel_key
from nvdp.model.deviceref import ALL_DEVICES, DeviceRef, DeviceSet
from nvdp.model.names import ResourceName
from nvdp.model.quantity import Quantity

_MIB = Quantity(2**20)


class SharedResource(msgspec.Struct, frozen=True, kw_only=True, rename=camel_key):
    """How the devices of one resource are shared. ``path`` and ``line`` tell where in the file that is said."""

    name: Annotated[ResourceName, Setting("the resource whose devices are shared")]
    rename: Annotated[ResourceName | None, Setting("the name under which they are offered, as written")] = None
    devices: Annotated[
        DeviceSet,
        Setting(
            "all that no other entry takes, a count, or a list of devices",
            least=1,
            too_small="write a count from 1, or all",
            remedy="write all, a count, or a list of devices",
            null_is_empty=True,
        ),
    ] = ALL_DEVICES
    replicas: Annotated[int, Setting("devices made of each; 1: unshared", least=1, too_small="1 means unshared")]
    path: str = ""
    line: int = 0

    @property
    def is_shared(self) -> bool:
        """One replica is the device itself: plain ID, plain name, no limit on requests."""
        return self.replicas > 1

    def build_default_name(self, *, rename_by_default: bool) -> ResourceName:
        """The name without a ``rename`` of its own."""
        return self.name.build_shared() if rename_by_default and self.is_shared else self.name

    def build_final_name(self, *, rename_by_default: bool) -> ResourceName:
        """The name under which the devices are offered."""
        return self.rename or self.build_default_name(rename_by_default=rename_by_default)


class TimeSlicing(msgspec.Struct, frozen=True, kw_only=True, rename=camel_key):
    """GPUs whose containers take turns. Nothing limits the memory that each takes."""

    rename_by_default: Annotated[bool, Setting("offer shared devices as NAME.shared")] = False
    fail_requests_greater_than_one: Annotated[bool, Setting("refuse a container that asks for two or more")] = False
    require_distinct_gpus: Annotated[
        bool, Setting("a container that asks for several gets that many different GPUs, or is refused")
    ] = False
    resources: Annotated[
        tuple[SharedResource, ...],
        Setting("what is shared; at least one entry", remedy="remove the block to share nothing"),
    ]


class MpsResource(SharedResource, frozen=True, kw_only=True, rename=camel_key):
    """A share of a GPU under MPS. Limits are those of each MPS client, a process."""

    default_active_thread_percentage: Annotated[
        int | None,
        Setting(
            "part of the GPU's threads that one client may use",
            least=1,
            most=100,
            percent=True,
            default_text="100 / replicas",
        ),
    ] = None
    default_pinned_device_memory_limit: Annotated[
        Quantity | None,
        Setting("memory that one client may use, in whole MiB", least=_MIB, default_text="GPU memory / replicas"),
    ] = None
    default_per_device_pinned_memory_limit: Annotated[
        Mapping[DeviceRef, Quantity], Setting("the same for single GPUs, by device reference", least=_MIB)
    ] = {}
    memory_overcommit_percentage: Annotated[
        int | None,
        Setting(
            "multiplies the default share of memory; not together with a limit",
            least=100,
            most=1000,
            percent=True,
            default_text="100",
        ),
    ] = None
    multi_user: Annotated[bool, Setting("pods of different users may share the MPS server")] = True


class Mps(msgspec.Struct, frozen=True, kw_only=True, rename=camel_key):
    """GPUs shared through CUDA's multi-process service."""

    rename_by_default: Annotated[bool, Setting("offer shared devices as NAME.shared")] = False
    fail_requests_greater_than_one: Annotated[
        bool, Setting("refuse a container that asks for two or more; false: allowed on one GPU")
    ] = True
    resources: Annotated[
        tuple[MpsResource, ...],
        Setting("what is shared; at least one entry", remedy="remove the block to share nothing"),
    ]


class Sharing(msgspec.Struct, frozen=True, kw_only=True, rename=camel_key):
    """The ways of sharing in use. One device is shared in one way only."""

    time_slicing: Annotated[TimeSlicing | None, Setting("containers take turns on a GPU", null_is_empty=True)] = None
    mps: Annotated[Mps | None, Setting("containers use a GPU at once, with limits")] = None
