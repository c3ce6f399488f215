"""The configuration file, followed through every way in which files change."""

from __future__ import annotations

import time

import pytest
import yaml

from tests.daemon.kernel import exhaust_inotify, mount
from tests.daemon.node import GPU, build_config, healthy, rename_over
from tests.daemon.process import LIMIT_S, Daemon, wait_until

FOUR, TWO, FIVE = (yaml.safe_dump(build_config(share=share)) for share in (4, 2, 5))


def check_followed(kubelet, *edits, limit_s: float) -> int:
    """Make these edits, each of which must bring so many Healthy devices in time; how many rounds that took.

    Others use this machine too: all edits of one round out of three must be in time.
    """
    rounds = []
    for number in range(1, 4):
        times = []
        for count, edit in edits:
            at = edit()
            kubelet.wait_until(lambda count=count: len(healthy(kubelet)) == count, LIMIT_S, what=f"{count} devices")
            times.append(time.monotonic() - at)
        if max(times) < limit_s:
            return number
        rounds.append(times)
    raise AssertionError(f"not within {limit_s} s: {rounds}")


def wait_count(kubelet, count: int, *, since: float, limit_s: float) -> None:
    """Wait for so many Healthy devices, which must come within the limit."""
    kubelet.wait_until(lambda: len(healthy(kubelet)) == count, LIMIT_S, what=f"{count} Healthy devices")
    assert time.monotonic() - since < limit_s


def write_in_place(path, text):
    at = time.monotonic()
    path.write_text(text)
    return at


def delete_and_create(path, text):
    path.unlink()
    return write_in_place(path, text)


def exchange_directory(path, text):
    for entry in path.parent.iterdir():
        entry.unlink()
    path.parent.rmdir()
    path.parent.mkdir()
    return write_in_place(path, text)


def rename_directory(path, text):
    path.parent.rename(path.parent.with_name(f"before {time.monotonic_ns()}"))
    path.parent.mkdir()
    at = time.monotonic()
    rename_over(path, text)
    return at


def link_elsewhere(path, text):
    target = path.parent.parent / "elsewhere.yaml"
    target.write_text(text)
    fresh = path.with_name("fresh")
    fresh.symlink_to(target)
    at = time.monotonic()
    fresh.replace(path)
    return at


WAYS = [rename_over, write_in_place, delete_and_create, exchange_directory, rename_directory, link_elsewhere]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_plain_file_is_followed_within_a_second(kubelet, root, start, way):
    path = root / "plain" / "nvdp.yaml"
    path.parent.mkdir()
    path.write_text(FOUR)
    daemon = start(config_file=path)
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S)

    check_followed(kubelet, (8, lambda: way(path, TWO)), (20, lambda: way(path, FIVE)), limit_s=1)

    assert len(kubelet.registrations) == 1
    assert {message.stream for message in kubelet.messages(GPU)} == {1}
    assert daemon.running


def test_a_configmap_is_followed_within_a_second(kubelet, daemon, config_map):
    def publish(share):
        return 4 * share, lambda: config_map.publish(build_config(share=share))

    rounds = check_followed(kubelet, publish(10), publish(3), limit_s=1)
    config_map.publish(build_config(share=1))
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 4, LIMIT_S)

    assert len(kubelet.registrations) == 1
    assert {message.stream for message in kubelet.messages(GPU)} == {1}
    daemon.wait_metric(1 + 2 * rounds + 1, "nvdp_config_edits_total", result="applied")
    count = "nvdp_list_latency_seconds_count"
    wait_until(lambda: (daemon.metric(count, cause="config") or 0) >= 3, what="the times of three edits")


def test_a_mount_that_is_made_anew_is_followed(kubelet, daemon, config_map):
    check_followed(
        kubelet,
        (12, lambda: config_map.replace_directory(build_config(share=3))),
        (24, lambda: config_map.publish(build_config(share=6))),
        limit_s=1,
    )


@pytest.mark.requirement(20)
def test_without_notification_changes_are_found_by_looking(kubelet, start, config_map):
    daemon = start(build_config(share=4), wait=True, launcher=exhaust_inotify())
    assert "max_user_instances" in daemon.log.wait_for("WatchDegraded")["msg"]

    wait_count(kubelet, 20, since=config_map.publish(build_config(share=5)), limit_s=2.5)
    wait_count(kubelet, 12, since=config_map.replace_directory(build_config(share=3)), limit_s=2.5)
    kubelet.restart()
    wait_count(kubelet, 12, since=time.monotonic(), limit_s=5)
    kubelet.recreate_directory()
    wait_count(kubelet, 12, since=time.monotonic(), limit_s=5)

    assert len(daemon.log.of("WatchDegraded")) == 1


def test_a_file_that_goes_away_changes_nothing_until_it_is_back(kubelet, root, start):
    path = root / "nvdp.yaml"
    path.write_text(FOUR)
    daemon = start(config_file=path)
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S)

    path.unlink()
    assert str(path) in daemon.log.wait_for("ConfigMissing")["msg"]
    daemon.wait_metric(0, "nvdp_config_valid")
    daemon.wait_ready()
    assert len(kubelet.messages(GPU)) == 1
    path.write_text(FIVE)
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 20, LIMIT_S)

    daemon.wait_metric(1, "nvdp_config_valid")
    assert daemon.log.of("ConfigRefused") == []


def test_many_edits_at_once_end_with_the_last_one(kubelet, daemon, config_map):
    for share in range(2, 40):
        config_map.publish(build_config(share=share))

    wait_count(kubelet, 4 * 39, since=time.monotonic(), limit_s=2)
    assert len(kubelet.registrations) == 1


def test_an_edit_that_changes_nothing_sends_nothing(kubelet, daemon, config_map):
    before = daemon.wait_ready().body["config"]["hash"]
    lines = len(daemon.log)
    config_map.publish(f"# a comment\n{FOUR}")
    applied = daemon.log.wait_for("ConfigApplied", after=lines)
    daemon.look_again()

    assert applied["hash"] != before
    assert applied["config"] == str(config_map.file)

    assert len(kubelet.messages(GPU)) == 1


def test_a_subpath_mount_is_recognised(kubelet, root, config_map, start):
    config_map.publish(build_config(share=4))
    mounted = root / "mounted.yaml"
    mounted.touch()

    daemon = start(
        config_file=mounted, wait=True, launcher=mount(["mount", "--bind", config_map.file.resolve(), mounted])
    )

    line = daemon.log.wait_for("ConfigMountStatic")
    assert str(mounted) in line["msg"]
    assert "mount the directory" in line["msg"]


def test_without_a_file_flags_and_environment_are_the_configuration(kubelet, machine, root):
    daemon = Daemon(
        *("--kubelet-root", kubelet.directory.parent, "--simulated-node", machine.path),
        *("--state-dir", root / "state", "--run-dir", root / "run", "--log-format", "json"),
        *("--device-id-strategy", "index"),
        environment={"DEVICE_LIST_STRATEGY": "volume-mounts", "CONFIG_FILE": ""},
    )
    try:
        kubelet.wait_until(lambda: len(healthy(kubelet)) == 4, LIMIT_S)
        pod = kubelet.admit("team/a", {"main": {GPU: 1}})
        (mounted,) = pod.response(GPU).mounts
        assert mounted.container_path == "/var/run/nvidia-container-devices/0"
        daemon.wait_ready()
        assert daemon.stop().code == 0
    finally:
        daemon.kill()


def test_the_file_is_found_through_the_environment_too(kubelet, machine, root):
    path = root / "nvdp.yaml"
    path.write_text(FOUR)
    daemon = Daemon(
        environment={
            "CONFIG_FILE": str(path),
            "NVDP_KUBELET_ROOT": str(kubelet.directory.parent),
            "NVDP_SIMULATED_NODE": str(machine.path),
            "NVDP_STATE_DIR": str(root / "state"),
            "NVDP_RUN_DIR": str(root / "run"),
        }
    )
    try:
        kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S)
        path.rename(root / "moved.yaml")
        daemon.log.wait_for("ConfigMissing")
        assert daemon.stop().code == 0
    finally:
        daemon.kill()
