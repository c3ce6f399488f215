"""The hooks in CDI specs: which there are, in which order, and how their program is called."""

from __future__ import annotations

import pytest

from nvdp.model.cdi import HOOKS
from tests.planning.cdi_values import (
    FOUND,
    GPU_FILE,
    ONE,
    WISH,
    ZERO,
    build,
    devices_of,
    hooks_of,
    inject,
    replace,
)


def test_hooks_come_in_the_order_in_which_they_build_on_each_other():
    assert hooks_of(build()[GPU_FILE]["containerEdits"]) == [
        "nvidia-ctk hook create-symlinks --link libcuda.so.1::/usr/lib64/libcuda.so",
        "nvidia-ctk hook enable-cuda-compat --host-driver-version=580.65.06",
        "nvidia-ctk hook update-ldcache --folder /usr/lib64 --folder /usr/lib64/vdpau",
        "nvidia-ctk hook disable-device-node-modification",
        "nvidia-ctk hook update-application-profile",
    ]


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/usr/local/nvidia/toolkit/nvidia-ctk", "nvidia-ctk hook update-ldcache"),
        ("/usr/bin/nvidia-cdi-hook", "nvidia-cdi-hook update-ldcache"),
        ("/opt/my-hook", "my-hook update-ldcache"),
    ],
)
def test_the_hook_program_is_called_by_its_own_name_and_in_its_own_form(path, command):
    edits = build(replace(WISH, hook_path=path))[GPU_FILE]["containerEdits"]
    assert {hook["path"] for hook in edits["hooks"]} == {path}
    assert [line for line in hooks_of(edits) if line.startswith(command)]


def test_hooks_are_left_out_by_name():
    wish = replace(WISH, disabled_hooks=("update-ldcache", "create-symlinks"))
    document = build(wish)[GPU_FILE]
    assert [line.split()[2] for line in hooks_of(document["containerEdits"])] == [
        "enable-cuda-compat",
        "disable-device-node-modification",
        "update-application-profile",
    ]
    assert "hooks" not in devices_of(document)[ZERO]


def test_every_hook_that_can_be_left_out_is_there_but_the_one_that_is_off_by_default():
    lines = hooks_of(build()[GPU_FILE]["containerEdits"])
    assert {line.split()[2] for line in lines} == {*HOOKS} - {"chmod"}


def test_all_hooks_are_left_out_at_once():
    assert not inject([ZERO, ONE, "all"], replace(WISH, disabled_hooks=("all",))).hooks


@pytest.mark.parametrize(("told", "version"), [("580.65.06", "580.65.06"), ("", "550.54.15")])
def test_the_drivers_version_is_what_the_driver_says_and_else_that_of_its_files(told, version):
    found = replace(FOUND, driver=replace(FOUND.driver, version="550.54.15"))
    lines = hooks_of(build(replace(WISH, driver_version=told), found)[GPU_FILE]["containerEdits"])
    assert f"nvidia-ctk hook enable-cuda-compat --host-driver-version={version}" in lines
