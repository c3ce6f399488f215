"""A device plugin on a real socket, without an actor: ``served(list)`` starts one."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from nvdp.kubelet.feed import Feed
from nvdp.kubelet.plugin import Plugin
from nvdp.kubelet.servicer import DevicePluginServicer
from tests.kubelet.plugin_client import Notes, PluginClient


@pytest.fixture
def short_dir():
    """A directory whose path leaves room for a socket's name."""
    path = Path(tempfile.mkdtemp(prefix="nv", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


class Served:
    """One plugin with its server and a client; ``notes`` has what it reported: log, rpc, answered, refused, streams."""

    def __init__(self, directory: Path, first, *, log_allocations: bool = True, start_check=None) -> None:
        self.notes = Notes()
        self.feed = Feed(first)
        servicer = DevicePluginServicer(
            self.feed,
            log=lambda reason, msg, **fields: self.notes.add("log", reason, msg, fields),
            log_allocations=log_allocations,
            observe=lambda *observed: self.notes.add("rpc", *observed),
            answered=lambda: self.notes.add("answered"),
            refused=lambda reason: self.notes.add("refused", reason),
        )
        self.plugin = Plugin(
            self.feed,
            servicer,
            directory=directory,
            listener=self,
            observe=lambda *observed: self.notes.add("rpc", *observed),
            start_check=start_check,
        )
        self.server = self.plugin.serve(probe_s=5)
        self.client = PluginClient(self.server.path)

    def stream_opened(self, stream) -> None:
        self.notes.add("opened", stream)

    def list_taken(self, stream) -> None:
        self.notes.add("taken", stream)

    def stream_ended(self, stream) -> None:
        self.notes.add("ended", stream)

    def close(self) -> None:
        self.client.channel.close()
        self.feed.close()
        self.server.stop(grace_s=0)


@pytest.fixture
def served(short_dir):
    """Starts plugins, in ``short_dir`` if no other ``directory`` is given; all are stopped at the end."""
    plugins = []

    def serve(first, **options):
        plugins.append(Served(options.pop("directory", short_dir), first, **options))
        return plugins[-1]

    yield serve
    for plugin in plugins:
        plugin.close()
