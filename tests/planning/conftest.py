"""Assertions of the models explain themselves."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.planning.histories", "tests.planning.kubelet_model")
