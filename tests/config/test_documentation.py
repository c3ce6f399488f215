"""docs/configuration.md says what the code does: its tables are those that the code gives, its examples are valid."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import yaml

from nvdp.commands.flags import build_default_text
from nvdp.config.keys import Setting, find_block, find_item, list_keys, strip_optional
from nvdp.config.options import list_options
from nvdp.config.schema import Document
from nvdp.config.spelling import build_plain, spell
from tests.config.reading import errors_of

ROOT = Path(__file__).parents[2]
DOCUMENTATION = (ROOT / "docs" / "configuration.md").read_text()


def _section(title: str) -> str:
    return DOCUMENTATION.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def _rows(section: str) -> list[str]:
    """The rows of the tables of a section, without their heads."""
    return [
        line
        for line in re.findall(r"^\|.*\|$", section, re.MULTILINE)
        if not re.match(r"\|( key|--| flag| option)", line)
    ]


def _expected_options() -> Iterator[str]:
    for option in list_options():
        setting = option.key.setting
        flags = ", ".join(f"`--{flag}`" for flag in setting.flags)
        environment = ", ".join(f"`{name}`" for name in setting.environment)
        default = f"`{text}`" if (text := build_default_text(option)) else ""
        yield f"| {flags} | {environment} | {default} | {f'`{option.path}`' if option.path else ''} |"


def _expected_keys(block: type[msgspec.Struct] = Document, path: str = "") -> Iterator[str]:
    for key in list_keys(block):
        inner = find_block(key.type)
        if inner is not None:
            many = "[]" if find_item(strip_optional(key.type)) else ""
            yield from _expected_keys(inner, f"{path}{key.name}{many}.")
            continue
        default = key.setting.default_text
        if not default and key.default is msgspec.NODEFAULT:
            default = "required"
        elif not default and key.default is not None:
            default = f"`{spell(build_plain(key.default))}`"
        meaning = key.setting.doc + _range(key.setting)
        yield f"| `{path}{key.name}` | {default} | {meaning} |".replace("|  |", "| |")


def _range(setting: Setting) -> str:
    if setting.least == setting.most:
        return ""
    return f"; {setting.least}–{setting.most}" if setting.most is not None else f"; at least {setting.least}"


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("Flags and environment", _expected_options()),
        ("All keys", _expected_keys()),
    ],
    ids=["options", "keys"],
)
def test_a_table_of_the_documentation_is_that_of_the_code(title: str, expected: Iterator[str]):
    assert _rows(_section(title)) == list(expected)


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", DOCUMENTATION, re.DOTALL))
def test_every_example_of_the_documentation_is_valid(block: str):
    content = yaml.safe_load(block)
    texts = content["data"].values() if content.get("kind") == "ConfigMap" else [block]
    assert [errors_of(text) for text in texts] == [[] for _ in texts]


@pytest.mark.parametrize("file", sorted((ROOT / "config").glob("*.yaml")), ids=lambda file: file.name)
def test_every_example_file_is_valid_and_named_in_the_documentation(file: Path):
    assert errors_of(file.read_bytes()) == []
    assert f"config/{file.name}" in DOCUMENTATION


def test_the_types_of_the_documentation_are_read_as_it_says():
    section = _section("Types")
    for name in (
        "bool",
        "Duration",
        "Quantity",
        "percentage",
        "enum",
        "ResourceName",
        "Pattern",
        "DeviceRef",
        "DeviceSet",
    ):
        assert f"| {name} |" in section
