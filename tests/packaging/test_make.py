"""`make` on machines that lack something, and what its targets promise."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("sh", "make", "dirname", "sed", "git")  # of every machine that has make and git


class Machine:
    """A machine with little on its path."""

    def __init__(self, root: Path) -> None:
        self.bin = root / "bin"
        self.bin.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None
            (self.bin / tool).symlink_to(found)

    def add(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.bin), "HOME": "/nonexistent"}
        command = [str(self.bin / "make"), "-C", str(ROOT), "--no-print-directory", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=50)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What was said besides make's own last line."""
    return [line for line in done.stderr.splitlines() if not line.startswith("make:")]


def test_without_python_one_line_says_what_to_install(machine: Machine):
    done = machine.make("setup")
    assert done.returncode != 0
    (line,) = complaints(done)
    assert line.startswith("setup: no Python 3.11 or newer found")
    assert "install python3 with its venv module" in line


def test_with_an_old_python_the_same_is_said(machine: Machine):
    machine.add("python3", "echo old")
    (line,) = complaints(machine.make("test"))
    assert line.startswith("setup: no Python 3.11 or newer found")


def test_a_python_without_venv_is_named_with_the_package_that_is_missing(machine: Machine):
    machine.add("python3.11", 'case "$2" in *ensurepip*) echo novenv;; *) echo 3.11;; esac')
    machine.add("python3", "exit 127")  # a version manager's placeholder for nothing
    (line,) = complaints(machine.make("demo"))
    assert line == "setup: python3.11 has no venv module; install it (Debian, Ubuntu: apt-get install python3.11-venv)"


def test_the_first_python_that_can_make_an_environment_is_taken(machine: Machine):
    machine.add("python3.12", "exit 127")
    machine.add("python3.11", 'case "$1" in -c) echo ok;; *) echo "$0 $2" >&2; exit 7;; esac')
    done = machine.make("setup")
    assert complaints(done)[0].endswith("python3.11 dev")


def test_a_python_can_be_chosen_by_hand(machine: Machine):
    machine.add("python3.13", "echo ok")
    done = machine.make("setup", "PYTHON=/nonexistent/python")
    assert "tried /nonexistent/python" in complaints(done)[0]


def test_without_a_container_engine_one_line_says_so(machine: Machine):
    assert complaints(machine.make("image")) == ["image: neither docker nor podman is installed; install one of them"]


def test_the_image_is_named_after_the_version_and_knows_the_revision(machine: Machine):
    machine.add("podman", 'echo "$@"')
    words = machine.make("image").stdout.split()
    assert words[0] == "build"
    assert re.fullmatch(r"nvdp:\d+\.\d+\.\d+", words[words.index("--tag") + 1])
    assert re.fullmatch(r"REVISION=[0-9a-f]{7}|REVISION=", words[words.index("--build-arg") + 1])


def test_make_alone_lists_every_target_with_its_purpose(machine: Machine):
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    listed = dict(re.findall(r"^  make (\S+) +(\S.*)$", machine.make().stdout, re.MULTILINE))
    assert set(listed) == set(phony.split()) - {"setup-runtime"}
    assert {"setup", "demo", "test", "lint", "types", "layers", "check", "bench", "campaign", "lock"} <= set(listed)


def test_every_target_that_uses_the_environment_sets_it_up_first():
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", "")
    rules = re.findall(r"^([a-z-]+):([^#\n]*).*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    using = {target: needs.split() for target, needs, recipe in rules if "$(BIN)" in recipe or "$(LOCK)" in recipe}
    assert {"demo", "test", "lint"} <= set(using)
    assert not {target for target, needs in using.items() if not {"setup", "setup-runtime"} & set(needs)}


def test_the_check_of_a_change_is_strict_needs_no_input_and_ends_with_the_tests():
    script = (ROOT / ".ci/run").read_text()
    assert os.access(ROOT / ".ci/run", os.X_OK)
    assert "set -Eeuo pipefail" in script
    assert "make check </dev/null" in script
    assert re.search(r"^check: .*\btest\b *##", (ROOT / "Makefile").read_text(), re.MULTILINE)
