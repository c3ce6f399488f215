"""Assertions of the models explain themselves, and no example is judged by a busy machine's clock."""

from __future__ import annotations

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.planning.histories", "tests.planning.kubelet_model")
settings.register_profile("planning", deadline=None)
settings.load_profile("planning")
