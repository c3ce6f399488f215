"""What an edit does to the control daemons of MPS, and to the pods and GPUs of these, as ``nvdp plan`` foresees it."""

from __future__ import annotations

import msgspec

from nvdp.app.preview import Outlook, Teller
from nvdp.commands.plan_text import build_text
from nvdp.model.listing import Strategy
from nvdp.model.mps import DaemonSpec, Phase
from nvdp.model.status import MpsDaemonStatus, MpsMemoryStatus, MpsStatus, Status
from nvdp.planning.assignment import Form
from nvdp.planning.changes import DaemonChange, DeviceChange, How, build_running, find_changes
from nvdp.planning.preview import Node, build_preview
from tests.planning.mps_values import card, mps_file
from tests.planning.test_changes import status_device
from tests.planning.values import GPU, answer, holding, inventory, parse, uuid

MPS = "nvidia.com/m"
SHARE, WHOLE = Form(MPS, shared=True, mps=True), Form(GPU, shared=False)
POD = holding(f"{uuid(0)}::0", "a", MPS)
IMMEDIATE = "allocation: {modeChange: immediate}"


def entry(devices, replicas=4, more=""):
    return mps_file(f"name: gpu, rename: m, devices: [{devices}], replicas: {replicas}") + more


def running(*gpus):
    """A node with two GPUs, by the daemon's word: these are shared by MPS, in quarters."""
    daemon = MpsDaemonStatus(
        resource=MPS,
        phase=Phase.READY,
        gpus=tuple(map(uuid, gpus)),
        thread_percent=25,
        memory=tuple(MpsMemoryStatus(gpu_uuid=uuid(number), mib=20480) for number in gpus),
    )
    shared = {"resource": MPS, "replicas": 4, "strategy": Strategy.MPS}
    devices = tuple(status_device(one, **(shared if one in gpus else {"resource": GPU})) for one in range(2))
    return build_running(Status(devices=devices, mps=MpsStatus(daemons=(daemon,) if gpus else ())))


def preview_of(text, *holdings):
    node = Node(
        inventory=inventory(card(0), card(1)),
        held=answer(*holdings, at=50.0),
        names=frozenset({MPS}),
        by_mps={MPS: (uuid(0), uuid(1))},
    )
    return build_preview(parse(text), node)


def changes_of(text, now, *holdings):
    return find_changes(preview_of(text, *holdings), now)


def test_the_status_tells_as_what_a_daemon_runs():
    assert running(0).daemons == {
        MPS: DaemonSpec(resource=MPS, gpus=(uuid(0),), thread_percent=25, memory_mib={uuid(0): 20480})
    }
    assert changes_of(entry("0, 1"), running(0, 1), POD).daemons == ()


def test_a_free_gpu_that_leaves_or_joins_a_daemon_waits_for_the_pods_of_its_other_gpus():
    for now, devices, before, after, text in (
        (running(0, 1), "0", SHARE, WHOLE, "GPU 1 leaves it"),
        (running(0), "0, 1", WHOLE, SHARE, "GPU 1 joins it"),
    ):
        found = changes_of(entry(devices), now, POD)
        waits = {"how": How.WAITS, "holders": ("team/a",)}
        assert found.devices == (DeviceChange(gpu_uuid=uuid(1), before=before, after=after, daemon=MPS, **waits),)
        assert found.daemons == (DaemonChange(resource=MPS, text=text, **waits),)


def test_while_nobody_uses_the_daemon_all_of_it_is_at_once():
    found = changes_of(entry("0"), running(0, 1))
    assert [one.how for one in (*found.devices, *found.daemons)] == [How.AT_ONCE, How.AT_ONCE]


def test_a_gpu_that_gets_a_daemon_of_its_own_waits_for_nobody():
    found = changes_of(entry("1"), running(), holding(uuid(0), "b"))
    assert [(one.gpu_uuid, one.how) for one in found.devices] == [(uuid(1), How.AT_ONCE)]
    assert found.daemons == ()


def test_other_limits_are_a_change_and_by_choice_one_that_ends_what_computes():
    text = "25 % → 50 % threads, 20480 MiB → 40960 MiB memory"
    change = DaemonChange(resource=MPS, text=text, how=How.WAITS, holders=("team/a",))
    assert changes_of(entry("0, 1", 2), running(0, 1), POD).daemons == (change,)
    ends = msgspec.structs.replace(change, how=How.ENDS_CLIENTS)
    assert changes_of(entry("0, 1", 2, IMMEDIATE), running(0, 1), POD).daemons == (ends,)


def test_a_daemon_that_is_not_wanted_any_more_ends():
    (found,) = changes_of("{}", running(0, 1), POD).daemons
    assert (found.text, found.how) == ("it ends", How.WAITS)


def lines(text):
    preview = preview_of(text, POD)
    changes = find_changes(preview, running(0, 1))
    text = build_text(Outlook(node_name="n", preview=preview, changes=changes, told_by=Teller.NVDP))
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_text_says_who_is_waited_for_and_what_is_ended():
    said = lines(entry("0", 2))
    who = f"waits: {MPS}, of the same MPS control daemon, is held by team/a (allocation.modeChange: when-free)"
    assert f"{uuid(1)} {MPS} → {GPU} {who}" in said
    what = "MPS control daemon: GPU 1 leaves it, 25 % → 50 % threads, 20480 MiB → 40960 MiB memory"
    assert f"{MPS} {what} waits: held by team/a (allocation.modeChange: when-free)" in said
    ends = "at once, which ends what computes in team/a (allocation.modeChange: immediate)"
    assert f"{MPS} {what} {ends}" in lines(entry("0", 2, IMMEDIATE))
