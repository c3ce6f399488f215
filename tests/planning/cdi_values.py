"""A node with two GPUs and their driver, as short values, and what containers make of the specs for it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import msgspec

from nvdp.model.cdi import CdiClass, CdiDevice, CdiWish
from nvdp.model.cdi_found import Found
from nvdp.model.cdi_spec import SpecDevice, SpecEdits, SpecNode, encode_spec
from nvdp.model.driver_files import DriverFile, DriverFiles, DrmNodes, Link, NodeFacts
from nvdp.planning.cdi import build_specs
from tests.cdi.validator import check_spec, parse_document, resolve

GPU_FILE = "k8s.device-plugin.nvidia.com-gpu.json"
KIND = "k8s.device-plugin.nvidia.com/gpu"
ZERO, ONE, MIG = "GPU-0000", "GPU-1111", "MIG-2222"
CAPS = ("/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13")
CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


def files(*paths):
    return tuple(DriverFile(path, path) for path in paths)


def node(major, minor, *, mode=0o666, gid=0, **facts):
    return NodeFacts(**({"type": "c", "major": major, "minor": minor, "mode": mode, "uid": 0, "gid": gid} | facts))


DRIVER = DriverFiles(
    version="580.65.06",
    library_dirs=("/usr/lib64", "/usr/lib64/vdpau"),
    cuda_dirs=("/usr/lib64",),
    libraries=(
        DriverFile("/usr/lib64/libcuda.so.580.65.06", "/usr/lib64/libcuda.so.580.65.06"),
        DriverFile("/lib64/libnvidia-ml.so.580.65.06", "/usr/lib64/libnvidia-ml.so.580.65.06"),
    ),
    binaries=files("/usr/bin/nvidia-smi"),
    firmware=files("/lib/firmware/nvidia/580.65.06/gsp_ga10x.bin"),
    sockets=files("/run/nvidia-persistenced/socket"),
    configs=files("/usr/share/glvnd/egl_vendor.d/10_nvidia.json"),
    links=(Link("libcuda.so.1", "/usr/lib64/libcuda.so"),),
)
FOUND = Found(
    driver=DRIVER,
    nodes={
        "/dev/nvidia0": node(195, 0),
        "/dev/nvidia1": node(195, 1),
        CAPS[0]: node(234, 12, mode=None, uid=None, gid=None),
        CAPS[1]: node(234, 13, mode=0o444),
        "/dev/nvidiactl": node(195, 255),
        "/dev/dri/card1": node(226, 1, mode=0o660, gid=44),
        "/dev/dri/renderD129": node(226, 129, mode=0o660, gid=105),
    },
    control_nodes=CONTROL,
    displays={
        "0000:41:00.0": DrmNodes(
            nodes=("/dev/dri/card1", "/dev/dri/renderD129"),
            links=(Link("../card1", "/dev/dri/by-path/pci-0000:41:00.0-card"),),
        )
    },
)
WISH = CdiWish(
    devices=(
        CdiDevice(names=(ZERO,), nodes=("/dev/nvidia0",), pci="0000:41:00.0"),
        CdiDevice(names=(ONE,), nodes=("/dev/nvidia1",), pci="0000:61:00.0"),
    ),
    driver_version="580.65.06",
)


def build(wish=WISH, found=FOUND):
    """The documents by file name, each as a runtime that takes them reads it."""
    return {
        name: check_spec(parse_document(encode_spec(spec)), where=name)
        for name, spec in build_specs(wish, found).items()
    }


def devices_of(document):
    return {device["name"]: device["containerEdits"] for device in document["devices"]}


def inject(names, wish=WISH, found=FOUND):
    """What a container with these devices of class gpu gets."""
    with tempfile.TemporaryDirectory(prefix="nv", dir="/tmp") as directory:
        for name, document in build(wish, found).items():
            (Path(directory) / name).write_text(json.dumps(document))
        return resolve([f"{KIND}={name}" for name in names], Path(directory))


def replace(value, **changes):
    return msgspec.structs.replace(value, **changes)


def hooks_of(edits):
    """The hooks as command lines, the program's path left out."""
    return [" ".join(hook["args"]) for hook in edits.get("hooks", [])]


OLD = SpecDevice(name="GPU-old", container_edits=SpecEdits(device_nodes=(SpecNode(path="/dev/nvidia7", uid=3),)))


def with_prior(found=FOUND, *, cdi_class=CdiClass.GPU, extra=(OLD,), wish=WISH):
    """The node with the specs of ``wish`` on disk, and more devices in them."""
    specs = build_specs(wish, found)
    spec = specs[cdi_class.file_name]
    return replace(found, prior={cdi_class: replace(spec, devices=(*spec.devices, *extra))})
