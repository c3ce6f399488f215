"""``nvdp plan`` on node files: the text, the JSON, the exit codes, and what it must not cost."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from nvdp.__main__ import main
from tests.host.layouts import build_tree

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/plan.md").read_text()
MIXED = str(ROOT / "config/mixed-node.yaml")
TOO_MANY_CLIENTS = "sharing: {mps: {resources: [{name: gpu, replicas: 61}]}}"
SLICED = """\
sharing:
  timeSlicing:
    resources:
    - {name: nvidia.com/gpu, replicas: 4}
"""


@pytest.fixture
def nvdp(capsys):
    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(["plan", *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


@pytest.fixture
def write(tmp_path):
    """A file of this text: its path."""

    def write_file(text: str, name: str = "config.yaml") -> str:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write_file


def test_the_commented_example_looks_as_the_contract_shows_it(nvdp):
    code, out, err = nvdp("--config", MIXED, "--node", "a100-t400", "--device-list-strategy", "envvar")
    assert (code, err) == (0, "")
    head, *lines = out.splitlines()
    assert head.startswith("node a100-t400   9 GPUs found, 8 ours   configuration sha256:")
    assert head.endswith("  (mixed-node.yaml)")
    limits = "(50 % threads, 18 GiB per client)"
    assert lines[:9] == [
        "",
        "RESOURCE               DEVICES  REPLICAS  ADVERTISED  HEALTHY  RULE",
        'nvidia.com/gpu               5         1           5        4  resources.gpus[0] "*"',
        "nvidia.com/gpu.shared        2        10          20       20  sharing.timeSlicing.resources[0]",
        "nvidia.com/gpu.mps           1         4           4        4  sharing.mps.resources[0]  " + limits,
        "",
        "LEFT OUT",
        "0000:02:00.0  NVIDIA T400 4GB        excluded  devices.exclude[0]",
        "GPU-662077db  NVIDIA A100-SXM4-80GB  cordoned  devices.cordon[0]   listed Unhealthy under nvidia.com/gpu",
    ]
    assert all(line.startswith("warning: ") for line in lines[10:])


def test_json_has_all_that_the_text_has_and_more(nvdp):
    code, out, _ = nvdp("--config", MIXED, "--node", "a100-t400", "--device-list-strategy", "envvar", "--json")
    assert code == 0
    answer = json.loads(out)
    assert list(answer) == [
        "node",
        "configuration",
        "resources",
        "leftOut",
        "toldBy",
        "changes",
        "comparison",
        "warnings",
        "notes",
    ]
    assert answer["node"] == {"name": "a100-t400", "platform": "nvml", "gpusFound": 9, "gpusOurs": 8}
    assert answer["configuration"]["source"] == MIXED
    assert [(row["resource"], row["advertised"], row["healthy"]) for row in answer["resources"]] == [
        ("nvidia.com/gpu", 5, 4),
        ("nvidia.com/gpu.shared", 20, 20),
        ("nvidia.com/gpu.mps", 4, 4),
    ]
    mps = answer["resources"][2]
    assert mps == {
        "resource": "nvidia.com/gpu.mps",
        "strategy": "mps",
        "replicas": 4,
        "advertised": 4,
        "healthy": 4,
        "rule": "sharing.mps.resources[0]",
        "pattern": None,
        "withheld": None,
        "devices": [
            {
                "uuid": "GPU-c5d38f6e-92a1-4b7c-8e0d-64f3a9b2c518",
                "index": 5,
                "pci": "0000:87:00.0",
                "product": "NVIDIA A100-SXM4-80GB",
                "parent": None,
                "instance": None,
                "profile": None,
                "healthy": 4,
                "mpsThreadPercent": 50,
                "mpsMemoryMib": 18432,
            }
        ],
    }
    assert answer["leftOut"][1] == {
        "uuid": "GPU-662077db-fa3f-0d8f-9502-21ab0ef058a2",
        "pci": "0000:90:00.0",
        "product": "NVIDIA A100-SXM4-80GB",
        "profile": None,
        "why": "cordoned",
        "path": "devices.cordon[0]",
        "text": None,
        "listedAs": "nvidia.com/gpu",
    }
    assert (answer["toldBy"], answer["changes"], answer["comparison"]) == (None, None, None)
    text = nvdp("--config", MIXED, "--node", "a100-t400", "--device-list-strategy", "envvar")[1]
    remarks = [*(f"warning: {one}" for one in answer["warnings"]), *(f"note: {one}" for one in answer["notes"])]
    assert text.endswith("\n".join(["", *remarks, ""]))


def test_without_a_file_flags_environment_and_defaults_are_judged(nvdp, monkeypatch, write):
    code, out, _ = nvdp("--node", "t4")
    assert code == 0
    assert out.splitlines()[0].endswith("(flags and environment)")
    assert out.splitlines()[3] == "nvidia.com/gpu        1         1           1        1  default"
    monkeypatch.setenv("CONFIG_FILE", write(SLICED))
    assert nvdp("--node", "t4")[1].splitlines()[0].endswith("(config.yaml)")
    other = write("", "other.yaml")
    assert nvdp("--node", "t4", "--config", other)[1].splitlines()[0].endswith("(other.yaml)")


def test_the_standard_input_is_a_file_too(nvdp, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SLICED.encode())))
    code, out, _ = nvdp("--config", "-", "--node", "t4", "--json")
    assert code == 0
    assert json.loads(out)["configuration"]["source"] == "stdin"
    assert json.loads(out)["resources"][0]["advertised"] == 4


def test_an_exported_node_is_as_good_as_the_node(nvdp, capsys, tmp_path, write):
    assert main(["devices", "--simulated-node", "mixed", "--export"]) == 0
    (tmp_path / "gpu-a3.yaml").write_text(capsys.readouterr().out)
    config = write(SLICED)
    code, out, _ = nvdp("--config", config, "--node", str(tmp_path / "gpu-a3.yaml"), "--json")
    assert code == 0
    exported, bundled = json.loads(out), json.loads(nvdp("--config", config, "--node", "mixed", "--json")[1])
    assert exported["node"].pop("name") == "gpu-a3"
    assert bundled["node"].pop("name") == "mixed"
    assert exported == bundled


def test_cards_that_ail_are_shown_with_the_cause(nvdp, write):
    machine = """\
        gpus: [{model: t4, count: 3}]
        faults: [{call: nvmlDeviceGetName, gpu: 1, error: GpuIsLost}, {call: nvmlDeviceGetUUID, gpu: 2, error: 999}]
        """
    code, out, _ = nvdp("--node", write(machine, "ill.yaml"))
    assert code == 0
    head, _, _, row, _, title, lost, unreadable = out.splitlines()
    assert head.startswith("node ill   3 GPUs found, 3 ours")
    assert row.split() == ["nvidia.com/gpu", "2", "1", "2", "1", "default"]
    assert title == "LEFT OUT"
    assert "  unhealthy  " in lost
    assert "listed Unhealthy under nvidia.com/gpu: Lost: nvmlDeviceGetName: the GPU has fallen off the bus" in lost
    assert unreadable.startswith("0000:20:00.0  ?")
    assert "unreadable" in unreadable
    assert "index 2: nvmlDeviceGetUUID: the driver reports an internal error" in unreadable


@pytest.mark.parametrize(
    ("config", "machine"),
    [("devices: {exclude: [0]}", "t4"), (TOO_MANY_CLIENTS, "t4"), ("", "none.yaml")],
)
def test_an_empty_outcome_is_said_in_so_many_words(nvdp, write, config, machine):
    if machine == "none.yaml":
        machine = write("gpus: []", machine)
    code, out, _ = nvdp("--config", write(config), "--node", machine)
    assert code == 0
    assert "nothing to advertise" in out.splitlines()


# exit codes


@pytest.mark.parametrize(
    "doubtful",
    [
        "devices: {exclude: [0]}",
        "devices: {cordon: [7]}",
        TOO_MANY_CLIENTS,
        'resources: {gpus: [{pattern: "T4", name: nvidia.com/t4}]}',
    ],
)
def test_what_is_withheld_or_named_in_vain_is_exit_code_3_only_if_asked_for(nvdp, write, doubtful):
    config = write(doubtful)
    assert nvdp("--config", config, "--node", "t4")[0] == 0
    assert nvdp("--config", config, "--node", "t4", "--strict")[0] == 3


TWO_RESOURCES = SLICED.replace("replicas: 4", "rename: nvidia.com/gpu.shared, devices: [0], replicas: 4")


def test_a_container_that_could_ask_for_two_resources_is_warned_of(nvdp, write):
    config = write(TWO_RESOURCES)
    told = "warning: nvidia.com/gpu, nvidia.com/gpu.shared: a container that asks for two of them"
    assert told in nvdp("--config", config, "--node", "dgx-h100")[1]
    answer = json.loads(nvdp("--config", config, "--node", "dgx-h100", "--json")[1])
    assert [f"warning: {text}".startswith(told) for text in answer["warnings"]] == [True]


@pytest.mark.parametrize("fine", ["", SLICED, "devices: {cordon: [0]}", TWO_RESOURCES])
def test_what_is_as_it_is_meant_is_exit_code_0_also_under_strict(nvdp, write, fine):
    assert nvdp("--config", write(fine), "--node", "t4", "--strict")[0] == 0


def test_a_file_that_is_not_valid_is_exit_code_2_with_every_problem(nvdp, write):
    config = write("migstrategy: none\nflags: {renameByDefault: true}\n")
    code, out, err = nvdp("--config", config, "--node", "t4")
    assert (code, out) == (2, "")
    assert [line.partition(": ")[2].partition(":")[0] for line in err.splitlines()] == [
        "migstrategy",
        "flags.renameByDefault",
    ]


def test_a_file_that_the_node_cannot_take_is_exit_code_2_with_the_words_of_the_daemon(nvdp, write):
    config = write(SLICED.replace("4", "70000"))
    code, out, err = nvdp("--config", config, "--node", "dgx-h100")
    assert (code, out) == (2, "")
    assert err == (
        f"{config}:4:40: sharing.timeSlicing.resources[0].replicas: "
        "8 × 70000 devices make a list of 36 MiB; 2 MiB is allowed, at most 3988 replicas here\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--node", "nowhere"], 1, "nowhere: there is no such node file, and no node of that name; there are a10"),
        (["--config", "/nonexistent.yaml", "--node", "t4"], 1, "/nonexistent.yaml: cannot be read: there is no such"),
        (["--config", "/tmp", "--node", "t4"], 1, "/tmp: is a directory; a file is needed"),
        (["--node", "t4", "--compare"], 2, "nvdp plan: --compare is against what runs on this node; leave out --node"),
        (["--node", "t4", "--metrics-port", "x"], 2, 'flag --metrics-port: "x" is not a number'),
        (["extra"], 2, "nvdp plan: Got unexpected extra argument (extra)"),
        (
            ["--container-driver-root", "/nonexistent"],
            1,
            "libnvidia-ml.so.1 not found under / (searched 7 directories)",
        ),
    ],
)
def test_what_keeps_it_from_an_answer_is_one_line(nvdp, arguments, code, told):
    ended, out, err = nvdp(*arguments)
    assert (ended, out) == (code, "")
    assert err.startswith(told)
    assert err.count("\n") == 1


def test_a_driver_that_cannot_be_asked_is_no_end_of_planning(nvdp):
    err = nvdp("--container-driver-root", "/nonexistent")[2]
    assert "nvdp plan --node FILE" in err
    assert "nvdp devices --export" in err


def test_a_node_file_that_is_no_good_is_exit_code_1_with_the_place(nvdp, write):
    path = write("gpus: [{model: t4, count: 0}]", "bad.yaml")
    assert nvdp("--node", path) == (1, "", f"{path}: gpus[0].count: must be 1 or more, not 0\n")


def test_a_machine_without_a_driver_is_exit_code_1(nvdp, write):
    code, out, err = nvdp("--node", write("driver: {state: missing}\ngpus: [{model: t4}]", "new.yaml"))
    assert (code, out) == (1, "")
    assert err.count("\n") == 1


# what containers would be handed

BY_CDI = "flags: {plugin: {deviceListStrategy: cdi-cri, nvidiaCTKPath: /usr/bin/hook}}"
DRIVER = """
usr/lib64/libcuda.so.535.54.03
usr/lib64/libnvidia-ml.so.535.54.03
usr/bin/hook*
"""
WSL2 = "platform: wsl\ngpus: [{model: t4, count: 2}]"


def test_on_a_node_it_says_whether_the_cdi_specs_can_be_written_and_writes_none(nvdp, write, tmp_path):
    driver = build_tree(tmp_path / "driver", DRIVER)
    machine = write("driver: {version: 535.54.03}\ngpus: [{model: t4, count: 3}]", "node.yaml")
    shared = ("--config", write(BY_CDI), "--simulated-node", machine, "--strict")
    places = [f"--{name}={tmp_path / name}" for name in ("run-dir", "state-dir", "kubelet-root", "cdi-dir")]
    by_driver = f"--container-driver-root={driver}"
    assert [nvdp(*shared, *places, by_driver)[0], (tmp_path / "cdi-dir").exists()] == [0, False]

    (driver / "usr/bin/hook").unlink()
    code, out, _ = nvdp(*shared, *places, by_driver)
    assert code == 3
    assert "warning: /usr/bin/hook: no such program on this node" in out
    assert "LEFT OUT" not in out

    (tmp_path / "cdi-dir").touch()
    code, out, _ = nvdp(*shared, *places, by_driver)
    assert code == 3
    (warning,) = [line for line in out.splitlines() if "CDIMissing: " in line]
    assert warning.startswith(f"warning: CDIMissing: {tmp_path / 'cdi-dir'}: cannot be read: Not a directory")
    assert warning.endswith("; 3 devices take no new pods (index 0, 1, 2)")
    assert out.count("  unhealthy    listed Unhealthy under nvidia.com/gpu: CDIMissing\n") == 3


def test_from_a_node_file_nobody_can_tell_whether_the_specs_can_be_written_and_a_note_says_so(nvdp, write):
    code, out, _ = nvdp("--config", write(BY_CDI), "--node", "t4", "--strict")
    assert code == 0
    assert "note: flags.plugin.deviceListStrategy: whether the CDI specs can be written, the node alone can tell" in out
    assert "CDI specs" not in nvdp("--node", "t4")[1]


def test_flags_that_run_would_warn_of_are_a_warning_here_too(nvdp):
    code, out, _ = nvdp("--node", "t4", "--cdi-disable-hooks", "update-ldcash", "--strict")
    assert code == 3
    assert "warning: --cdi-disable-hooks: update-ldcash is not known and has no effect" in out


def test_a_platform_on_which_all_gpus_are_one_device_is_named(nvdp, write):
    machine = write(WSL2, "wsl.yaml")
    assert nvdp("--node", machine)[1].startswith("node wsl   WSL2   1 GPU found, 1 ours")
    assert json.loads(nvdp("--node", machine, "--json")[1])["node"]["platform"] == "wsl"


# what it says of large and unusual nodes


def test_short_names_are_used_only_while_they_tell_cards_apart(nvdp, write):
    twins = [f"GPU-12345678-0000-0000-0000-00000000000{number}" for number in range(2)]
    machine = write(f"gpus: [{{model: t4, count: 2, uuid: [{', '.join(twins)}]}}]", "twins.yaml")
    out = nvdp("--config", write("devices: {cordon: [1]}"), "--node", machine)[1]
    assert f"\n{twins[1]}  Tesla T4  cordoned" in out


def test_no_library_is_loaded_that_a_node_file_does_not_need():
    code = "import sys; from nvdp.__main__ import main; main(['plan', '--node', 't4']); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    loaded = done.stdout.splitlines()[-1]
    for heavy in ("grpc", "google.protobuf", "pynvml", "rich", "prometheus_client", "watchdog", "http.client"):
        assert f"'{heavy}'" not in loaded


# the page


def test_the_page_shows_what_is_printed(nvdp, monkeypatch):
    monkeypatch.chdir(ROOT)
    command, shown = re.findall(r"^```\n(.*?)```$", PAGE, re.MULTILINE | re.DOTALL)[:2]
    code, out, err = nvdp(*command.split()[2:])
    assert (code, err) == (0, "")
    assert out == shown


def test_mig_devices_are_shown_as_a_tree_under_their_gpus(nvdp, write):
    config = write("flags: {migStrategy: mixed, plugin: {deviceListStrategy: cdi-cri}}\n")
    code, text, _ = nvdp("--config", config, "--node", "h200-mig")
    assert code == 0
    assert "nvidia.com/mig-1g.18gb           7         1           7        7  default" in text
    tree = text[text.index("\nMIG\n") :].splitlines()[2:]
    assert tree[0].split()[0] == "2"
    assert tree[0].endswith("NVIDIA H200   6 × 1g.18gb, 1 × 1g.18gb+me")
    assert tree[7].split()[0] == "2:6"
    assert [line.split()[0] for line in tree[:8]] == ["2", *(f"2:{number}" for number in range(7))]
    assert tree[7].endswith("  1g.18gb+me  nvidia.com/mig-1g.18gb.me")
    assert len({line.index("nvidia.com/") for line in tree if "nvidia.com/" in line}) == 1
    answer = json.loads(nvdp("--config", config, "--node", "h200-mig", "--json")[1])
    (row,) = [one for one in answer["resources"] if one["resource"] == "nvidia.com/mig-3g.71gb"]
    (device,) = row["devices"]
    assert (device["index"], device["instance"], device["profile"]) == (3, 0, "3g.71gb")
    assert device["parent"].startswith("GPU-")


def test_gpus_in_mig_mode_under_none_and_with_another_mode_pending_say_what_that_means(nvdp, write):
    assert "; offered whole (migStrategy none)\n" in nvdp("--node", "h200-mig")[1]
    pending = write("gpus: [{model: a100-sxm4-40gb, mig: disabled, migPending: enabled}]", "pending.yaml")
    assert "MIG mode enabled is pending: needs a GPU reset: nvdp pause" in nvdp("--node", pending)[1]


def test_mig_devices_of_one_gpu_that_are_left_out_for_the_same_are_one_line(nvdp, write):
    out = nvdp("--config", write("flags: {migStrategy: single}\n"), "--node", "h200-mig")[1]
    lines = out[out.index("LEFT OUT\n") :].split("\n\n")[0].splitlines()[1:]
    assert len(lines) == len(set(lines)) == len({line.split()[0] for line in lines})
    assert any("6 × 1g.18gb, 1 × 1g.18gb+me  " in line for line in lines)
    assert "not on offer: MIGInvalid" in out


def test_mps_on_mig_devices_names_the_gpu_and_the_word_to_look_up(nvdp, write):
    config = "flags: {migStrategy: mixed}\nsharing: {mps: {resources: [{name: nvidia.com/mig-3g.71gb, replicas: 2}]}}\n"
    out = nvdp("--config", write(config), "--node", "h200-mig")[1]
    assert "not on offer: MPSUnsupported" in out
    assert " GPU-" in out[out.index("LEFT OUT") :]
    assert "MIG-" not in "".join(line.partition("withheld")[2] for line in out.splitlines())
