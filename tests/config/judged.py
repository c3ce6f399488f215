"""One way for tests to ask what in a file means something else to NVIDIA's plugin."""

from __future__ import annotations

from nvdp.config.nvidia import Difference, find_differences
from tests.config.reading import read

PLUGIN = "NVIDIA's plugin "


def differences_of(text: str) -> list[Difference]:
    return [*find_differences(read(text), text)]


def lines_of(text: str) -> list[str]:
    return [str(difference) for difference in differences_of(text)]
