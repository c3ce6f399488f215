"""The floors, as a script: an interpreter that has imported grpc, and, given a path, a gRPC server with no content.

Run as ``python bare.py [SOCKET]``. Writes one line, the seconds of the import, once it is ready; ends with its stdin.
"""

from __future__ import annotations

import sys
import time

began = time.perf_counter()
import grpc  # noqa: E402 - the time of this import is the point

import_s = time.perf_counter() - began

METHOD = "/bench.Bare/Call"
_MAX_MESSAGE_BYTES = 16 << 20


def _serve(path: str) -> grpc.Server:
    """Answer every request with nothing, whatever is in it; threads and limits are those of the plugin's server."""
    from concurrent.futures import ThreadPoolExecutor

    _, service, method = METHOD.split("/")
    answer = grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"")
    server = grpc.server(
        ThreadPoolExecutor(16),
        handlers=[grpc.method_handlers_generic_handler(service, {method: answer})],
        options=(("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),),
    )
    server.add_insecure_port(f"unix:{path}")
    server.start()
    return server  # it serves for as long as somebody has it


if __name__ == "__main__":
    servers = [_serve(path) for path in sys.argv[1:]]
    sys.stdout.write(f"{import_s}\n")
    sys.stdout.flush()
    sys.stdin.read()
