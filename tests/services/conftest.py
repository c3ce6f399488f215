"""Fixtures for tests of services."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.services.node import Node


@pytest.fixture
def node():
    """A node in a short directory; what was started on it is stopped at the end."""
    with ExitStack() as stack:
        yield Node(stack)
