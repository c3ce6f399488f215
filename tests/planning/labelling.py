"""Nodes as the vectors of GPU Feature Discovery have them, and what labels they get."""

from __future__ import annotations

from nvdp.model.inventory import Driver, Gpu, Inventory, MigInstance, MigMode
from nvdp.model.mig import MigAttributes
from nvdp.model.traits import Traits
from nvdp.planning.allotment import resolve_pins
from nvdp.planning.labels import build_labels
from nvdp.planning.node_facts import LabelFacts
from tests.planning.values import gpu, mig_uuid, parse

P = "nvidia.com/"
GPU_X2 = """\
sharing:
  timeSlicing:
    resources:
    - {name: nvidia.com/gpu, replicas: 2}
"""
ARCH = {"gpu.compute.major": "8", "gpu.compute.minor": "0", "gpu.family": "ampere"}
ENGINES = ("copy", "decoder", "encoder", "jpeg", "ofa")
_OURS = ("gpu.memory.total", "nvdp.config-valid")
_VECTOR = Driver(version="400.300", cuda_version="8.0")


def full(number: int = 0, **facts) -> Gpu:
    """The vectors' card that is not in MIG mode."""
    known = {"product": "MOCKMODEL", "compute_capability": "8.0", "memory_bytes": 300 << 20}
    return gpu(number, **(known | {"mig": MigMode.UNSUPPORTED} | facts))


def in_mig_mode(number: int, *instances: MigInstance, **facts) -> Gpu:
    """The vectors' card in MIG mode, which tells no generation."""
    places = tuple(_place(number, index, one) for index, one in enumerate(instances))
    known = {"compute_capability": "0.0", "mig": MigMode.ENABLED, "instances": places}
    return full(number, **(known | facts))


def mig(slices: int, compute_slices: int, memory: int, profile: str = "", **counts: int) -> MigInstance:
    """The vectors' MIG(g, c, memory); ``counts`` are of multiprocessors and engines, otherwise 0."""
    none = dict.fromkeys(("multiprocessors", "copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines"), 0)
    attributes = MigAttributes(memory_mib=memory, slices=slices, compute_slices=compute_slices, **(none | counts))
    name = profile or f"{slices}g.{memory}gb"
    return MigInstance(uuid="", index=0, profile=name, memory_bytes=memory << 20, attributes=attributes)


def _place(number: int, index: int, one: MigInstance) -> MigInstance:
    facts = {name: getattr(one, name) for name in ("profile", "memory_bytes", "attributes", "fault")}
    return MigInstance(uuid=mig_uuid(number, index), index=index, gpu_instance=index + 1, compute_instance=0, **facts)


def labelled(
    text: str | None, *gpus: Gpu, driver: Driver = _VECTOR, traits: Traits | None = None, timestamp: int | None = None
) -> dict[str, str]:
    """All labels, without NVIDIA's prefix, where the file has this text; None for none that is in force."""
    config = parse(text) if text is not None else None
    facts = LabelFacts(
        config=config,
        inventory=Inventory(driver=driver, gpus=gpus),
        pins=resolve_pins(config, gpus, {}, {}) if config is not None else {},
        traits=traits or Traits(),
        timestamp=timestamp,
    )
    labels = build_labels(facts)
    assert all(name.startswith(P) for name in labels)
    assert list(labels) == sorted(labels)
    return {name.removeprefix(P): value for name, value in labels.items()}


def of_nvidia(labels: dict[str, str]) -> dict[str, str]:
    """Those that NVIDIA's has too."""
    return {
        name: value
        for name, value in labels.items()
        if name not in _OURS and not (name.startswith("gpu.product.") and name.endswith(".count"))
    }


def of_resources(labels: dict[str, str]) -> dict[str, str]:
    """What the vectors call resource labels."""
    others = ("cuda.", "gpu.machine", "gpu.mode", "mig.capable", "mps.capable", "mig.strategy", "vgpu.", "gpu.clique")
    return {name: value for name, value in of_nvidia(labels).items() if not name.startswith(others)}


def strategy(word: str, more: str = "") -> str:
    return f"flags: {{migStrategy: {word}}}\n{more}"


def resource(product: str, *, count: int, replicas: int, sharing: str, memory: int, prefix: str = "gpu") -> dict:
    facts = {
        "product": product,
        "count": count,
        "replicas": replicas,
        "sharing-strategy": sharing,
        "memory": memory,
    }
    return {f"{prefix}.{name}": str(value) for name, value in facts.items()}


def attributes(slices: int, compute_slices: int, *counts: int, prefix: str = "gpu") -> dict[str, str]:
    """``counts``: multiprocessors, then the engines in the order of ``ENGINES``; 0 where not given."""
    multiprocessors, *engines = (*counts, *[0] * (6 - len(counts)))
    found = {"multiprocessors": multiprocessors, "slices.gi": slices, "slices.ci": compute_slices}
    found |= {f"engines.{name}": number for name, number in zip(ENGINES, engines, strict=True)}
    return {f"{prefix}.{name}": str(value) for name, value in found.items()}
