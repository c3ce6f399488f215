"""Generates nvdp/kubelet/proto from api/*.proto; `make proto` runs it and a test compares its output with the tree.

Messages and their types only: calls are described in nvdp/kubelet/protocol.py, which mypy can check.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "api"
TARGET = ROOT / "nvdp" / "kubelet" / "proto"


def generate(target: Path) -> None:
    """Write the modules into the directory ``target``; the same sources and compiler give the same bytes."""
    sources = sorted(path.name for path in SOURCES.glob("*.proto"))
    arguments = ["protoc", f"-I{SOURCES}", f"--python_out={target}", f"--pyi_out={target}", *sources]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc refused the files of api/; its messages are above")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
