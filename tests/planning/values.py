"""Short ways to write the values that planning works on."""

from __future__ import annotations

import textwrap

from nvdp.config.load import parse_config
from nvdp.config.schema import Config
from nvdp.model.health import Ailment
from nvdp.model.held import Held, Holding, Source
from nvdp.model.inventory import Driver, Gpu, Inventory, MigInstance, MigMode
from nvdp.model.listing import ListedDevice, ResourceList
from nvdp.model.reasons import Cause
from nvdp.planning.devices import Device
from nvdp.planning.ledger import Given, give, note_taken
from nvdp.planning.plan import Inputs
from nvdp.planning.sizing import device_bytes

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"


def uuid(number: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{number:012d}"


def gpu(number: int, **facts) -> Gpu:
    """GPU ``number`` in slot ``number``, on no NUMA node; ``facts`` replace what is said here."""
    known = {"uuid": uuid(number), "index": number, "minor": number, "product": "NVIDIA A10"}
    return Gpu(**(known | {"pci": f"0000:{number + 16:02x}:00.0"} | facts))


def mig_uuid(number: int, index: int) -> str:
    return f"MIG-00000000-0000-0000-{number:04d}-{index:012d}"


def cut(number: int, *profiles: str, **facts) -> Gpu:
    """GPU ``number`` in MIG mode, with MIG devices of these profiles; each is a GPU instance of its own."""
    instances = tuple(
        MigInstance(
            uuid=mig_uuid(number, index),
            index=index,
            gpu_instance=index + 1,
            compute_instance=0,
            profile=profile,
            memory_bytes=5 * 2**30,
        )
        for index, profile in enumerate(profiles)
    )
    return gpu(number, **({"mig": MigMode.ENABLED, "instances": instances, "product": "NVIDIA A100"} | facts))


def device(one: Gpu) -> Device:
    """The GPU as a whole."""
    return Device(gpu=one)


def inventory(*gpus: Gpu) -> Inventory:
    return Inventory(driver=Driver(version="580.65.06", cuda_version="13.0"), gpus=gpus)


def parse(text: str = "") -> Config:
    return parse_config(textwrap.dedent(text), name="test.yaml")


def sliced(replicas: int, *, rename: bool = False, more: str = "") -> Config:
    """All GPUs time-sliced; ``more`` is further text of the file."""
    text = f"""\
sharing:
  timeSlicing:
    renameByDefault: {str(rename).lower()}
    resources:
    - name: nvidia.com/gpu
      replicas: {replicas}
"""
    return parse(text + textwrap.dedent(more))


def listed(resource: str, *ids: str, unhealthy: tuple[str, ...] = (), cause: Cause = Cause.WITHDRAWING) -> ResourceList:
    devices = tuple(
        ListedDevice(id=text, gpu_uuid=text.partition("::")[0], cause=cause if text in unhealthy else None)
        for text in ids
    )
    return ResourceList(resource=resource, devices=devices)


def given_out(listing: ResourceList, *, at: float, taken: bool = True) -> Given:
    """What is on record of ``listing`` after it was given out, and taken, ``at``."""
    record = give(None, listing, version=1, now=at)
    return note_taken(record, version=1, now=at) if taken else record


def list_bytes(devices: tuple[ListedDevice, ...]) -> int:
    """Encoded size of a whole list, all Unhealthy."""
    return sum(device_bytes(id_length=len(device.id), numa_node=device.numa_node) for device in devices)


def holding(device_id: str, pod: str = "pod", resource: str = GPU) -> Holding:
    return Holding(resource=resource, device_id=device_id, namespace="team", pod=pod, container="main")


def answer(*holdings: Holding, at: float = 0.0) -> Held:
    """PodResources' answer to a question asked ``at``."""
    return Held(source=Source.POD_RESOURCES, requested_at=at, holdings=tuple(sorted(holdings)))


def ailment(cause: Cause = Cause.LOST, text: str = "gone", since: float = 0.0) -> Ailment:
    return Ailment(cause=cause, text=text, since=since)


def inputs(config: Config, *gpus: Gpu, **others) -> Inputs:
    known = {
        "ailments": {},
        "held": answer(),
        "given": {},
        "names": frozenset(),
        "pins": {},
        "now": 100.0,
    }
    return Inputs(**(known | {"config": config, "inventory": inventory(*gpus)} | others))
