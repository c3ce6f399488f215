"""The Dockerfile. Where tests run there is no engine: it is read, and its build stage is carried out by hand."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nvdp
from nvdp.config.options import list_options

ROOT = Path(__file__).resolve().parents[2]
FULL = os.environ.get("NVDP_CAMPAIGN") == "full"


def read_instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [
        (word, " ".join(rest.split()))
        for word, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())
    ]


def read_stages() -> list[list[tuple[str, str]]]:
    stages: list[list[tuple[str, str]]] = []
    for word, rest in read_instructions():
        if word == "FROM":
            stages.append([])
        if stages:
            stages[-1].append((word, rest))
    return stages


BUILD, FINAL = read_stages()


def test_both_stages_are_the_same_slim_python_so_that_what_one_installs_runs_in_the_other():
    assert [stage[0][1] for stage in (BUILD, FINAL)] == [
        "python:${PYTHON}-slim AS build",
        "python:${PYTHON}-slim",
    ]


def test_everything_installed_is_locked_and_checked():
    installs = [rest for word, rest in BUILD if word == "RUN" and " install " in rest]
    assert installs
    for command in installs:
        assert "--no-deps" in command
        assert "--require-hashes" in command or "--no-index" in command


def test_the_result_has_compiled_code_and_nothing_to_build_or_install_with():
    final = " ".join(rest for word, rest in FINAL if word == "RUN")
    assert "pip uninstall --yes pip" in final
    assert "ensurepip" in final
    assert "compileall" in final
    assert "install " not in final.replace("uninstall ", "")
    assert [rest for word, rest in FINAL if word == "COPY"] == ["--from=build /opt/nvdp /opt/nvdp"]
    assert [rest for word, rest in BUILD if word == "RUN"][-1].endswith("unchecked-hash /opt/nvdp/lib")


def test_it_starts_the_daemon_as_the_manifests_expect():
    words = dict(FINAL)
    assert (words["ENTRYPOINT"], words["CMD"], words["USER"]) == ('["/opt/nvdp/bin/nvdp"]', '["run"]', "0:0")


def test_the_image_sets_no_option_that_would_overrule_a_configuration_file():
    environment = dict(word.split("=", 1) for kind, rest in FINAL if kind == "ENV" for word in rest.split())
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    assert not set(environment) & {name for option in list_options() for name in option.key.setting.environment}


def test_every_copied_path_exists_and_is_let_through_to_the_engine():
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {name for word, rest in BUILD if word == "COPY" for name in rest.split()[:-1]}
    assert copied == allowed
    for name in copied:
        assert (ROOT / name).exists(), name


@pytest.mark.campaign
@pytest.mark.skipif(not FULL, reason="builds what the image holds, which takes a minute; `make campaign` does it")
def test_the_build_stage_gives_an_environment_that_runs_without_writing(tmp_path: Path):
    source, prefix, builder = tmp_path / "src", tmp_path / "opt/nvdp", tmp_path / "builder"
    source.mkdir()
    subprocess.run([getattr(sys, "_base_executable", sys.executable), "-m", "venv", builder], check=True)
    places = {"/opt/nvdp": str(prefix), "/wheels": str(tmp_path / "wheels"), "/src": str(source)}
    environment = {**os.environ, "PATH": f"{builder}/bin:/usr/bin:/bin"}
    for word, rest in BUILD:
        command = rest
        for inside, outside in places.items():
            command = re.sub(rf"(?<!\S){inside}", outside, command)
        if word == "RUN":
            subprocess.run(["sh", "-ec", command], cwd=source, env=environment, check=True, timeout=600)
        elif word == "COPY":
            *names, target = command.split()
            for name in names:
                into = source / target / Path(name).name if target.endswith("/") else source / target
                into.parent.mkdir(parents=True, exist_ok=True)
                (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, into)
    done = subprocess.run([prefix / "bin/nvdp", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"nvdp {nvdp.__version__}\n"
    modules = {path for path in prefix.rglob("*.py") if "/lib/" in str(path) and "bad_" not in path.name}
    compiled = {path.parent.parent / f"{path.name.partition('.')[0]}.py" for path in prefix.rglob("*.pyc")}
    assert modules <= compiled
    assert not [
        path for path in prefix.glob("lib/python3*/site-packages/*") if path.name in {"pip", "setuptools", "wheel"}
    ]
