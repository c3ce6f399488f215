"""The project's pages, taken apart: blocks, code spans, links, and the commands in them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_NOT_BUILT = "not built yet"
_SEPARATORS = frozenset({"&&", "||", "|", "&", ";"})
COMMANDS = frozenset({"git", "cd", "make", "nvdp", ".venv/bin/nvdp", ".venv/bin/python", "kubectl", "curl", "grep"})


class Block(NamedTuple):
    """A fenced block and the language that it names."""

    page: str
    language: str
    text: str


class Command(NamedTuple):
    """One simple command of a page."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def find_blocks() -> list[Block]:
    return [
        Block(page.name, match[2], re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE))
        for page in PAGES
        for match in _FENCE.finditer(page.read_text())
    ]


def find_spans(page: Path) -> list[str]:
    """Code within the text, outside of blocks."""
    return _SPAN.findall(_FENCE.sub("", page.read_text()))


def find_links(page: Path) -> list[str]:
    return _LINK.findall(_FENCE.sub("", page.read_text()))


def find_anchors(page: Path) -> set[str]:
    """What links within the page may name: its headings, as they are turned into anchors."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def split_commands(line: str) -> list[tuple[str, ...]]:
    """The simple commands of a line of shell; comments are left out."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if word in _SEPARATORS:
            found.append([])
        else:
            found[-1].append(word)
    return [tuple(words) for words in found if words]


def find_block_commands() -> list[Command]:
    """All commands that stand in blocks. A block without a language is commands, or what something printed."""
    return [
        Command(block.page, words)
        for block in find_blocks()
        if is_shell(block)
        for line in block.text.splitlines()
        for words in split_commands(line)
    ]


def find_span_commands(*, built: bool = True) -> list[Command]:
    """Commands within the text; with ``built`` false those of which the same line says that they are not built yet."""
    return [
        Command(page.name, words)
        for page in PAGES
        for line in _FENCE.sub("", page.read_text()).splitlines()
        if (_NOT_BUILT in line) is not built
        for span in _SPAN.findall(line)
        if span.split()[0] in COMMANDS and " " in span
        for words in split_commands(span)
    ]


def is_shell(block: Block) -> bool:
    return block.language == "" and not is_output(block)


def is_output(block: Block) -> bool:
    """A log, JSON, a table that begins with the version and the time or with the node, or a verdict."""
    return block.language == "" and re.match(r"\d{4}-|\{|nvdp \d|node \S+ |ready", block.text) is not None
