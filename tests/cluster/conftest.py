"""Fixtures for tests of the edge to the API server."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvdp.cluster.access import ServiceAccountAccess
from nvdp.cluster.api import Api
from tests.cluster.server import ApiServer

NODE = {"metadata": {"name": "gpu-a3", "labels": {"zone": "b"}}}


@pytest.fixture
def server():
    with ApiServer() as started:
        started.store.put("nodes", NODE)
        yield started


@pytest.fixture
def access(server: ApiServer, tmp_path: Path) -> ServiceAccountAccess:
    return ServiceAccountAccess(server.write_service_account(tmp_path / "account"), environ=server.environ)


@pytest.fixture
def api(access: ServiceAccountAccess):
    made = Api(access)
    yield made
    made.close()
