"""Finds on the node what goes into CDI specs: the driver's files, and the device nodes that there are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from nvdp.errors import HostError
from nvdp.host.devnodes import choose_dev_view, find_control_nodes
from nvdp.host.driver_root import DriverRoot
from nvdp.host.node_facts import find_drm_nodes, find_feature_files, find_feature_nodes, load_node_facts
from nvdp.host.platform_files import load_platform_files
from nvdp.model.cdi import NO_HOOKS, CdiClass, CdiWish
from nvdp.model.cdi_found import Found
from nvdp.model.cdi_spec import CdiSpec
from nvdp.model.driver_files import DrmNodes, NodeFacts
from nvdp.model.platforms import Platform

_CHANNEL: Final = "/dev/nvidia-caps-imex-channels/channel{}"


class FoundFiles:
    """Looks on this node. ``host_dev`` is where the host's ``/dev`` is mounted, if it is.

    ``is_real``: the GPUs are this machine's, so that what its ``/dev`` lacks is missing, and its slots are theirs.
    ``in_pod``: this process sees nothing of the host but what is mounted.
    """

    def __init__(
        self,
        *,
        host_dev: Path = Path("/host-dev"),
        is_real: bool = True,
        in_pod: bool = False,
        sys: Path = Path("/sys"),
        root: Path = Path("/"),
    ) -> None:
        self._host_dev = host_dev
        self._is_real = is_real
        self._in_pod = in_pod
        self._sys = sys
        self._root = root

    def load(self, wish: CdiWish, prior: Mapping[CdiClass, CdiSpec]) -> Found:
        """What there is now for this wish. Raises HostError, in one line, if there is no driver to be handed out.

        Blocks as long as the disk does.
        """
        root = self._find_root(wish)
        dev = self._find_dev(wish, root)
        driver, extra_nodes = load_platform_files(
            wish.platform, root, version_hint=wish.driver_version, driver_root=wish.driver_root, dev=dev, sys=self._sys
        )
        displays = self._find_displays(wish, dev)
        features = {feature: find_feature_nodes(feature, dev=dev) for feature in wish.features}
        control_nodes = find_control_nodes(dev) if wish.platform is Platform.NVML else ()
        paths = {
            *control_nodes,
            *extra_nodes,
            *(path for device in wish.devices for path in device.nodes),
            *(path for display in displays.values() for path in display.nodes),
            *(path for nodes in features.values() for path in nodes),
            *(_CHANNEL.format(channel) for channel in wish.imex_channels),
        }
        return Found(
            driver=driver,
            nodes=self._load_facts(paths, dev),
            control_nodes=control_nodes,
            displays=displays,
            features=features,
            gds_files=find_feature_files(CdiClass.GDS, root=root) if CdiClass.GDS in wish.features else (),
            extra_nodes=extra_nodes,
            hook_problem=self._find_hook_problem(wish, root),
            prior=prior,
        )

    def _find_root(self, wish: CdiWish) -> Path:
        """Where this process sees the driver's root."""
        mounted = Path(wish.container_driver_root)
        if os.path.isdir(mounted):  # noqa: PTH112 - Path.is_dir raises on a mount whose server is gone
            return mounted
        if self._in_pod:
            raise HostError(
                f"{mounted}: no driver root is mounted there: mount hostPath {wish.driver_root} there (readOnly,"
                " HostToContainer), or set flags.plugin.containerDriverRoot to where it is mounted"
            )
        return self._root

    def _find_dev(self, wish: CdiWish, root: Path) -> Path:
        """Where this process sees the device nodes that containers are handed."""
        below = root / "dev"
        if wish.dev_root.rstrip("/") and wish.dev_root == wish.driver_root and os.path.isdir(below):  # noqa: PTH112 - as above
            return below
        return choose_dev_view(self._host_dev, self._root / "dev")

    def _load_facts(self, paths: Iterable[str], dev: Path) -> dict[str, NodeFacts | None]:
        facts = load_node_facts(paths, dev=dev)
        is_judged = dev == self._host_dev and self._is_real
        return {path: facts.get(path) for path in paths if path in facts or is_judged}

    def _find_displays(self, wish: CdiWish, dev: Path) -> dict[str, DrmNodes]:
        slots = {device.pci for device in wish.devices if device.pci is not None} if self._is_real else ()
        return {pci: nodes for pci in slots if (nodes := find_drm_nodes(pci, dev=dev, sys=self._sys)).nodes}

    def _find_hook_problem(self, wish: CdiWish, root: Path) -> str:
        """Why containers will not start with these specs, where the host's own programs can be seen."""
        if wish.driver_root != "/" or root == self._root or NO_HOOKS in wish.disabled_hooks:
            return ""
        found = DriverRoot(root).find(wish.hook_path)
        if found is not None and found.is_program:
            return ""
        return (
            f"{wish.hook_path}: no such program on this node, and containers with CDI devices start it: install"
            " nvidia-container-toolkit, set flags.plugin.nvidiaCTKPath to where it is, or --cdi-disable-hooks=all"
        )
