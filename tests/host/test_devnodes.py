"""Which of the driver's device nodes are there to be handed out."""

from __future__ import annotations

import pytest

from nvdp.host.devnodes import choose_dev_view, find_control_nodes


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
