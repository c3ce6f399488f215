"""The node of the daemon's tests, for those who mean it harm."""

from __future__ import annotations

from tests.daemon.conftest import (  # noqa: F401 - pytest finds fixtures by their names here
    config_map,
    daemon,
    kubelet,
    library,
    machine,
    root,
    settings,
    start,
    unstarted_kubelet,
    version,
)
