"""Signals at the worst moment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_HOOK = """
import os, signal, sys

def hook(event, arguments):
    if event == "import" and arguments[0] == "{module}":
        os.kill(os.getpid(), signal.{name})

sys.addaudithook(hook)
"""


@pytest.mark.requirement(22)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize(
    "module", ["nvdp.app.daemon", "nvdp.kubelet.server", "nvdp.supervisor", "nvdp.services.resource"]
)
def test_asked_to_stop_while_it_is_still_loading_it_stops_well(kubelet, start, root: Path, module: str, name: str):
    (root / "sitecustomize.py").write_text(_HOOK.format(module=module, name=name))
    paths = filter(None, (str(root), os.environ.get("PYTHONPATH")))
    daemon = start({}, environment={"PYTHONPATH": os.pathsep.join(paths)})
    ended = daemon.wait()

    assert (ended.code, ended.seconds < 5) == (0, True)
    assert not [path for path in kubelet.directory.iterdir() if path.name.startswith("nvdp-")]
