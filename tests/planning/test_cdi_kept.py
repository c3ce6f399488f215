"""What stays in CDI specs because pods may start with it again, and what goes."""

from __future__ import annotations

import pytest

from nvdp.model.cdi import CdiClass, CdiDevice
from nvdp.model.cdi_spec import SpecDevice
from nvdp.planning.cdi import find_problems
from tests.planning.cdi_values import (
    FOUND,
    GPU_FILE,
    OLD,
    ONE,
    WISH,
    build,
    devices_of,
    inject,
    replace,
    with_prior,
)


@pytest.mark.requirement(46)
def test_what_pods_may_start_with_again_stays_as_it_was_written():
    wish = replace(WISH, keep=frozenset({"GPU-old", "GPU-never"}))
    devices = devices_of(build(wish, with_prior())[GPU_FILE])

    assert devices["GPU-old"] == {"deviceNodes": [{"path": "/dev/nvidia7", "uid": 3}]}
    assert "/dev/nvidia7" not in inject(["all"], wish, with_prior()).nodes
    assert "GPU-never" not in devices


@pytest.mark.requirement(46)
def test_what_pods_may_start_with_again_stays_though_nothing_else_is_left():
    wish = replace(WISH, devices=(), keep=frozenset({"GPU-old"}))
    document = build(wish, with_prior())[GPU_FILE]
    assert set(devices_of(document)) == {"GPU-old"}
    assert document["containerEdits"] == build()[GPU_FILE]["containerEdits"]


@pytest.mark.invariant(4)
@pytest.mark.parametrize("nodes", [("/dev/nvidia7",), ("/dev/nvidia7", "/dev/nvidia-caps/nvidia-cap12")])
def test_what_was_kept_goes_when_another_device_has_its_nodes_now(nodes):
    before = CdiDevice(names=("GPU-old",), nodes=nodes)
    found = with_prior(extra=(), wish=replace(WISH, devices=(*WISH.devices, before)))
    kept = replace(WISH, keep=frozenset({"GPU-old"}))
    assert "GPU-old" in devices_of(build(kept, found)[GPU_FILE])

    heir = CdiDevice(names=("GPU-new",), nodes=nodes)
    devices = devices_of(build(replace(kept, devices=(*WISH.devices, heir)), found)[GPU_FILE])
    assert "GPU-old" not in devices
    assert {node["path"] for node in devices["GPU-new"]["deviceNodes"]} == {*nodes}
    part = CdiDevice(names=("MIG-new",), nodes=("/dev/nvidia7", "/dev/nvidia-caps/nvidia-cap99"))
    assert "GPU-old" in devices_of(build(replace(kept, devices=(*WISH.devices, part)), found)[GPU_FILE])


def test_what_no_pod_may_start_with_goes():
    assert "GPU-old" not in devices_of(build(found=with_prior())[GPU_FILE])


@pytest.mark.requirement(46)
def test_a_device_that_cannot_be_written_now_stays_as_it_was_but_is_not_among_all():
    before = with_prior(extra=())
    after = replace(before, nodes={**FOUND.nodes, "/dev/nvidia1": None})
    assert devices_of(build(found=after)[GPU_FILE])[ONE] == devices_of(build()[GPU_FILE])[ONE]
    assert "/dev/nvidia1" not in inject(["all"], found=after).nodes
    assert find_problems(WISH, after)


def test_a_device_that_is_there_again_is_written_anew():
    prior = with_prior(extra=(SpecDevice(name="GPU-1", container_edits=OLD.container_edits),))
    back = replace(WISH, devices=(CdiDevice(names=("GPU-1",), nodes=("/dev/nvidia1",)),))
    (one,) = devices_of(build(back, prior)[GPU_FILE])["GPU-1"]["deviceNodes"]
    assert one["path"] == "/dev/nvidia1"


@pytest.mark.requirement(46)
def test_the_file_of_a_feature_stays_while_pods_may_start_with_it():
    on = replace(WISH, features=(CdiClass.GDRCOPY,))
    found = with_prior(
        replace(FOUND, features={CdiClass.GDRCOPY: ("/dev/gdrdrv",)}), cdi_class=CdiClass.GDRCOPY, extra=(), wish=on
    )
    held = build(replace(WISH, keep_classes=frozenset({CdiClass.GDRCOPY})), found)
    assert held[CdiClass.GDRCOPY.file_name] == build(on, found)[CdiClass.GDRCOPY.file_name]
    assert CdiClass.GDRCOPY.file_name not in build(WISH, found)
