"""The feature labels of a node, from what the plugin knows of it: NVIDIA's, by the same names, and few of our own.

docs/labels.md is their catalogue. Nothing here fails: what is not known has no label, and takes no other with it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nvdp.config.schema import Config
from nvdp.model.inventory import Driver, Gpu
from nvdp.model.platforms import Platform
from nvdp.model.traits import Traits
from nvdp.planning.allotment import allot
from nvdp.planning.label_changes import TIMESTAMP
from nvdp.planning.label_text import PREFIX, build_bool, build_value
from nvdp.planning.labels_of_gpus import build_gpu_labels, find_labelled
from nvdp.planning.node_facts import LabelFacts

CONFIG_VALID: Final = f"{PREFIX}nvdp.config-valid"
_UNKNOWN: Final = "unknown"
_MODES: Final = {0x030200: "compute", 0x030000: "graphics"}
_VERSION_PARTS: Final = (2, 3)


def build_labels(facts: LabelFacts) -> dict[str, str]:
    """Every label of the node, in the order of their names. The order of GPUs and of entries does not matter.

    A node without GPUs, or with none but excluded ones, has only the time and whether it is a vGPU guest.
    """
    config = facts.config or Config()
    allotment = allot(config, facts.inventory, facts.pins)
    gpus = find_labelled(allotment)
    labels = _build_vgpu(facts.traits)
    if gpus:
        labels |= {f"{PREFIX}gpu.machine": build_value(facts.traits.machine) or _UNKNOWN}
        labels |= _build_driver(facts.inventory.driver, facts.inventory.platform)
        labels |= build_gpu_labels(config, allotment, is_configured=facts.config is not None)
        labels |= {f"{PREFIX}gpu.mode": _find_mode(gpus, facts.traits)}
        labels |= _build_clique(gpus)
        labels |= {CONFIG_VALID: build_bool(facts.config is not None)}
    if facts.timestamp is not None and not config.flags.gfd.no_timestamp:
        labels[TIMESTAMP] = str(facts.timestamp)
    return dict(sorted(labels.items()))


def _build_driver(driver: Driver, platform: Platform) -> dict[str, str]:
    """Versions by their parts, twice: under the names that NVIDIA has deprecated too."""
    version = driver.version
    if not version and platform is Platform.TEGRA:  # nobody there tells it, and NVIDIA's plugin says so
        version = ".".join([_UNKNOWN] * 3)
    labels = {}
    parts = [build_value(part) for part in version.split(".")]
    if len(parts) in _VERSION_PARTS and all(parts):
        major, minor, *more = parts
        revision = more[0] if more else ""
        labels = {
            "cuda.driver.major": major,
            "cuda.driver.minor": minor,
            "cuda.driver.rev": revision,
            "cuda.driver-version.major": major,
            "cuda.driver-version.minor": minor,
            "cuda.driver-version.revision": revision,
        }
    if full := build_value(version):
        labels["cuda.driver-version.full"] = full
    major, _, minor = driver.cuda_version.partition(".")
    if major.isdecimal() and minor.isdecimal():
        labels |= {
            "cuda.runtime.major": major,
            "cuda.runtime.minor": minor,
            "cuda.runtime-version.major": major,
            "cuda.runtime-version.minor": minor,
            "cuda.runtime-version.full": f"{major}.{minor}",
        }
    return {PREFIX + name: value for name, value in labels.items()}


def _find_mode(gpus: Sequence[Gpu], traits: Traits) -> str:
    """What the GPUs are to PCI, where they are all alike."""
    modes = {_MODES.get(traits.pci_classes.get(gpu.pci or "", 0), _UNKNOWN) for gpu in gpus}
    return modes.pop() if len(modes) == 1 else _UNKNOWN


def _build_clique(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Only where all GPUs on a fabric are in one."""
    cliques = {gpu.clique for gpu in gpus if gpu.clique}
    value = build_value(cliques.pop()) if len(cliques) == 1 else ""
    return {f"{PREFIX}gpu.clique": value} if value else {}


def _build_vgpu(traits: Traits) -> dict[str, str]:
    if traits.vgpu is None:
        return {}
    labels = {f"{PREFIX}vgpu.present": build_bool(traits.vgpu.present)}
    told = {
        "host-driver-version": build_value(traits.vgpu.host_driver_version),
        "host-driver-branch": build_value(traits.vgpu.host_driver_branch),
    }
    return labels | {f"{PREFIX}vgpu.{name}": value for name, value in told.items() if value}
