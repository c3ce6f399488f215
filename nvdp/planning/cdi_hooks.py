"""The programs that a runtime starts to finish a container whose devices came by CDI: NVIDIA's hooks, as it calls them.

They are found on the host under the path of the configuration; which of them are wanted there is too.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import Final

from nvdp.model.cdi import NO_HOOKS, CdiWish
from nvdp.model.cdi_spec import SpecHook
from nvdp.model.driver_files import DriverFiles, Link
from nvdp.model.platforms import Platform

# One program has its hooks as commands of a command, the others have them at the top.
_TOOLKIT: Final = "nvidia-ctk"
# As NVIDIA's specs have it: a hook that fails says why, and one that works says nothing.
_QUIET: Final = ("NVIDIA_CTK_DEBUG=false",)


def build_link_hooks(wish: CdiWish, links: Iterable[Link]) -> tuple[SpecHook, ...]:
    """The hook that makes these links in the container; none without links."""
    ordered = sorted(set(links), key=lambda one: (one.link, one.target))
    args = [arg for one in ordered for arg in ("--link", f"{one.target}::{one.link}")]
    return _build_hook(wish, "create-symlinks", *args) if args else ()


def build_common_hooks(wish: CdiWish, driver: DriverFiles) -> tuple[SpecHook, ...]:
    """The hooks of every container, in the order in which they must run: links before the loader's cache has them.

    Those about the kernel driver stand only where devices are used through its nodes: not on WSL and Tegra.
    """
    version = wish.driver_version or driver.version
    folders = [arg for directory in driver.library_dirs for arg in ("--folder", directory)]
    by_driver = wish.platform is Platform.NVML
    return (
        *build_link_hooks(wish, driver.links),
        *(_build_hook(wish, "enable-cuda-compat", f"--host-driver-version={version}") if by_driver and version else ()),
        *(_build_hook(wish, "update-ldcache", *folders) if folders else ()),
        *(_build_hook(wish, "disable-device-node-modification") if by_driver else ()),
        *(_build_hook(wish, "update-application-profile") if by_driver else ()),
    )


def _build_hook(wish: CdiWish, name: str, *args: str) -> tuple[SpecHook, ...]:
    """The hook, or nothing where the configuration has it off."""
    if name in wish.disabled_hooks or NO_HOOKS in wish.disabled_hooks:
        return ()
    program = posixpath.basename(wish.hook_path)
    command = (program, "hook") if program == _TOOLKIT else (program,)
    return (SpecHook(hook_name="createContainer", path=wish.hook_path, args=(*command, name, *args), env=_QUIET),)
