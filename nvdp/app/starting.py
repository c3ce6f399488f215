"""What is done once, at a start of the daemon: what is worth a warning, and what is followed from then on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from nvdp.config.doubts import find_doubts
from nvdp.config.overrides import Overrides
from nvdp.config.process import ProcessOptions
from nvdp.host.change import PathWatch
from nvdp.host.files import find_static_mount
from nvdp.kubelet.sockets import SocketIdentity, socket_directory_fingerprint
from nvdp.log import Log
from nvdp.model.reasons import Reason
from nvdp.model.status import Trouble
from nvdp.services.events import Post, SocketDirectoryChanged


class Selection(Protocol):
    """What chooses one of several configurations (services/selection.py)."""

    def build_watch(self) -> PathWatch[Any] | None: ...


def warn_at_start(options: ProcessOptions, log: Log) -> tuple[Trouble, ...]:
    """Log what is worth a warning once, and give back what stays a trouble as long as the process lives."""
    for path, text in find_doubts(options):
        log(Reason.FEATURE_NOT_BUILT, text, path=path)
    if options.config_file is None or not find_static_mount(options.config_file):
        return ()
    path = str(options.config_file)
    text = f"{path} is a subPath mount: no edit of the ConfigMap reaches it; mount the directory"
    log(Reason.CONFIG_MOUNT_STATIC, text, config=path)
    return (Trouble(reason=Reason.CONFIG_MOUNT_STATIC.word, text=text),)


def build_socket_watch(kubelet_socket: Path, post: Post) -> PathWatch[Mapping[str, SocketIdentity]]:
    """The watch that posts every change in the kubelet's directory of sockets."""
    directory = kubelet_socket.parent

    def tell(found: Mapping[str, SocketIdentity]) -> None:
        post(SocketDirectoryChanged(kubelet=found.get(kubelet_socket.name), at=time.monotonic()))

    fingerprint = partial(socket_directory_fingerprint, directory)
    return PathWatch(fingerprint=fingerprint, directories=lambda: (directory,), on_change=tell)


def follow_configuration(
    options: ProcessOptions, overrides: Overrides, post: Post, selection: Selection | None
) -> PathWatch[Any] | None:
    """The watch of the files that may be the configuration; with a ``selection`` those that it chooses from.

    Where there is nothing to follow and nothing to choose, flags and environment are posted at once.
    """
    if selection is not None:
        return selection.build_watch()
    from nvdp.services.configuration import ConfigurationFile  # noqa: PLC0415 - brings YAML, see ``app.daemon``

    configuration = ConfigurationFile(options.config_file, overrides, post)
    watch = configuration.build_watch()
    if watch is None:
        configuration.read()
    return watch
