"""``nvdp plan`` on a node that lives: equal to what the daemon then does, and without a trace of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from nvdp.__main__ import main
from nvdp.simulate.kubelet import Kubelet
from tests.daemon.node import (
    FULL,
    GPU,
    SHARED,
    both_kubelets,
    build_config,
    gpu_uuid,
    healthy,
    on_node,
    pci_address,
    replicas,
    wait_healthy,
)
from tests.daemon.process import LIMIT_S
from tests.twin.reference_plugin import ReferencePlugin, device

PAGE = Path(__file__).parents[2] / "docs/plan.md"
A10, MPS = "nvidia.com/a10", "nvidia.com/gpu.mps"
UNCHANGED = {"devices": [], "daemons": [], "resources": []}


def entry(replicas_each, **keys):
    return {"name": GPU, "replicas": replicas_each, **keys}


def shared(*entries, **blocks):
    return build_config(sharing={"timeSlicing": {"resources": list(entries)}}, **blocks)


FILES = {
    "nothing": build_config(),
    "all sliced": build_config(share=3),
    "renamed": build_config(share=2, timeSlicing={"renameByDefault": True}),
    "some by slot": shared(entry(4, rename=SHARED, devices=[pci_address(1), pci_address(2)])),
    "some by number": shared(entry(5, rename=SHARED, devices=2)),
    "one kept back, one in repair": build_config(devices={"exclude": [0], "cordon": [gpu_uuid(3)]}),
    "different replicas": shared(entry(2, devices=[0]), entry(6, devices="all")),
    "another name": build_config(resources={"gpus": [{"pattern": "*A10*", "name": A10}]}),
    "four ways": build_config(
        devices={"exclude": [pci_address(0)], "cordon": [1], "rescanInterval": "1s"},
        sharing={
            "timeSlicing": {"resources": [entry(4, rename=SHARED, devices=[gpu_uuid(2)])]},
            "mps": {"resources": [entry(4, rename=MPS, devices=[3])]},
        },
    ),
    "all kept back": build_config(devices={"exclude": [0, 1, 2, 3]}),
}


class Planning:
    """Calls ``nvdp plan`` on this node, in this process."""

    def __init__(self, root: Path, kubelet: Kubelet, machine, capsys) -> None:
        self._root = root
        self._kubelet = kubelet
        self._machine = machine
        self._capsys = capsys

    def text(self, config, *flags: str) -> str:
        code, out, err = self.run(config, *flags)
        assert (code, err) == (0, "")
        return out

    def json(self, config, *flags: str) -> dict:
        return json.loads(self.text(config, "--json", *flags))

    def offline(self, config) -> dict:
        """The same question about the node file alone."""
        return json.loads(self._call("--config", self._write(config), "--node", str(self._machine.path), "--json")[1])

    def run(self, config, *flags: str) -> tuple[int, str, str]:
        return self._call(
            *("--config", self._write(config)),
            *("--kubelet-root", str(self._kubelet.directory.parent)),
            *("--simulated-node", str(self._machine.path)),
            *("--state-dir", str(self._root / "state"), "--run-dir", str(self._root / "run")),
            *("--mps-dir", str(self._root / "mps")),
            *flags,
        )

    def _call(self, *arguments: str) -> tuple[int, str, str]:
        code = main(["plan", *arguments])
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err

    def _write(self, config) -> str:
        path = self._root / "planned.yaml"
        path.write_text(yaml.safe_dump(config))
        return str(path)


@pytest.fixture
def plan(root, unstarted_kubelet, machine, capsys) -> Planning:
    return Planning(root, unstarted_kubelet, machine, capsys)


def healthy_of(answer):
    """What is Healthy by the plan: the number of devices of each GPU, by resource."""
    found = {}
    for row in answer["resources"]:
        for one in row["devices"]:
            if one["healthy"]:
                found.setdefault(row["resource"], {})[one["uuid"]] = one["healthy"]
    return found


def healthy_at(kubelet):
    """The same at the kubelet."""
    found = {}
    for resource in (GPU, SHARED, A10, MPS):
        for device_id in healthy(kubelet, resource):
            counts = found.setdefault(resource, {})
            uuid = device_id.partition("::")[0]
            counts[uuid] = counts.get(uuid, 0) + 1
    return found


def wait_as_planned(kubelet, answer):
    wanted = healthy_of(answer)
    kubelet.wait_until(lambda: healthy_at(kubelet) == wanted, LIMIT_S, what=f"{wanted}")


def leave_out_time(answer):
    """What a node file and the node must agree on."""
    return [
        [
            (row["resource"], row["replicas"], row["advertised"], row["rule"], row["withheld"])
            for row in answer["resources"]
        ],
        answer["leftOut"],
        answer["warnings"],
    ]


@pytest.mark.campaign
def test_what_the_kubelet_gets_is_what_was_planned_for_each_file(kubelet, start, plan, config_map, keeper):
    start(FILES["all sliced"], wait=True)
    for config in list(FILES.values())[:: 1 if FULL else 2]:
        offline, live = plan.offline(config), plan.json(config)
        assert leave_out_time(offline) == leave_out_time(live)
        assert healthy_of(offline) == healthy_of(live)
        assert live["toldBy"] == "nvdp"
        config_map.publish(config)
        wait_as_planned(kubelet, live)


@pytest.mark.campaign
def test_it_is_so_too_while_pods_hold_what_they_got_before(kubelet, start, plan, config_map):
    start(FILES["all sliced"], wait=True)
    held = {one for name in ("a", "b") for one in kubelet.admit(name, {"main": {GPU: 1}}).ids(GPU)}
    for config in list(reversed(FILES.values()))[:: 1 if FULL else 2]:  # those that are left out above
        offline, live = plan.offline(config), plan.json(config)
        assert leave_out_time(offline) == leave_out_time(live)
        config_map.publish(config)
        wait_as_planned(kubelet, live)
        assert held <= kubelet.devices(GPU).keys()


def test_what_waits_for_pods_is_planned_as_it_comes(kubelet, start, plan, config_map):
    start(FILES["nothing"], wait=True)
    pod = kubelet.admit("team-a/train-7", {"main": {GPU: 1}})
    (held,) = pod.ids(GPU)
    config = FILES["renamed"]
    answer = plan.json(config)
    assert {
        "uuid": held,
        "before": {"resource": GPU, "shared": False},
        "after": {"resource": SHARED, "shared": True},
    } | {
        "how": "waits",
        "daemon": None,
        "holders": ["team-a/train-7"],
    } in answer["changes"]["devices"]
    assert answer["changes"]["resources"] == [
        {"resource": GPU, "before": 4, "after": 0},
        {"resource": SHARED, "before": 0, "after": 8},
    ]
    text = plan.text(config)
    waits = f"{held[:12]}  {GPU} → {SHARED}  waits: held by team-a/train-7 (allocation.modeChange: when-free)"
    assert waits in text.splitlines()
    assert "DEVICES and ADVERTISED are the goal, HEALTHY is what is offered now" in text

    config_map.publish(config)
    wait_as_planned(kubelet, answer)
    kubelet.delete(pod)
    wait_healthy(kubelet, {one for number in range(4) for one in replicas(number, 2)}, resource=SHARED)
    assert plan.json(config)["changes"] == UNCHANGED


def test_the_file_that_runs_changes_nothing(kubelet, start, plan, daemon):
    daemon.wait_ready()
    kubelet.admit("team-a/nb-1", {"main": {GPU: 1}})
    config = build_config(share=4)
    assert "CHANGES AGAINST WHAT RUNS NOW\nnothing changes\n" in plan.text(config) + "\n"
    assert plan.json(config)["changes"] == UNCHANGED


@on_node(machine={"count": 2})
def test_a_card_that_has_vanished_and_is_still_listed_is_no_change(kubelet, start, plan, machine):
    config = build_config()
    started = start(config, wait=True)
    machine.change(removed=["1"])
    wait_healthy(kubelet, {gpu_uuid(0)})
    started.log.wait_for("DeviceUnhealthy")
    answer = plan.json(config)
    assert answer["changes"] == UNCHANGED
    assert [(one["uuid"], one["why"]) for one in answer["leftOut"]] == [(gpu_uuid(1), "unhealthy")]
    assert answer["leftOut"][0]["text"].startswith("Vanished: ")


def test_what_an_index_meant_when_it_was_applied_counts_for_the_plan_too(kubelet, start, plan, machine):
    config = build_config(devices={"exclude": [1]})
    start(config, wait=True)
    others = {gpu_uuid(number) for number in (0, 2, 3)}
    wait_healthy(kubelet, others)
    machine.change(removed=["0"])
    wait_healthy(kubelet, others - {gpu_uuid(0)})
    assert [one["uuid"] for one in plan.json(config)["leftOut"] if one["why"] == "excluded"] == [gpu_uuid(1)]
    assert [one["uuid"] for one in plan.offline(config)["leftOut"]] == [gpu_uuid(2)], "which knows nothing of it"


# without our daemon: who else is there


@pytest.fixture
def other_plugin(kubelet):
    """NVIDIA's, as far as the kubelet can tell: four cards, three times each."""
    ids = [one for number in range(4) for one in sorted(replicas(number, 3))]
    with ReferencePlugin(kubelet.directory, name="nvidia-gpu.sock", listed=[device(one) for one in ids]) as plugin:
        plugin.register()
        kubelet.wait_until(lambda: len(healthy(kubelet)) == 12, LIMIT_S, what="its list")
        yield plugin


def traces(root, kubelet):
    """All files and sockets around, and how often the kubelet was registered with."""
    files = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.name != "planned.yaml")
    return files, len(kubelet.registrations)


def test_a_move_with_the_same_file_keeps_every_id(kubelet, other_plugin, plan, root):
    kubelet.admit("team-a/nb-1", {"main": {GPU: 1}})
    before = traces(root, kubelet)
    text = plan.text(build_config(share=3), "--compare")
    assert "the same 12 IDs under the same names: nothing changes for pods that run or wait" in text.splitlines()
    answer = plan.json(build_config(share=3), "--compare")
    assert answer["comparison"]["same"] is True
    assert answer["changes"] == UNCHANGED
    assert answer["toldBy"] == "pod-resources"
    assert traces(root, kubelet) == before


@both_kubelets
def test_a_move_with_another_file_names_the_pods_whose_ids_go(kubelet, other_plugin, plan, version):
    pod = kubelet.admit("team-a/nb-1", {"main": {GPU: 1}})
    (held,) = pod.ids(GPU)
    answer = plan.json(FILES["renamed"], "--compare")["comparison"]
    assert answer["resources"] == [
        {"resource": GPU, "now": 12, "after": 0, "same": 0, "unhealthy": 0, "new": 0, "gone": 12},
        {"resource": SHARED, "now": 0, "after": 8, "same": 0, "unhealthy": 0, "new": 8, "gone": 0},
    ]
    assert answer["vanishing"] == [GPU]
    assert answer["held"] == [
        {
            "resource": GPU,
            "id": held,
            "holder": "team-a/nb-1",
            "fate": "goes",
            "text": "listed as Unhealthy until the pod ends",
        }
    ]
    lines = plan.text(FILES["renamed"], "--compare").splitlines()
    assert f"{GPU} vanishes: pods that ask for it stay Pending" in lines
    assert f"team-a/nb-1  {GPU}  {held}  keeps running; listed as Unhealthy until the pod ends" in lines


def test_what_another_plugin_offers_is_what_changes_are_against(kubelet, other_plugin, plan):
    text = plan.text(build_config())
    assert "CHANGES AGAINST WHAT RUNS NOW  (by the kubelet's word, without what is Unhealthy)" in text
    assert f"\n{GPU}  12 → 4\n" in text
    assert "note: " in text
    assert "control.sock" in text


def test_without_pod_resources_the_checkpoint_tells(kubelet, other_plugin, plan):
    pod = kubelet.admit("team-a/nb-1", {"main": {GPU: 1}})
    kubelet.drop_pod_resources()
    answer = plan.json(build_config(share=3), "--compare")
    assert (answer["toldBy"], answer["comparison"]["same"]) == ("checkpoint", True)
    whole = plan.json(build_config())
    assert [one["holders"] for one in whole["changes"]["devices"] if one["how"] == "waits"] == [[pod.uid]]
    assert any("pod-resources" in note for note in whole["notes"])


def test_where_nobody_tells_what_runs_the_plan_says_so_and_a_comparison_is_impossible(plan, root):
    answer = plan.json(build_config())
    assert (answer["toldBy"], answer["changes"]) == (None, UNCHANGED | {"resources": None})
    assert "which pods hold GPUs is unknown: what waits for them is not shown" in answer["notes"]
    assert "what is advertised now is unknown; the notes say why" in plan.text(build_config())
    code, out, err = plan.run(build_config(), "--compare")
    assert (code, out) == (1, "")
    assert err.startswith("nothing to compare with: ")
    assert err.count("\n") == 1
    assert sorted(path.name for path in root.iterdir()) == ["node.yaml", "planned.yaml"]


def test_a_state_that_cannot_be_read_is_a_note_and_stays_where_it_is(kubelet, other_plugin, plan, root):
    (root / "state").mkdir()
    (root / "state" / "state.json").write_text("{")
    answer = plan.json(build_config(share=3))
    assert any("state.json: cannot be used" in note for note in answer["notes"])
    assert [path.name for path in (root / "state").iterdir()] == ["state.json"]


def test_a_kubelet_that_has_just_started_is_pointed_out(kubelet, other_plugin, plan):
    assert any(note.startswith("the kubelet started ") for note in plan.json(build_config())["notes"])


def list_paths(value, before=""):
    """The paths of all leaves, as jq takes them; of what is null that of the value itself."""
    if isinstance(value, dict):
        return {path for key, inner in value.items() for path in list_paths(inner, f"{before}.{key}")}
    if isinstance(value, list):
        return {path for inner in value for path in list_paths(inner, f"{before}[]")}
    return {before}


def test_the_page_has_every_key_of_the_json(kubelet, other_plugin, plan):
    config = build_config(
        devices={"cordon": [7], "exclude": [0]},
        resources={"gpus": [{"pattern": "*", "name": A10}]},
        sharing={
            "timeSlicing": {"resources": [{"name": A10, "rename": SHARED, "devices": [1], "replicas": 2}]},
            "mps": {"resources": [{"name": A10, "rename": MPS, "devices": [2], "replicas": 61}]},
        },
    )
    kubelet.admit("team-a/all", {"main": {GPU: 12}})
    found = list_paths(plan.json(config, "--compare"))
    page = PAGE.read_text().partition("## JSON\n")[2]
    documented = {
        span for row in re.findall(r"^\| (`.*?`) \|", page, re.MULTILINE) for span in row.strip("`").split("`, `")
    }
    nothing = {path for path in found if any(other.startswith(f"{path}.") for other in found)}
    # Of control daemons that run and are to change; tests/planning/test_mps_changes.py has some.
    of_daemons = {f".changes.daemons[].{key}" for key in ("resource", "text", "how", "holders[]")}
    assert found - nothing == documented - of_daemons
    assert of_daemons <= documented


def test_where_nvdp_mps_does_not_run_a_plan_warns_of_what_it_would_keep_from_being_offered(plan, kubelet):
    warnings = plan.json(FILES["four ways"])["warnings"]
    assert sum(f"until it does {MPS} cannot be offered" in warning for warning in warnings) == 1
