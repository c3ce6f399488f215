"""A node for containers: the daemon between the kubelet's twin and a compiled driver library among plain files.

Its device nodes are /dev/null by other names, and its hook program notes how it is called.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nvdp.simulate.kubelet import Kubelet, Pod
from tests.containers.cri import Injection, merge
from tests.daemon.compiled import VERSION, CompiledMachine
from tests.daemon.layouts import Layouts, name_resource
from tests.daemon.node import GPU, ConfigMap, build_config
from tests.daemon.process import Daemon
from tests.host import layouts
from tests.host.layouts import build_tree

SMALL = name_resource("1g.10gb")
NULL = os.makedev(1, 3)
_LAYOUT_VERSION = "580.65.06"
_CUT = 3  # the card in MIG mode
# The kernel driver's list of capabilities takes the place of the machine's own, for the daemon alone.
_WITH_KERNEL = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /proc/driver && exec "$@"')
_CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_CHANNEL = "nvidia-caps-imex-channels/channel0"
_HOOK = """\
#!/bin/sh
echo "$@" >> {calls}
cat > /dev/null
"""


class Node:
    """Four A100, the last of them cut into two MIG devices. ``start`` it once, and ``stop`` it."""

    def __init__(self, root: Path, cdi: Path) -> None:
        self._root = root
        self._cdi = cdi
        self.driver = root / "d"
        self._machine = CompiledMachine(self.driver)
        build_tree(self.driver, _load_layout())
        self.hook = root / "nvidia-ctk"
        self._calls = root / "calls"
        self.hook.write_text(_HOOK.format(calls=self._calls))
        self.hook.chmod(0o755)
        self.kubelet = Kubelet(root / "k")
        self.config_map = ConfigMap(root / "config")
        self.parts = Layouts(self._machine).cut(_CUT, "1g.10gb", "1g.10gb")
        self.part_nodes: dict[str, list[str]] = {}
        self._daemon: Daemon | None = None
        self._make_nodes()

    @property
    def hook_calls(self) -> list[list[str]]:
        return [line.split() for line in self._calls.read_text().splitlines()] if self._calls.exists() else []

    def start(self, *, blocks: Mapping[str, Any] = MappingProxyType({}), **plugin: Any) -> Daemon:
        """The daemon with these keys of ``flags.plugin`` beside where things are, and other ``blocks`` of the file."""
        flags = {
            "migStrategy": "mixed",
            "nvidiaDriverRoot": str(self.driver),
            "plugin": {"containerDriverRoot": str(self.driver), "nvidiaCTKPath": str(self.hook), **plugin},
        }
        self.config_map.publish(build_config(flags=flags, **blocks))
        self.kubelet.start()
        return self.run()

    def run(self) -> Daemon:
        """The daemon with the configuration that there is."""
        self._daemon = Daemon(
            *("--config-file", self.config_map.file, "--kubelet-root", self.kubelet.directory.parent),
            *("--state-dir", self._root / "state", "--run-dir", self._root / "run", "--log-format", "json"),
            *("--cdi-dir", self._cdi, "--host-dev", self.driver / "dev"),
            launcher=(*_WITH_KERNEL, str(self._root / "kernel")),
        )
        self._daemon.wait_ready()
        return self._daemon

    def admit(self, name: str, **count: int) -> tuple[Pod, Injection]:
        """A pod with so many ``gpus`` and MIG ``parts``, and what its container is given."""
        asked = {resource: count[key] for key, resource in (("gpus", GPU), ("parts", SMALL)) if key in count}
        pod = self.kubelet.admit(f"team/{name}", {"main": asked})
        return pod, merge(*(pod.response(resource) for resource in asked))

    def upgrade(self, version: str) -> None:
        """The driver in another version, as its installer leaves it."""
        files = [path for path in self.driver.rglob(f"*{VERSION}*") if "libnvidia-ml" not in path.name]
        for path in sorted(files, key=lambda path: -len(path.parts)):
            path.rename(path.with_name(path.name.replace(VERSION, version)))
        for path in self.driver.rglob("*"):
            if path.is_symlink() and VERSION in path.readlink().name:
                target = path.readlink()
                path.unlink()
                path.symlink_to(target.with_name(target.name.replace(VERSION, version)))
        (self.driver / f"usr/lib64/libnvidia-ml.so.{VERSION}").unlink()
        self._machine.change(driver={"version": version})

    def stop_daemon(self) -> None:
        if self._daemon is not None:
            if self._daemon.running:
                assert self._daemon.stop().code == 0
            print("the log of nvdp:", *self._daemon.log, *self._daemon.log.texts, sep="\n")  # noqa: T201 - pytest shows it
        self._daemon = None

    def stop(self) -> None:
        self.stop_daemon()
        self.kubelet.stop()

    def _make_nodes(self) -> None:
        names = [_CHANNEL, *_CONTROL, *(f"nvidia{minor}" for minor in range(4))]
        minors = self._root / "kernel/nvidia-caps/mig-minors"
        minors.parent.mkdir(parents=True)
        lines = []
        for number, part in enumerate(self.parts):
            instance, first = f"gpu{_CUT}/gi{number + 1}", 10 * (number + 1)
            lines += [f"{instance}/access {first}\n", f"{instance}/ci0/access {first + 1}\n"]
            self.part_nodes[part] = [f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in (first, first + 1)]
            names += [f"nvidia-caps/nvidia-cap{minor}" for minor in (first, first + 1)]
        minors.write_text("".join(lines))
        for name in names:
            path = self.driver / "dev" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            os.mknod(path, stat.S_IFCHR | 0o666, NULL)


def _load_layout() -> str:
    """A driver's files without its management library, which is compiled, in that one's version."""
    text = (Path(layouts.__file__).with_name("rhel.tree")).read_text()
    lines = [line for line in text.splitlines() if "libnvidia-ml" not in line]
    return "\n".join(lines).replace(_LAYOUT_VERSION, VERSION)
