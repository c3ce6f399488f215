"""The steps of the guided tour. They assert what the kubelet's twin saw, and never what the daemon says of itself.

The exceptions are what an operator reads too: the readiness probe, the metric and the log line of a refused edit.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

import msgspec

from nvdp.errors import UsageError
from nvdp.model.platforms import Platform
from nvdp.simulate.counting import find_uncounted
from nvdp.simulate.handed import find_named, show_devices
from nvdp.simulate.kubelet import AdmissionError, Pod
from nvdp.simulate.scene import PATIENCE_S, Outcome, Scene, UnexpectedError, check

_MORE = 6
_TYPO = 20
_QUIET_S = 1.0
_ONCE_S = 0.5
_ADMISSION_LIMIT_S = 10.0
_STOP_PATIENCE_S = 6.0
_REFUSED = re.compile(r"ConfigRefused\s+(?P<where>.+?:(?P<line>\d+):(?P<column>\d+)): (?P<text>.*?)(?:  \(|$)")
_PODS: Mapping[str, int] = {"notebook": 1, "ci-job": 1, "train": 2}


class Step(msgspec.Struct, frozen=True):
    """``limit_s`` is what the seconds of its outcome are held against. ``play`` raises UnexpectedError."""

    name: str
    title: str
    limit_s: float
    play: Callable[[Scene], Outcome]


def show_capacity(scene: Scene) -> Outcome:
    """The daemon was just started: all devices come in one Register, and the node is ready."""
    expected = f"{scene.wanted} devices of {scene.resource}, all Healthy"
    message = scene.wait_list(after=0, expected=expected)
    count = scene.count_registrations()
    check(count == 1, expected="one Register", seen=f"{count}")
    answer = scene.stage.wait_for(lambda: _find_ready(scene), PATIENCE_S)
    check(answer, expected="200 from /readyz", seen=f"no such answer; {scene.describe_daemon()}")
    gpus, replicas = len(scene.indices), scene.shared.replicas
    sharing = f"({gpus} GPU{'s' * (gpus > 1)} x {replicas}, all healthy)"
    return Outcome(
        message.at - scene.stage.daemon.started_at,
        (
            f"config: each GPU shared by {replicas}",
            f"kubectl describe node      |  {scene.resource}:  0 -> {scene.wanted}     {sharing}",
            "kubectl -n nvdp get pods   |  READY 1/1     (the readiness probe answers 200)",
        ),
    )


def admit_pods(scene: Scene) -> Outcome:
    """Pods come; what they are given must be there, and must be spread as the configuration says."""
    seconds, lines = 0.0, []
    for name, wish in _PODS.items():
        asked = _choose_count(scene, wish)
        began = time.monotonic()
        pod = scene.pods[name] = _admit(scene, name, asked)
        seconds += time.monotonic() - began
        gpus = _read_gpus(scene, pod, asked)
        apart = scene.shared.distinct and len(scene.indices) > 1
        note = ""
        if asked > 1:
            check(
                len(gpus) == asked or not apart,
                expected=f"{asked} different GPUs for {name}",
                seen=f"{asked} shares of {', '.join(map(scene.name_gpu, gpus))}",
            )
            note = "  two different GPUs" if len(gpus) == asked else "  two shares of it"
        names = ", ".join(map(scene.name_gpu, gpus))
        shown = note or f" {show_devices(pod.response(scene.resource))}"
        lines.append(f"{name:<10} {scene.resource}: {asked}   ->  {names:<12}{shown}")
    return Outcome(seconds, tuple(lines))


def share_more(scene: Scene) -> Outcome:
    """The ConfigMap is edited while pods run: more devices, and nothing else is disturbed."""
    before, old = scene.newest, scene.shared
    known = len(scene.kubelet.messages(scene.resource))
    registrations = scene.count_registrations()
    scene.shared = old.share_by(old.replicas + _MORE)
    swapped_at = scene.stage.config.write(scene.shared.text)
    message = scene.wait_list(after=known, expected=f"{scene.wanted} devices of {scene.resource}, all Healthy")
    check(
        message.stream == before.stream and scene.count_registrations() == registrations,
        expected="the new list on the stream that was open",
        seen=f"it came on stream {message.stream - before.stream + 1} of this plugin",
    )
    _check_pods(scene, message.healthy)
    return Outcome(
        message.at - swapped_at,
        (
            "kubectl -n nvdp edit configmap nvdp-config",
            f"  - {old.show_line().strip()}",
            f"  + {scene.shared.show_line().strip()}",
            f"kubectl describe node      |  {scene.resource}:  {len(before.devices)} -> {scene.wanted}",
            f"same process, same stream, {len(scene.pods)} pods untouched",
        ),
    )


def refuse_typo(scene: Scene) -> Outcome:
    """A broken edit changes nothing and is explained; the fix is taken."""
    stage, before = scene.stage, scene.newest
    known = len(scene.kubelet.messages(scene.resource))
    broken = scene.shared.build_typo(_TYPO)
    swapped_at = stage.config.write(broken)
    unchanged = f"the {len(before.devices)} devices unchanged"
    expected = "the edit refused, with line and suggestion"

    found = stage.wait_for(
        lambda: (
            next(filter(None, map(_REFUSED.search, stage.daemon.read_log())), None)
            or len(scene.kubelet.messages(scene.resource)) > known
        ),
        PATIENCE_S,
    )
    seconds = time.monotonic() - swapped_at
    scene.watch_quiet(0, after=known, expected=unchanged)
    if not isinstance(found, re.Match):
        raise UnexpectedError(expected=expected, seen=f"no such line in {PATIENCE_S:.0f} s; {scene.describe_daemon()}")
    right = (scene.shared.line, scene.shared.column) == (int(found["line"]), int(found["column"]))
    check(
        right and "did you mean replicas?" in found["text"],
        expected=expected,
        seen=f"{found['where']}: {found['text']}",
    )
    _check_config_valid(scene, valid=False)
    scene.watch_quiet(_QUIET_S, after=known, expected=unchanged)
    stage.config.write(scene.shared.text)
    _check_config_valid(scene, valid=True)
    scene.watch_quiet(0, after=known, expected=unchanged)

    line = broken.splitlines()[scene.shared.line - 1]
    number = f"{scene.shared.line:>3} | "
    where = found["where"].rpartition("/")[2]
    return Outcome(
        seconds,
        (
            "kubectl -n nvdp logs ds/nvdp",
            f"{where}: {found['text']}",
            f"{number}{line}",
            f"{'| ':>{len(number)}}{' ' * (scene.shared.column - 1)}{'^' * len('replica')}",
            f"refused; still {len(before.devices)}.   Fixed again: applied.",
        ),
    )


def restart_kubelet(scene: Scene) -> Outcome:
    """The kubelet comes back with an empty directory and an empty memory: one Register, and the same list."""
    before = scene.newest
    known = len(scene.kubelet.messages(scene.resource))
    registrations = scene.count_registrations()
    scene.kubelet.stop()
    restarted_at = time.monotonic()
    scene.kubelet.start()
    message = scene.wait(
        lambda: next(iter(scene.kubelet.messages(scene.resource)[known:]), None),
        expected="Register within 1 s of a new kubelet.sock",
        seen=lambda: "none" if scene.count_registrations() == registrations else "Register but no list",
    )
    count = len(before.devices)
    check(message.raw == before.raw, expected=f"the same {count} IDs, byte for byte", seen="another list")
    scene.watch_quiet(_ONCE_S, after=known + 1, expected="one list, and no other")
    more = scene.count_registrations() - registrations
    check(more == 1, expected="one Register", seen=f"{more}")
    scene.wait(
        lambda: scene.kubelet.readmissions_pending == 0 and all(pod.phase != "Pending" for pod in scene.pods.values()),
        expected="all pods admitted again",
        seen=lambda: f"{scene.kubelet.readmissions_pending} still wait",
    )
    _check_pods(scene, message.healthy)
    return Outcome(
        message.at - restarted_at,
        (
            "systemctl restart kubelet  |  it wipes all sockets and forgets all plugins",
            f"kubectl describe node      |  {scene.resource}:  0 -> {count}",
            f"registered again, once; the same {count} IDs, byte for byte",
        ),
    )


def stop_daemon(scene: Scene) -> Outcome:
    """SIGTERM, as the kubelet sends it to a pod."""
    daemon, directory = scene.stage.daemon, scene.kubelet.directory
    asked_at = daemon.terminate()
    code = daemon.wait_exit(_STOP_PATIENCE_S)
    seconds = time.monotonic() - asked_at
    check(code is not None, expected="an exit after SIGTERM", seen=f"none in {_STOP_PATIENCE_S:.0f} s")
    check(code == 0, expected="exit 0", seen=f"exit {code}; {daemon.last_line}")
    left = [path.name for path in sorted(directory.iterdir()) if path.is_socket() and path != scene.kubelet.socket]
    check(not left, expected="no socket left behind", seen=", ".join(left))
    return Outcome(seconds, ("kubectl -n nvdp delete pod POD  |  exit 0, no socket left behind",))


STEPS = (
    Step("capacity", "Capacity appears", 1.0, show_capacity),
    Step("pods", "Three pods ask for GPUs", 0.1, admit_pods),
    Step("share-more", "Share more: edit the ConfigMap, pods keep running", 1.0, share_more),
    Step("typo", "A typo in the ConfigMap", 1.0, refuse_typo),
    Step("kubelet-restart", "The kubelet restarts", 1.0, restart_kubelet),
    Step("stop", "Stop", 5.0, stop_daemon),
)


def check_fits(scene: Scene) -> None:
    """Raise UsageError if less is offered than the tour's pods ask for, or less than it counts on."""
    platform = scene.stage.node.platform
    if platform is not Platform.NVML:
        raise UsageError(
            f"{scene.stage.node_source}: platform {platform.value} has one device for all its GPUs, and the tour tells"
            " GPUs apart; nvdp simulate --serve takes any node"
        )
    uncounted = find_uncounted(scene.shared.config, scene.stage.node, entry=scene.shared.entry)
    if uncounted is not None:
        raise UsageError(
            f"{scene.shared.config.name}: {uncounted}, and the tour counts on all of them in {scene.shared.entry}; "
            "nvdp simulate --serve takes any configuration"
        )
    asked = sum(_choose_count(scene, wish) for wish in _PODS.values())
    if scene.wanted < asked:
        raise UsageError(
            f"the tour's pods ask for {asked} devices, and this node offers {scene.wanted} of {scene.resource}; "
            "take another node or more replicas"
        )


def _find_ready(scene: Scene) -> bool:
    answer = scene.stage.daemon.find_answer("/readyz")
    return answer is not None and answer[0] == 200  # noqa: PLR2004 - HTTP's own number


def _choose_count(scene: Scene, wish: int) -> int:
    if scene.shared.one_each:
        return 1
    return min(wish, len(scene.indices)) if scene.shared.requires_distinct else wish


def _admit(scene: Scene, name: str, asked: int) -> Pod:
    try:
        return scene.kubelet.admit(name, {"main": {scene.resource: asked}}, timeout_s=_ADMISSION_LIMIT_S)
    except AdmissionError as error:
        raise UnexpectedError(expected=f"{name} admitted", seen=f"{error.reason}: {error}") from error
    except TimeoutError as error:
        raise UnexpectedError(expected=f"{name} admitted", seen=f"no answer in {_ADMISSION_LIMIT_S:.0f} s") from error


def _read_gpus(scene: Scene, pod: Pod, asked: int) -> tuple[str, ...]:
    """The GPUs that the container will see, by index; they exist and are those of its devices."""
    response = pod.response(scene.resource)
    by_index = {str(index): uuid for uuid, index in scene.indices.items()}
    seen = [by_index.get(name, name) for name in find_named(response)]
    held = {device.partition("::")[0] for device in pod.ids(scene.resource)}
    check(len(pod.ids(scene.resource)) == asked, expected=f"{asked} devices", seen=f"{len(pod.ids(scene.resource))}")
    check(
        seen and set(seen) == held <= scene.indices.keys() and len(set(seen)) == len(seen),
        expected=f"the GPUs of {', '.join(sorted(pod.ids(scene.resource)))}",
        seen=", ".join(map(scene.name_gpu, seen)) or "none",
    )
    return tuple(sorted(seen, key=lambda uuid: scene.indices[uuid]))


def _check_pods(scene: Scene, healthy: tuple[str, ...]) -> None:
    """The pods run, and what they hold is still on offer to them."""
    for name, pod in scene.pods.items():
        missing = pod.ids(scene.resource) - set(healthy)
        check(not missing, expected=f"the devices of {name} still listed", seen=f"without {', '.join(sorted(missing))}")
        check(pod.phase == "Running", expected=f"{name} runs on", seen=f"{pod.phase}: {pod.error}")


def _check_config_valid(scene: Scene, *, valid: bool) -> None:
    name, wanted = "nvdp_config_valid", float(valid)
    found = scene.stage.wait_for(lambda: scene.stage.daemon.find_metric(name) == wanted, PATIENCE_S)
    check(found, expected=f"{name} {wanted:.0f}", seen=f"{scene.stage.daemon.find_metric(name)}")
