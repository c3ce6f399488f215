"""The edits of CDI specs, from paths and facts: device nodes, bind mounts and groups, in one order, each once."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import Final

from nvdp.model.cdi import CdiWish
from nvdp.model.cdi_found import Found
from nvdp.model.cdi_spec import SpecEdits, SpecHook, SpecMount, SpecNode
from nvdp.model.driver_files import DriverFile, NodeFacts

# Containers that must start under runtimes before CDI 0.7.0 go without the groups of nodes that are not for everybody.
NO_ADDITIONAL_GIDS: Final = "no-additional-gids-for-device-nodes"
FILE_OPTIONS: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET_OPTIONS: Final = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
_FOR_EVERYBODY: Final = 0o006


def build_edits(
    wish: CdiWish,
    found: Found,
    *,
    env: tuple[str, ...] = (),
    nodes: Iterable[str] = (),
    mounts: Iterable[SpecMount] = (),
    hooks: tuple[SpecHook, ...] = (),
) -> SpecEdits:
    """The edits with these parts. Nodes that are known not to exist are passed over; of mounts at one place the first
    counts. Short paths come first, so that what is mounted inside another mount comes after it.
    """
    there = sorted({path for path in nodes if not is_missing(found, path)}, key=_by_depth)
    by_place = {mount.container_path: mount for mount in reversed([*mounts])}
    return SpecEdits(
        env=env,
        device_nodes=tuple(_build_node(wish, path, found.nodes.get(path)) for path in there),
        mounts=tuple(by_place[place] for place in sorted(by_place, key=_by_depth)),
        hooks=hooks,
        additional_gids=_list_gids(wish, (found.nodes.get(path) for path in there)),
    )


def build_mount(root: str, file: DriverFile, options: tuple[str, ...] = FILE_OPTIONS) -> SpecMount:
    """The file's place in the container, filled from where it lies under ``root`` on the host."""
    return SpecMount(host_path=join_host_path(root, file.source), container_path=file.path, options=options)


def subtract(edits: SpecEdits, common: SpecEdits) -> SpecEdits:
    """``edits`` without what every container has anyway."""
    return SpecEdits(
        env=tuple(one for one in edits.env if one not in common.env),
        device_nodes=tuple(one for one in edits.device_nodes if one not in common.device_nodes),
        mounts=tuple(one for one in edits.mounts if one not in common.mounts),
        hooks=tuple(one for one in edits.hooks if one not in common.hooks),
        additional_gids=tuple(one for one in edits.additional_gids if one not in common.additional_gids),
    )


def is_missing(found: Found, path: str) -> bool:
    """Whether the host is known to lack the device node; False where nobody could look."""
    return path in found.nodes and found.nodes[path] is None


def join_host_path(root: str, path: str) -> str:
    """``path`` under a root of the host, absolute and plain."""
    return "/" + posixpath.normpath(f"{root}/{path}").lstrip("/")


def _build_node(wish: CdiWish, path: str, facts: NodeFacts | None) -> SpecNode:
    """The node with all that is known of it: a runtime then need not look, and it need not exist on the host yet."""
    host_path = join_host_path(wish.dev_root, path)
    bare = SpecNode(path=path, host_path=host_path if host_path != path else None, permissions="rwm")
    if facts is None:
        return bare
    return SpecNode(
        path=path,
        host_path=bare.host_path,
        type="b" if facts.type == "b" else "c",
        major=facts.major,
        minor=facts.minor,
        file_mode=facts.mode,
        permissions="rwm",
        gid=facts.gid,
    )


def _list_gids(wish: CdiWish, facts: Iterable[NodeFacts | None]) -> tuple[int, ...]:
    """The groups that a process of the container must be in to open the nodes, whoever it runs as."""
    if NO_ADDITIONAL_GIDS in wish.feature_flags:
        return ()
    return tuple(
        sorted(
            {
                one.gid
                for one in facts
                if one is not None and one.mode is not None and one.gid and one.mode & _FOR_EVERYBODY != _FOR_EVERYBODY
            }
        )
    )


def _by_depth(path: str) -> tuple[int, str]:
    return path.count("/"), path
