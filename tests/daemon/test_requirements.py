"""Every requirement of the kubelet contract and every invariant of the design has a test that names it."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
BUILT = set(range(1, 53))
ELSEWHERE = {47}  # about the client of PodResources alone


def find_marked(marker: str, directory: Path) -> set[int]:
    text = "".join(path.read_text() for path in directory.rglob("test_*.py"))
    return {int(number) for number in re.findall(rf"pytest\.mark\.{marker}\((\d+)\)", text)}


def test_every_requirement_is_shown_on_the_whole_daemon():
    assert find_marked("requirement", TESTS / "daemon") >= BUILT - ELSEWHERE
    assert find_marked("requirement", TESTS) >= BUILT


def test_every_invariant_is_shown():
    assert find_marked("invariant", TESTS) >= set(range(1, 13))
