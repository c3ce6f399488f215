"""A containerd that a kubelet can use: its network counts as set up, and it has a /var of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.containers.containerd import Containerd

_CGROUPS = Path("/sys/fs/cgroup")
# Pods have the network of the containerd; the file is for the kubelet, which wants one that is set up.
_NETWORK = '{"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "none"}]}\n'
_CRI = """\
[plugins."io.containerd.grpc.v1.cri".cni]
  conf_dir = "{directory}"
"""
# What a kubelet sets for the whole machine: it writes to files of its own instead.
_SYSCTLS = {
    "kernel/keys/root_maxbytes": 25000000,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
}
_MOUNT = """\
mountpoint -q /var || {{
    mount --bind {root}/var /var
    for name in {names}; do mount --bind {root}/sysctl/$name /proc/sys/$name; done
}}
exec "$@"
"""


class NodeRuntime(Containerd):
    """``root`` needs a short path. ``kubelet_root`` is what is /var/lib/kubelet to who is run by ``build_command``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.kubelet_root = root / "var/lib/kubelet"
        for directory in ("cni", "cdi", "var/lib/kubelet", "var/log", "var/tmp"):
            (root / directory).mkdir(parents=True)
        (root / "var/run").symlink_to("/run")
        (root / "cni/10-none.conflist").write_text(_NETWORK)
        for name, value in _SYSCTLS.items():
            path = root / "sysctl" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
        super().__init__(root, cdi=[root / "cdi"], cri=_CRI.format(directory=root / "cni"))

    def build_command(self, command: Sequence[str | Path]) -> list[str | Path]:
        """The command line that runs ``command`` where the containers are, with the network of this machine."""
        (first,) = psutil.Process(self._process.pid).children()
        inside: list[str | Path] = ["nsenter", "--target", str(first.pid), "--mount", "--pid"]
        mount = _MOUNT.format(root=self._root, names=" ".join(_SYSCTLS))
        return [*inside, "sh", "-ec", mount, "sh", *command]

    def stop(self) -> None:
        """The end of it and of all that it started, at once; nothing of it stays in the control groups."""
        tasks = self._root / "state/io.containerd.runtime.v2.task/k8s.io"
        names = [path.name for path in tasks.iterdir()] if tasks.exists() else []
        super().stop()
        for parent in (*_CGROUPS.glob("*/k8s.io"), *_CGROUPS.glob("k8s.io")):
            for directory in (*(parent / name for name in names), parent):
                with contextlib.suppress(OSError):  # others may have theirs beside it
                    directory.rmdir()
