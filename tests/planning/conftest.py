"""Assertions of the models explain themselves."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.planning.kubelet_model", "tests.planning.list_checks", "tests.planning.promises")
