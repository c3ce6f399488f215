"""Classes beside the GPUs in CDI specs: features of the driver, and IMEX channels."""

from __future__ import annotations

import pytest

from nvdp.model.cdi import CdiClass
from nvdp.planning.cdi import build_specs, find_problems
from tests.planning.cdi_values import (
    FOUND,
    GPU_FILE,
    WISH,
    build,
    devices_of,
    node,
    replace,
)


@pytest.mark.parametrize(
    ("cdi_class", "nodes", "version"),
    [
        (CdiClass.GDRCOPY, ("/dev/gdrdrv",), "0.3.0"),
        (CdiClass.MOFED, ("/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"), "0.3.0"),
        (CdiClass.GDS, ("/dev/nvidia-fs0", "/dev/nvidia-fs1"), "0.3.0"),
    ],
)
def test_a_feature_is_a_device_all_of_a_class_of_its_own(cdi_class, nodes, version):
    wish = replace(WISH, features=(cdi_class,))
    document = build(wish, replace(FOUND, features={cdi_class: nodes}))[cdi_class.file_name]

    assert document["kind"] == cdi_class.kind
    assert document["cdiVersion"] == version
    assert document["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert {one["path"] for one in devices_of(document)["all"]["deviceNodes"]} == set(nodes)


def test_gds_brings_what_there_is_of_its_files():
    wish = replace(WISH, features=(CdiClass.GDS,), driver_root="/run/driver")
    found = replace(FOUND, features={CdiClass.GDS: ("/dev/nvidia-fs0",)}, gds_files=("/run/udev", "/etc/cufile.json"))
    edits = devices_of(build(wish, found)[CdiClass.GDS.file_name])["all"]
    assert [(one["hostPath"], one["containerPath"]) for one in edits["mounts"]] == [
        ("/run/driver/etc/cufile.json", "/etc/cufile.json"),
        ("/run/udev", "/run/udev"),
    ]


def test_a_feature_without_nodes_has_no_file_and_is_no_problem():
    wish = replace(WISH, features=(CdiClass.GDS,))
    found = replace(FOUND, gds_files=("/run/udev",))
    assert set(build(wish, found)) == {GPU_FILE}
    assert find_problems(wish, found) == ()


def test_a_feature_whose_nodes_went_away_is_a_problem_as_containers_that_get_it_cannot_start():
    wish = replace(WISH, features=(CdiClass.GDS,))
    found = replace(FOUND, features={CdiClass.GDS: ("/dev/nvidia-fs0",)})
    prior = {CdiClass.GDS: build_specs(wish, found)[CdiClass.GDS.file_name]}
    (problem,) = find_problems(wish, replace(FOUND, prior=prior))
    assert problem.startswith("gds: the CDI specs have it as it was")


def test_a_feature_that_is_off_has_no_file_though_its_nodes_are_there():
    assert set(build(found=replace(FOUND, features={CdiClass.MOFED: ("/dev/infiniband/rdma_cm",)}))) == {GPU_FILE}


def test_an_imex_channel_is_a_device_named_by_its_number():
    path = "/dev/nvidia-caps-imex-channels/channel0"
    wish = replace(WISH, imex_channels=(0,))
    document = build(wish, replace(FOUND, nodes={path: node(506, 0)}))[CdiClass.IMEX_CHANNEL.file_name]

    assert document["cdiVersion"] == "0.5.0"
    assert [one["path"] for one in devices_of(document)["0"]["deviceNodes"]] == [path]


def test_an_imex_channel_without_its_node_has_no_file_and_says_so():
    path = "/dev/nvidia-caps-imex-channels/channel0"
    wish, found = replace(WISH, imex_channels=(0,)), replace(FOUND, nodes={path: None})
    assert CdiClass.IMEX_CHANNEL.file_name not in build(wish, found)
    assert any(path in problem for problem in find_problems(wish, found))
