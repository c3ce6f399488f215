"""``allocation.preStartCheck: idle`` on a whole node: a real process, the kubelet's twin, processes on the GPUs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from nvdp.simulate.kubelet import AdmissionError
from tests.daemon.node import GPU, build_config, on_node
from tests.daemon.process import LIMIT_S, wait_until

BUSY = {"pid": 2**31 - 2, "memoryBytes": 3 << 20}  # no kernel has as many processes
LONG, SHORT = ({"preStartTimeout": text} for text in ("25s", "2s"))


def checked(**allocation):
    return build_config(allocation={"preStartCheck": "idle", **allocation})


@pytest.mark.invariant(2)
@on_node(machine={"count": 2})
def test_a_container_waits_for_its_gpu_and_is_refused_with_the_process_that_stays(kubelet, start, machine, config_map):
    daemon = start(checked(**LONG), wait=True)
    [registration] = kubelet.registrations
    assert registration.request_options.pre_start_required
    pod = kubelet.admit("pod", {"main": {GPU: 1}})
    [held] = pod.ids(GPU)
    slot = machine.uuids.index(held)
    machine.occupy(slot, BUSY)
    with ThreadPoolExecutor() as pool:
        # The container starts again and waits; meanwhile others are admitted.
        waiting = pool.submit(kubelet.restart_container, pod, "main")
        wait_until(lambda: len(daemon.children) == 2, what="a child that looks at the GPU")
        kubelet.admit("other", {"main": {GPU: 1}})
        assert not waiting.done()
        machine.occupy(slot)
        waiting.result(LIMIT_S)
        wait_until(lambda: len(daemon.children) == 1, what="the end of that child")
        assert daemon.log.of("DeviceNotIdle") == []

        # The times are the file's, at once; whether there is a check at all stays as it was at the start.
        config_map.publish(build_config(allocation={"preStartCheck": "none", **SHORT}))
        told = daemon.log.wait_for("ConfigApplied", text="preStartCheck")["msg"]
        assert told.endswith("none is used from the next start of nvdp on; until then it is idle")
        machine.occupy(slot, BUSY)
        with pytest.raises(AdmissionError) as refused:
            kubelet.restart_container(pod, "main")
        assert refused.value.reason == "CreateContainerConfigError"
        text = f"{held} (index {slot}) is not idle after 2s (allocation.preStartTimeout): used by PID {BUSY['pid']} "
        assert f"{GPU}: {text}(name unknown" in str(refused.value)
        line = daemon.log.wait_for("DeviceNotIdle")
        assert (line["device"], line["index"], line["pid"], line["resource"]) == (held, slot, BUSY["pid"], GPU)
        daemon.wait_metric(1, "nvdp_allocations_refused_total", resource=GPU, reason="not_idle")

        # Who waits keeps nvdp from nothing: not from its end either.
        after = len(daemon.log)
        config_map.publish(checked(**LONG))
        daemon.log.wait_for("ConfigApplied", after=after)
        waiting = pool.submit(kubelet.restart_container, pod, "main")
        wait_until(lambda: len(daemon.children) == 2, what="a child that looks at the GPU")
        ended = daemon.stop()
        assert (ended.code, ended.seconds < 5) == (0, True)
        with pytest.raises(AdmissionError) as refused:  # in our words, or in those of the connection that ended
            waiting.result(LIMIT_S)
        assert "not idle" not in str(refused.value)
