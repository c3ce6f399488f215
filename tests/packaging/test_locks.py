"""The lock files: exact, checked, complete, and silent about where things come from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / ".ci").glob("*.lock"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
_PIN = re.compile(r"([a-z0-9-]+)==([^\s;]+)(?: ; .+)? \\")
_HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?")
_COMMENT = re.compile(
    r"    # via [\w, ().:-]+|    # via -c \.ci/[\w, ()./:-]+|# The following packages are considered .*"
)


def pins(name: str) -> dict[str, str]:
    return dict(_PIN.findall((ROOT / ".ci" / name).read_text()))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_holds_names_versions_and_hashes_and_no_address(lock: Path):
    lines = [line for line in lock.read_text().splitlines() if line]
    strange = [line for line in lines if not any(kind.fullmatch(line) for kind in (_PIN, _HASH, _COMMENT))]
    assert not strange
    assert "://" not in lock.read_text()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_pin_has_a_hash(lock: Path):
    lines = [line for line in lock.read_text().splitlines() if not line.startswith(("#", "    #"))]
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if _PIN.fullmatch(line):
            assert _HASH.fullmatch(following), line


@pytest.mark.parametrize(
    ("lock", "requirements"),
    [
        ("runtime.lock", PROJECT["project"]["dependencies"]),
        ("build.lock", PROJECT["build-system"]["requires"]),
        ("dev.lock", PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["dev"]),
    ],
)
def test_every_dependency_is_locked_at_a_version_that_it_allows(lock: str, requirements: list[str]):
    locked = pins(lock)
    for requirement in map(Requirement, requirements):
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), requirement


def test_tests_run_on_the_versions_that_are_shipped():
    development = pins("dev.lock")
    for name, version in {**pins("runtime.lock"), **pins("build.lock")}.items():
        assert development[name] == version


def test_what_is_shipped_is_small():
    assert len(pins("runtime.lock")) <= 16, "each further package is memory, time and trust: is it needed at run time?"


def test_each_dependency_says_what_it_is_for():
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    start, end = lines.index("dependencies = ["), lines.index("[project.scripts]")
    entries = [line for line in lines[start:end] if line.startswith('  "')]
    assert len(entries) == len(PROJECT["project"]["dependencies"]) + len(
        PROJECT["project"]["optional-dependencies"]["dev"]
    )
    assert not [line for line in entries if not re.search(r'",\s+# \S', line)]
