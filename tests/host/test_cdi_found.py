"""What is found on a node for its specs: under the driver root that is mounted, and in the host's /dev if that is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from nvdp.errors import HostError
from nvdp.host.cdi_found import FoundFiles
from nvdp.model.cdi import CdiClass, CdiDevice, CdiWish
from nvdp.model.cdi_spec import encode_spec
from nvdp.planning.cdi import build_specs
from tests.cdi.validator import check_spec
from tests.host.layouts import build_tree

DRIVER = """
usr/lib64/libcuda.so.1 -> libcuda.so.580.65.06
usr/lib64/libcuda.so.580.65.06
usr/lib64/libnvidia-ml.so.580.65.06
usr/bin/nvidia-smi*
"""
HOOK = "usr/bin/nvidia-ctk*"


def wish(mounted, *, nodes=("/dev/null", "/dev/nvidia77"), **fields):
    """For the machine's own /dev: what every one has stands for a GPU's node."""
    return CdiWish(
        devices=tuple(CdiDevice(names=(f"GPU-{n}",), nodes=(node,)) for n, node in enumerate(nodes)),
        driver_version="580.65.06",
        container_driver_root=str(mounted),
        **fields,
    )


def find(wished, **options):
    return FoundFiles(**options).load(wished, {})


@pytest.fixture
def root(tmp_path):
    return build_tree(tmp_path / "driver-root", DRIVER + HOOK)


@pytest.mark.requirement(36)
def test_only_where_the_hosts_nodes_are_mounted_is_one_of_them_missing(root, tmp_path):
    found = find(wish(root), host_dev=Path("/dev"))
    assert (found.nodes["/dev/null"].major, found.nodes["/dev/null"].minor) == (1, 3)
    assert found.nodes["/dev/nvidia77"] is None
    for options in ({"host_dev": tmp_path / "nothing"}, {"host_dev": Path("/dev"), "is_real": False}):
        found = find(wish(root), **options)
        assert found.nodes.keys() == {"/dev/null"}, "what our own /dev lacks, the host's may have"


def test_nodes_are_looked_for_below_the_driver_root_where_that_has_them(root):
    (root / "dev").mkdir()
    (root / "dev" / "nvidiactl").touch()
    inside = wish(root, driver_root="/run/nvidia/driver", dev_root="/run/nvidia/driver")
    assert find(inside, host_dev=Path("/dev")).control_nodes == ("/dev/nvidiactl",)
    beside = wish(root, driver_root="/run/nvidia/driver", dev_root="/")
    assert find(beside, host_dev=Path("/dev")).nodes.keys() >= {"/dev/null", "/dev/nvidia77"}


def test_a_spec_of_what_was_found_names_the_hosts_paths_and_never_our_own(root):
    wished = wish(root, nodes=("/dev/null",), driver_root="/run/nvidia/driver", dev_root="/")
    (spec,) = build_specs(wished, find(wished, host_dev=Path("/dev"))).values()
    text = encode_spec(spec).decode()
    check_spec(json.loads(text))
    assert str(root) not in text
    mounts = {mount.container_path: mount.host_path for mount in spec.container_edits.mounts}
    assert mounts["/usr/bin/nvidia-smi"] == "/run/nvidia/driver/usr/bin/nvidia-smi"
    assert mounts["/usr/lib64/libcuda.so.580.65.06"] == "/run/nvidia/driver/usr/lib64/libcuda.so.580.65.06"


def test_without_a_driver_root_this_systems_own_is_looked_at_but_never_a_pods(tmp_path):
    system = build_tree(tmp_path / "system", DRIVER)
    nowhere = wish(tmp_path / "nothing")
    found = find(nowhere, root=system)
    assert [file.path for file in found.driver.binaries] == ["/usr/bin/nvidia-smi"]
    with pytest.raises(
        HostError, match=rf"^{re.escape(str(tmp_path))}/nothing: no driver root is mounted .* hostPath / "
    ):
        find(nowhere, root=system, in_pod=True)


@pytest.mark.invariant(11)
def test_a_driver_root_that_cannot_even_be_looked_at_is_told_as_one_that_is_not_there(root):
    unlookable = root / ("x" * 300)  # as good as a mount whose server is gone: no error that says there is nothing
    with pytest.raises(HostError, match="no driver root is mounted there"):
        find(wish(unlookable), in_pod=True)


def test_features_are_looked_for_where_they_are_wanted(root):
    build_tree(root, "run/udev/\netc/cufile.json")
    build_tree(root, "dev/nvidia-fs0\ndev/nvidia-fs1\ndev/gdrdrv")
    wished = wish(root, driver_root="/d", dev_root="/d", features=(CdiClass.GDS, CdiClass.MOFED))
    found = find(wished)
    assert found.features == {CdiClass.GDS: ("/dev/nvidia-fs0", "/dev/nvidia-fs1"), CdiClass.MOFED: ()}
    assert found.gds_files == ("/run/udev", "/etc/cufile.json")
    assert find(wish(root)).gds_files == ()


def test_a_hook_program_is_missed_where_the_hosts_programs_can_be_seen(root):
    assert find(wish(root)).hook_problem == ""
    (root / "usr/bin/nvidia-ctk").unlink()
    problem = find(wish(root)).hook_problem
    assert problem.startswith("/usr/bin/nvidia-ctk: no such program on this node")
    assert "--cdi-disable-hooks=all" in problem
    for unseen in ({"driver_root": "/run/nvidia/driver"}, {"disabled_hooks": ("all",)}):
        assert find(wish(root, **unseen)).hook_problem == ""
