"""What was found on the node for CDI specs: the driver's files, facts about device nodes, and what specs there are."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from nvdp.model.cdi import CdiClass
from nvdp.model.cdi_spec import CdiSpec
from nvdp.model.driver_files import DriverFiles, DrmNodes, NodeFacts


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The node as it is. All paths are as containers see them; none has a prefix of this process's own view.

    ``nodes`` has the facts of each device node by its path (``/dev/nvidia0``): None where it was looked for in the
    host's own ``/dev`` and is not there; a node that is not a key could not be looked for. ``control_nodes`` are those
    that exist; ``displays`` the display nodes by the PCI address of their GPU. ``features`` are the device nodes that
    exist for gdrcopy, gds and mofed; ``gds_files`` which of ``/run/udev`` and ``/etc/cufile.json`` exist.
    ``extra_nodes`` come with every device, where the driver's own lists say so (Tegra). ``hook_problem`` says why
    containers will not start with the specs, empty if they will, or that cannot be seen. ``prior`` are the specs on
    disk, for what must stay as it was written.
    """

    driver: DriverFiles
    nodes: Mapping[str, NodeFacts | None] = {}
    control_nodes: tuple[str, ...] = ()
    displays: Mapping[str, DrmNodes] = {}
    features: Mapping[CdiClass, tuple[str, ...]] = {}
    gds_files: tuple[str, ...] = ()
    extra_nodes: tuple[str, ...] = ()
    hook_problem: str = ""
    prior: Mapping[CdiClass, CdiSpec] = {}
