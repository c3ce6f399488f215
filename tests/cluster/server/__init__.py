"""An API server for tests: real HTTPS, a store with versions and watches, roles that are obeyed, and faults on demand.

    with ApiServer() as server:
        server.store.put("nodes", {"metadata": {"name": "gpu-a3"}})
        api = Api(ServiceAccountAccess(server.write_service_account(directory), environ=server.environ))
        server.faults.add(answer(429, retry_after="3"), verb="patch", resource="nodes/status", times=2)
        assert [entry.code for entry in server.journal.of(verb="watch")] == [200]

Without ``roles`` whoever has a token may do everything. ``stop`` and ``start`` are an outage: the store, the port and
the journal stay.
"""

from tests.cluster.server.faults import answer, cut_after, drop, garbage, hang, slow, stream_error
from tests.cluster.server.journal import Entry, Journal
from tests.cluster.server.roles import Roles
from tests.cluster.server.server import TLS, TOKEN, USER, ApiServer
from tests.cluster.server.store import RefusedError, Store

__all__ = [
    "TLS",
    "TOKEN",
    "USER",
    "ApiServer",
    "Entry",
    "Journal",
    "RefusedError",
    "Roles",
    "Store",
    "answer",
    "cut_after",
    "drop",
    "garbage",
    "hang",
    "slow",
    "stream_error",
]
