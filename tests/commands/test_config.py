"""``nvdp config`` as people use it: output, errors, exit codes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from nvdp.__main__ import main

ROOT = Path(__file__).parents[2]
NVDP = [sys.executable, "-m", "nvdp"]
GOOD = "version: v1\n"
BAD = "version: v2\nflags:\n  other: 1\n"


@pytest.fixture
def file(tmp_path: Path):
    def write(text: str, name: str = "f.yaml") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def test_a_valid_file_is_said_to_be_valid(file, capsys):
    path = file(GOOD)
    assert main(["config", "check", path]) == 0
    assert capsys.readouterr() == (f"{path}: valid\n", "")


def test_an_invalid_file_gives_all_its_errors_on_stderr(file, capsys):
    path = file(BAD)
    assert main(["config", "check", path]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(": ")[0] for line in err.splitlines()] == [f"{path}:1:10", f"{path}:3:3"]


def test_warnings_are_shown_and_do_not_make_a_file_invalid(file, capsys):
    path = file("flags: {gdsEnabled: yes,\n  gdrcopyEnabled: no}\n")
    assert main(["config", "check", path]) == 0
    out, err = capsys.readouterr()
    assert out == f"{path}: valid\n"
    assert err.splitlines() == [
        f"{path}:1:21: warning: flags.gdsEnabled: yes is read as true; write true",
        f"{path}:2:19: warning: flags.gdrcopyEnabled: no is read as false; write false",
    ]


@pytest.mark.parametrize(
    ("files", "code"),
    [(["good"], 0), (["good", "bad"], 2), (["missing"], 1), (["bad", "missing"], 2), (["missing", "good"], 1)],
)
def test_the_exit_code_of_several_files_is_that_of_the_worst(file, tmp_path: Path, capsys, files, code):
    paths = {"good": file(GOOD, "good"), "bad": file(BAD, "bad"), "missing": str(tmp_path / "missing")}
    assert main(["config", "check", *(paths[name] for name in files)]) == code
    out, err = capsys.readouterr()
    assert all(name in out + err for name in files)


DANGEROUS = "sharing:\n  timeSlicing:\n    resources:\n    - {name: gpu, replicas: 1}\n"
NOTE = "flags:\n  gfd: {sleepInterval: 5}\nallocation: {numaHints: false}\n"


def test_what_is_dangerous_to_go_back_with_is_a_line_each_then_the_verdict(file, capsys):
    path = file(NOTE + DANGEROUS)
    assert main(["config", "check", "--target", "nvidia", path]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"{path}:2:24: note: flags.gfd.sleepInterval: NVIDIA's plugin reads a bare number as nanoseconds; write 5s",
        f"{path}:3:25: note: allocation.numaHints: NVIDIA's plugin ignores it and tells the kubelet NUMA nodes",
        (
            f"{path}:7:29: dangerous: sharing.timeSlicing.resources[0].replicas: NVIDIA's plugin does not start: "
            "2 replicas are the least; leave the entry out"
        ),
        f"{path}: valid; going back to NVIDIA's plugin is dangerous (1 dangerous, 2 notes)",
    ]
    assert [line for line in lines if "dangerous: " in line] == lines[2:3]
    assert [line for line in lines if "note: " in line] == lines[:2]


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (GOOD, "valid, and means the same to NVIDIA's plugin"),
        (NOTE, "valid; going back to NVIDIA's plugin is not dangerous (0 dangerous, 2 notes)"),
        (
            "flags: {failOnInitError: true}\n",
            "valid; going back to NVIDIA's plugin is not dangerous (0 dangerous, 1 note)",
        ),
    ],
    ids=["same", "notes", "note"],
)
def test_a_file_without_danger_passes_whatever_else_there_is_to_note(file, capsys, text, verdict):
    path = file(text)
    assert main(["config", "check", "--target=nvidia", path]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{path}: {verdict}"


def test_warnings_are_shown_on_stderr_beside_the_differences(file, capsys):
    path = file("flags: {gdsEnabled: yes}\ndevices: {exclude: [0]}\n")
    assert main(["config", "check", "--target", "nvidia", path]) == 3
    out, err = capsys.readouterr()
    assert f"{path}:1:21: warning: flags.gdsEnabled: yes is read as true; write true" in err.splitlines()
    assert ": warning: " not in out


@pytest.mark.parametrize(
    ("files", "code"),
    [
        (["note", "dangerous"], 3),
        (["dangerous", "good"], 3),
        (["dangerous", "bad"], 2),
        (["missing", "dangerous"], 1),
        (["missing", "bad", "dangerous"], 2),
    ],
)
def test_a_file_that_could_not_be_judged_is_worse_than_a_dangerous_one(file, tmp_path: Path, capsys, files, code):
    paths = {
        "good": file(GOOD, "good"),
        "note": file(NOTE, "note"),
        "dangerous": file(DANGEROUS, "dangerous"),
        "bad": file(BAD, "bad"),
        "missing": str(tmp_path / "missing"),
    }
    assert main(["config", "check", "--target", "nvidia", *(paths[name] for name in files)]) == code
    out, err = capsys.readouterr()
    assert all(paths[name] in out + err for name in files)


def test_what_is_dangerous_elsewhere_is_valid_where_nobody_asks(file, capsys):
    path = file(DANGEROUS)
    assert main(["config", "check", path]) == 0
    assert capsys.readouterr().out == f"{path}: valid\n"


def test_a_target_that_nobody_knows_is_wrong_usage(file, capsys):
    assert main(["config", "check", "--target", "amd", file(GOOD)]) == 2
    assert "nvidia" in capsys.readouterr().err


def test_check_as_json_says_of_each_file_what_the_lines_say(file, tmp_path: Path, capsys):
    paths = [file(NOTE + DANGEROUS, "1"), file(BAD, "2"), str(tmp_path / "3"), file("flags: {gdsEnabled: yes}\n", "4")]
    assert main(["config", "check", "--json", "--target", "nvidia", *paths]) == 2
    out, err = capsys.readouterr()
    assert err == ""
    dangerous, bad, missing, good = json.loads(out)["files"]
    assert [it["file"] for it in (dangerous, bad, missing, good)] == paths
    assert [it["verdict"] for it in (dangerous, bad, missing, good)] == ["dangerous", "invalid", "unreadable", "valid"]
    assert [(it["effect"], it["line"], it["column"]) for it in dangerous["differences"]] == [
        ("note", 2, 24),
        ("note", 3, 25),
        ("dangerous", 7, 29),
    ]
    assert dangerous["differences"][2]["path"] == "sharing.timeSlicing.resources[0].replicas"
    assert dangerous["differences"][2]["message"].startswith("NVIDIA's plugin does not start: ")
    assert [it["path"] for it in bad["errors"]] == ["version", "flags.other"]
    assert "cannot be read" in missing["errors"][0]["message"]
    assert [it["path"] for it in good["warnings"]] == ["flags.gdsEnabled"]
    assert (good["differences"], "differences" in bad) == ([], False)


def test_check_as_json_without_a_target_has_no_differences(file, capsys):
    assert main(["config", "check", "--json", file("\nflags: {useNodeFeatureAPI: false}\n")]) == 0
    (checked,) = json.loads(capsys.readouterr().out)["files"]
    assert "differences" not in checked


@pytest.mark.parametrize("kind", ["directory", "missing", "nul"])
def test_a_file_that_cannot_be_read_is_one_clear_line(tmp_path: Path, capsys, kind):
    path = {"directory": str(tmp_path), "missing": str(tmp_path / "missing"), "nul": "a\0b"}[kind]
    assert main(["config", "check", path]) == 1
    err = capsys.readouterr().err
    assert "cannot be read" in err
    assert err.count("\n") == 1


def test_a_dash_is_the_standard_input():
    done = subprocess.run([*NVDP, "config", "check", "-"], input=BAD.encode(), capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"stdin:1:10: version: ")


def test_a_file_beyond_the_limit_is_not_read_to_its_end():
    done = subprocess.run([*NVDP, "config", "check", "/dev/zero"], capture_output=True, check=False, timeout=30)
    assert done.returncode == 2
    assert done.stderr == b"/dev/zero:1:1: file is larger than 1 MiB\n"


def test_show_takes_flags_environment_and_file(file, capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GDS_ENABLED", "1")
    monkeypatch.setenv("CONFIG_FILE", file("flags:\n  migStrategy: none\n"))
    assert main(["config", "show", "--json", "--pass-device-specs", "--device-list-strategy=envvar,volume-mounts"]) == 0
    shown = json.loads(capsys.readouterr().out)
    flags, origins = shown["config"]["flags"], shown["origins"]
    assert (flags["gdsEnabled"], origins["flags.gdsEnabled"]) == (True, "environment GDS_ENABLED")
    assert (flags["migStrategy"], origins["flags.migStrategy"]) == ("none", "file line 2")
    assert flags["plugin"]["passDeviceSpecs"] is True
    assert flags["plugin"]["deviceListStrategy"] == ["envvar", "volume-mounts"]
    assert shown["options"]["config-file"].endswith("f.yaml")


def test_show_without_a_file_shows_the_defaults(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CONFIG_FILE", raising=False)
    assert main(["config", "show"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# flags and environment sha256:e3b0c44298fc\nversion: v1 ")
    assert "# --kubelet-socket /var/lib/kubelet/device-plugins/kubelet.sock" in out


@pytest.mark.parametrize(
    ("arguments", "text", "code"),
    [
        (["--config-file", "FILE"], BAD, 2),
        (["--config-file", "/nowhere/at/all"], "", 1),
        (["--metrics-port", "many"], "", 2),
        (["--no-such-flag"], "", 2),
    ],
)
def test_show_says_what_is_wrong_in_place_of_values(file, capsys, arguments, text, code):
    path = file(text)
    assert main(["config", "show", *(path if it == "FILE" else it for it in arguments)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err


def test_show_warns_of_words_that_nothing_knows(capsys):
    assert main(["config", "show", "--cdi-feature-flags", "faster"]) == 0
    assert capsys.readouterr().err.startswith("warning: --cdi-feature-flags: faster is not known and has no effect; ")


@pytest.mark.parametrize(
    ("given", "expected"), [([], False), (["--gds-enabled"], True), (["--gds-enabled=false"], False)]
)
def test_a_boolean_flag_alone_is_true(capsys, given, expected):
    assert main(["config", "show", "--json", *given, "--mps-root", "/mps"]) == 0
    flags = json.loads(capsys.readouterr().out)["config"]["flags"]
    assert (flags["gdsEnabled"], flags["mpsRoot"]) == (expected, "/mps")


def test_help_names_variable_key_and_default_of_every_flag(capsys):
    assert main(["config", "show", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "[env MIG_STRATEGY; key flags.migStrategy; default none]" in out
    assert "--driver-root, --nvidia-driver-root" in out
    assert "--simulated-node" not in out


def test_schema_prints_the_one_in_the_repository(capsys):
    assert main(["config", "schema"]) == 0
    assert capsys.readouterr().out == (ROOT / "api" / "config.schema.json").read_text()


def test_a_reader_that_stops_reading_is_no_traceback():
    command = f"{' '.join(NVDP)} config schema | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["/bin/bash", "-c", command], capture_output=True, check=False)
    assert done.stderr == b""
    assert io.BytesIO(done.stdout).readline() == b"{\n"
