"""Allocate and GetPreferredAllocation, watched by the interpreter itself: they touch no file, process or network."""

from __future__ import annotations

import os

import pytest

from tests.daemon.node import GPU, build_config, connect, gpu_uuid, healthy, replicas
from tests.daemon.process import LIMIT_S

# The interpreter tells each import, open, connect and exec of a thread that answers the kubelet; so does it a canary.
_HOOK = """
import os, sys, threading

told = os.open("{told}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

def hook(event, arguments):
    thread = threading.current_thread().name
    if thread.startswith(("plugin-call", "resource ")) and not event.startswith(("object.", "sys._getframe")):
        os.write(told, (thread.split()[0].split("_")[0] + " " + event + "\\n").encode())

sys.addaudithook(hook)
"""


@pytest.mark.invariant(2)
def test_they_open_import_connect_and_start_nothing(kubelet, start, root):
    told = root / "told"
    (root / "sitecustomize.py").write_text(_HOOK.format(told=told))
    paths = filter(None, (str(root), os.environ.get("PYTHONPATH")))
    start(build_config(share=4), environment={"PYTHONPATH": os.pathsep.join(paths)}, wait=True)
    pod = kubelet.admit("first", {"main": {GPU: 2}})
    told_before = told.read_text().splitlines()

    with connect(kubelet) as client:
        client.allocate([f"{gpu_uuid(1)}::0", f"{gpu_uuid(2)}::1"])
        client.prefer(available=sorted(healthy(kubelet) - pod.ids(GPU)), size=3)
        for refused in ([], ["unknown"], sorted(replicas(0, 99))):
            assert client.allocate_later(refused).exception(LIMIT_S)

    assert "resource socket.connect" in told_before  # it does hear what an actor does to register
    assert [event for event in told.read_text().splitlines() if event.startswith("plugin-call")] == []
