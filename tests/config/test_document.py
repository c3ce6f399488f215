"""Text to nodes: what is no YAML is explained at its place, and nothing that is written can hurt."""

from __future__ import annotations

import itertools

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nvdp.config.document import parse_document
from nvdp.config.nodes import Mapping, Mark, Scalar, Sequence, find_value
from nvdp.errors import ConfigError
from tests.config.reading import errors_of, read

LOADERS = [yaml.CSafeLoader, yaml.SafeLoader]
BROKEN = {
    "a: b: c": 'f:1:5: syntax: a ":" is not expected here; check the indentation, or quote the text',
    "a: 1\n b: 2": 'f:2:3: syntax: a ":" is not expected here; check the indentation, or quote the text',
    "- a\nb: 1": "f:2:1: syntax: this line does not continue what is above it; check the indentation",
    "a:\n  - 1\n - 2": "f:3:2: syntax: this line does not continue what is above it; check the indentation",
    "  a: 1\n b: 2": "f:2:2: syntax: this line does not continue what is above it; check the indentation",
    "a: 'x": "f:1:6: syntax: quote opened at 1:4 is not closed",
    "a: {b: [1}": 'f:1:10: syntax: "[" opened at 1:8 is not closed',
    "a: [1, 2": 'f:1:9: syntax: "[" opened at 1:4 is not closed',
    '{"a": {"b": 1}': 'f:1:15: syntax: "{" opened at 1:1 is not closed',
    "é: [1": 'f:1:6: syntax: "[" opened at 1:4 is not closed',
    'a: ["x" "y"]': 'f:1:9: syntax: "," or "]" is missing before this, after the "[" opened at 1:4',
    'a: [\n  "x"\n  "y"\n]': 'f:3:3: syntax: "," or "]" is missing before this, after the "[" opened at 1:4',
    "a: ]": 'f:1:4: syntax: "]" closes nothing',
    "a: [1]]": 'f:1:7: syntax: "]" closes nothing',
    "\ta: 1": "f:1:1: syntax: found a tab where only spaces may indent",
    "a:\n  b: 1\n\tc: 2": "f:3:1: syntax: found a tab where only spaces may indent",
    "a:\n  \t- 1": "f:2:3: syntax: found a tab where only spaces may indent",
    "a: @x": 'f:1:4: syntax: text may not start with "@"; quote it',
    "a: *b": "f:1:4: syntax: *b has no &b before it",
    "a: &a [*a]": "f:1:8: syntax: *a stands inside its own &a",
    "a: &a {b: {c: [1, *a]}}": "f:1:19: syntax: *a stands inside its own &a",
    "? [a]\n: b": "f:1:3: syntax: a key must be one word, not a list or a block",
    "a: !mine b": 'f:1:4: syntax: tag "!mine" means nothing here; remove it',
    "a: {<<: 1}": "f:1:9: syntax: << takes a block, or a list of blocks",
    "%YAML 3.0\n---\na: 1": "f:1:1: syntax: only YAML 1.1 and 1.2 are read; remove the %YAML line",
    "a: \x00": "f:1:4: syntax: character U+0000 may not stand in YAML",
    "a: 1\nb: \ud800": "f:2:4: syntax: character U+D800 may not stand in YAML",
    "a: 1\n---\n[b]": "f:2:1: syntax: second document at line 2; one configuration per file",
    "[" * 65: "f:1:65: syntax: nested more than 64 levels deep",
}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(("text", "said"), BROKEN.items())
def test_what_is_no_yaml_is_explained_at_its_place_whichever_parser_reads_it(text: str, said: str, loader: object):
    with pytest.raises(ConfigError) as refused:
        parse_document(text, name="f", loader=loader)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"a:\n  b: \xff", "f:2:6: syntax: byte 0xff is not UTF-8 text"),
        ("a: ü".encode("latin-1"), "f:1:4: syntax: byte 0xfc is not UTF-8 text"),
        ("a: 1".encode("utf-16"), "f:1:1: syntax: byte 0xff is not UTF-8 text"),
        (b"\0" * 10, "f:1:1: syntax: character U+0000 may not stand in YAML"),
        (b" " * (2**20 + 1), "f:1:1: file is larger than 1 MiB"),
    ],
)
def test_bytes_that_are_no_text_are_refused_at_their_place(raw: bytes, said: str):
    assert errors_of(raw) == [said]


@pytest.mark.parametrize(
    "text", ["", "\n", "# nothing\n", "---\n", "null", "~", "--- \n...\n", "\ufeff", "version: v1\n---\n"]
)
def test_a_file_that_says_nothing_more_is_accepted(text: str):
    assert read(text).flags == read("").flags


def test_a_byte_order_mark_moves_no_column():
    assert errors_of("\ufeffversion: v2".encode())[0].startswith("f:1:10:")


@pytest.mark.parametrize("loader", LOADERS)
def test_nodes_are_as_written_and_know_their_place(loader: object):
    text = "a: 010\nb:\n- '1:0'\n- {c: !!str 5, d: ~}\n- |\n  x\n"
    root = parse_document(text, name="f", loader=loader)
    assert isinstance(root, Mapping)
    assert find_value(root, "a") == Scalar(Mark(1, 4), "010")
    assert find_value(root, "missing") is None
    items = find_value(root, "b")
    assert isinstance(items, Sequence)
    assert items.items[0] == Scalar(Mark(3, 3), "1:0", quoted=True)
    assert items.items[1] == Mapping(
        Mark(4, 3),
        [
            (Scalar(Mark(4, 4), "c"), Scalar(Mark(4, 7), "5", quoted=True)),
            (Scalar(Mark(4, 16), "d"), Scalar(Mark(4, 19), "~")),
        ],
    )
    assert items.items[2] == Scalar(Mark(5, 3), "x\n", quoted=True)


def test_json_is_read_too_also_with_tabs():
    text = '{\n\t"version": "v1",\n\t"devices": {"exclude": [0, "1:0"]}\n}'
    assert [str(ref) for ref in read(text).devices.exclude] == ["0", "1:0"]


def test_an_alias_stands_for_what_is_anchored():
    config = read("devices:\n  exclude: &broken [1, 2]\nhealth: {ignoredXIDs: *broken}\n")
    assert config.health.ignored_xids.numbers == (1, 2)


def test_keys_of_a_merged_block_give_way_to_its_own():
    config = read(
        """\
        resources:
          gpus:
          - &first {pattern: "A*", name: nvidia.com/a}
          - {<<: *first, pattern: "B*"}
          - {<<: [{name: c}, *first], pattern: "C*"}
        """
    )
    assert [(rule.pattern.text, str(rule.name)) for rule in config.resources.gpus] == [
        ("A*", "nvidia.com/a"),
        ("B*", "nvidia.com/a"),
        ("C*", "nvidia.com/c"),
    ]


def test_ten_thousand_values_by_alias_are_allowed_and_no_more():
    thousand = ", ".join("1" for _ in range(999))
    text = f"devices:\n  exclude: &many [{thousand}]\n  cordon: [%s]\n"
    lines = errors_of(text % ", ".join("*many" for _ in range(10)))
    assert all("one value is needed" in line or "also excluded" in line or "more" in line for line in lines)
    assert errors_of(text % ", ".join("*many" for _ in range(11))) == [
        "f:3:82: aliases expand to more than 10000 values"
    ]


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "a:\n" + " "])
def test_deep_nesting_is_refused_and_not_followed(opening: str):
    text = opening * 50_000 if opening.strip() in {"[", "{a:"} else "".join(itertools.repeat(opening, 200))
    assert len(errors_of(text)) == 1


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
@example(b'a: "\\U99999999"')
@example(b"\xff\xfe\x00")
@example(b"%YAML 9999999999999999999999.1\n---\n")
@example(b"a: &a\n<<: *a")
def test_any_bytes_give_a_configuration_or_a_refusal(raw: bytes):
    for line in errors_of(raw):
        assert line.startswith("f:")


STRUCTURE = [
    *"[]{},:-&*~\n ",
    "\n  ",
    "- ",
    ": ",
    "&a ",
    "*a",
    "<<: ",
    "---\n",
    "a",
    "'b'",
    '"c"',
    "1:0",
    "0x1",
    "é",
    "# x\n",
]
WORDS = ["version: v1\n", "sharing:\n", "  timeSlicing:\n", "    resources:\n", "    - name: gpu\n", "devices: "]
RARE = ["?", "!", "|", ">", "'", '"', "%", "@", "`", "\t", "? "]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(STRUCTURE + WORDS + RARE), max_size=40).map("".join))
def test_any_text_out_of_the_signs_of_yaml_gives_a_configuration_or_a_refusal(text: str):
    for line in errors_of(text.encode()):
        assert line.startswith("f:")


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(STRUCTURE + WORDS), max_size=30).map("".join))
def test_both_parsers_read_the_same(text: str):
    assert _values(text, yaml.CSafeLoader) == _values(text, yaml.SafeLoader)


def _values(text: str, loader: object) -> object:
    """What is read, without places: a value that is not there has none."""
    try:
        return _strip(parse_document(text, name="f", loader=loader))
    except ConfigError:
        return "refused"


def _strip(node: object) -> object:
    match node:
        case Scalar():
            return (node.text, node.quoted)
        case Sequence():
            return [_strip(item) for item in node.items]
        case Mapping():
            return [(_strip(key), _strip(value)) for key, value in node.entries]
    return node
