"""Configurations of containerd, and whether each has it heed CDI devices: what we read of them, and what it does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

CRI = 'plugins."io.containerd.grpc.v1.cri"'


class Case(NamedTuple):
    """``imports`` are further files of its directory. ``heeds`` is what containerd 1.7 says of itself."""

    main: str
    heeds: bool
    imports: Mapping[str, str] = MappingProxyType({})


CASES = {
    "an empty file": Case("", heeds=False),
    "only another plugin": Case(
        'version = 2\n[plugins."io.containerd.grpc.v1.other"]\nenable_cdi = true\n', heeds=False
    ),
    "off": Case(f"version = 2\n[{CRI}]\nenable_cdi = false\n", heeds=False),
    "on": Case(f"version = 2\n[{CRI}]\nenable_cdi = true\n", heeds=True),
    "not set": Case(f'version = 2\n[{CRI}]\nsandbox_image = "pause"\n', heeds=False),
    "on in a file of version 1": Case("[plugins.cri]\nenable_cdi = true\n", heeds=True),
    "on in a section that version 1 does not know": Case(f"[{CRI}]\nenable_cdi = true\n", heeds=False),
    "on in an import": Case(
        f'version = 2\nimports = ["conf.d/*.toml"]\n[{CRI}]\nenable_cdi = false\n',
        heeds=True,
        imports={"conf.d/10-cdi.toml": f"version = 2\n[{CRI}]\nenable_cdi = true\n"},
    ),
    "on, but an import replaces the section as a whole": Case(
        f'version = 2\nimports = ["conf.d/*.toml"]\n[{CRI}]\nenable_cdi = true\n',
        heeds=False,
        imports={"conf.d/99-nvidia.toml": f'version = 2\n[{CRI}.containerd]\ndefault_runtime_name = "nvidia"\n'},
    ),
    "the last import counts": Case(
        'version = 2\nimports = ["conf.d/*.toml"]\n',
        heeds=True,
        imports={
            "conf.d/1.toml": f"version = 2\n[{CRI}]\nenable_cdi = false\n",
            "conf.d/2.toml": f"version = 2\n[{CRI}]\nenable_cdi = true\n",
        },
    ),
    "an import without the section": Case(
        f'version = 2\nimports = ["more.toml"]\n[{CRI}]\nenable_cdi = true\n',
        heeds=True,
        imports={"more.toml": "version = 2\n[debug]\nlevel = 'info'\n"},
    ),
}


def write_case(case: Case, directory: Path) -> Path:
    """The files of a case in ``directory``; its main file."""
    main = directory / "config.toml"
    for name, text in {main.name: case.main, **case.imports}.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return main
