"""Which of the driver's device nodes are there to be handed out."""

from __future__ import annotations

import os

import msgspec
import pytest

from nvdp.host.devnodes import NodesSeen, NodeView, choose_dev_view, find_control_nodes
from nvdp.model.platforms import TEGRA_UUID, WSL_NODE, WSL_UUID
from tests.planning.values import cut, gpu, inventory

CAPS = ("/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13")


def two_gpus():
    """One whole GPU and one with a MIG device whose capability nodes are known, and one whose are not."""
    card = cut(1, "1g.10gb", "1g.10gb", minor=4)
    first, second = card.instances
    return inventory(
        gpu(0, minor=0),
        msgspec.structs.replace(card, instances=(msgspec.structs.replace(first, nodes=CAPS), second)),
        gpu(2, minor=None),
    )


@pytest.mark.requirement(36)
def test_nodes_of_devices_that_the_host_does_not_have_are_missing(tmp_path):
    view = NodeView(tmp_path, is_host=True)
    assert view.look(two_gpus()).missing == ("/dev/nvidia0", "/dev/nvidia4", *CAPS)
    (tmp_path / "nvidia-caps").mkdir()
    for name in ("nvidia0", "nvidia4", "nvidia-caps/nvidia-cap13"):
        (tmp_path / name).touch()
    assert view.look(two_gpus()).missing == (CAPS[0],)
    (tmp_path / "nvidia-caps/nvidia-cap12").touch()
    assert view.look(two_gpus()) == NodesSeen()


@pytest.mark.requirement(36)
def test_the_one_node_of_wsl2_is_missing_like_any_other_and_a_tegra_system_has_none_that_could_be(tmp_path):
    view, wsl = NodeView(tmp_path, is_host=True), inventory(gpu(0, uuid=WSL_UUID, minor=None))
    assert view.look(wsl).missing == (WSL_NODE,)
    (tmp_path / "dxg").touch()
    assert view.look(wsl).missing == ()
    assert view.look(inventory(gpu(0, uuid=TEGRA_UUID, minor=None))).missing == ()


def test_nothing_is_missing_where_the_hosts_nodes_cannot_be_seen_or_no_gpu_is_known(tmp_path):
    assert NodeView(tmp_path, is_host=False).look(two_gpus()).missing == ()
    assert NodeView(tmp_path, is_host=True).look(None).missing == ()


def test_an_imex_channel_is_there_if_its_node_is_a_character_device(tmp_path):
    channel = tmp_path / "nvidia-caps-imex-channels" / "channel0"
    channel.parent.mkdir()
    view = NodeView(tmp_path, is_host=False)
    assert view.look(None).imex_channels == ()
    channel.touch()
    assert view.look(None).imex_channels == (), "a plain file is no channel"
    channel.unlink()
    channel.symlink_to(os.devnull)  # to make a device takes a privilege
    assert view.look(None).imex_channels == (0,)


def test_a_channel_that_a_driver_container_has_made_below_its_root_is_there_too(tmp_path):
    view = NodeView(tmp_path / "host-dev", is_host=True, driver_root=str(tmp_path))
    assert view.look(None).imex_channels == ()
    channel = tmp_path / "driver" / "dev" / "nvidia-caps-imex-channels" / "channel0"
    channel.parent.mkdir(parents=True)
    channel.symlink_to(os.devnull)
    assert view.look(None).imex_channels == ()
    view.use_driver_root(str(tmp_path / "driver"))
    assert view.look(None).imex_channels == (0,)


@pytest.mark.requirement(36)
def test_nodes_that_are_there_are_named_in_a_fixed_order_as_the_host_knows_them(tmp_path):
    for name in ("nvidia-uvm", "nvidia0", "nvidiactl", "null"):
        (tmp_path / name).touch()
    assert find_control_nodes(tmp_path) == ("/dev/nvidiactl", "/dev/nvidia-uvm")
    for name in ("nvidia-modeset", "nvidia-uvm-tools"):
        (tmp_path / name).touch()
    assert find_control_nodes(tmp_path) == (
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
    )


def test_a_missing_directory_has_no_nodes(tmp_path):
    assert find_control_nodes(tmp_path / "missing") == ()
    (tmp_path / "file").touch()
    assert find_control_nodes(tmp_path / "file") == ()


def test_the_hosts_dev_is_looked_at_where_it_is_mounted(tmp_path):
    own, host = tmp_path / "dev", tmp_path / "host-dev"
    own.mkdir()
    assert choose_dev_view(host, own) == own
    host.mkdir()
    assert choose_dev_view(host, own) == host
