"""Signals at the worst moment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.daemon.node import build_config

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
    ended = start({}, environment=_signal_itself(root, module, name)).wait()

    assert (ended.code, ended.seconds < 5) == (0, True)
    assert not [path for path in kubelet.directory.iterdir() if path.name.startswith("nvdp-")]


@pytest.mark.parametrize("module", ["nvdp.app.daemon", "nvdp.kubelet.server", "nvdp.supervisor"])
def test_asked_to_look_anew_while_it_is_still_loading_it_goes_on(kubelet, start, root: Path, module: str):
    start(build_config(share=4), environment=_signal_itself(root, module, "SIGHUP"), wait=True)


def _signal_itself(root: Path, module: str, name: str) -> dict[str, str]:
    """The environment in which a daemon sends itself the signal when it comes to import the module."""
    (root / "sitecustomize.py").write_text(_HOOK.format(module=module, name=name))
    paths = filter(None, (str(root), os.environ.get("PYTHONPATH")))
    return {"PYTHONPATH": os.pathsep.join(paths)}
