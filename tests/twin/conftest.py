from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def root():
    """Short, for socket paths have 107 bytes."""
    directory = Path(tempfile.mkdtemp(prefix="nv", dir="/tmp"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
