"""Driver roots of several systems as lists of paths, to be built as trees of plain files in a temporary directory.

A list has one path a line, marked as ``ls -F`` does: ``*`` an executable, ``/`` a directory, ``=`` a socket,
``-> target`` a symbolic link; ``:= text`` gives a file its content, which else is its own path.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

LAYOUTS = ("ubuntu", "rhel", "cos", "talos", "operator")

_HERE = Path(__file__).parent


def build_tree(root: Path, layout: str) -> Path:
    """Make the files of ``layout``, a name of LAYOUTS or the text of a list, under ``root``; returns ``root``."""
    text = (_HERE / f"{layout}.tree").read_text(encoding="utf-8") if layout in LAYOUTS else layout
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            _make(root, line.strip())
    return root


def load_expected(layout: str) -> str:
    """What is to be found under the root of ``layout``, as ``render`` of the tests writes it."""
    return (_HERE / f"{layout}.found").read_text(encoding="utf-8")


def _make(root: Path, line: str) -> None:
    name, _, target = line.partition(" -> ")
    name, _, content = name.partition(" := ")
    path = root / name.rstrip("*/=")
    path.parent.mkdir(parents=True, exist_ok=True)
    if target:
        path.symlink_to(target)
    elif name.endswith("/"):
        path.mkdir(exist_ok=True)
    elif name.endswith("="):
        os.mknod(path, stat.S_IFSOCK | 0o666)
    else:
        path.write_text(content + "\n" if content else f"/{path.relative_to(root)}\n", encoding="utf-8")
        path.chmod(0o755 if name.endswith("*") else 0o644)
