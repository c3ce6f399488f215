"""What goes over the socket of the twin: one packet each way for a question, and a word about each client's fate."""

from __future__ import annotations

SOCKET_NAME = "control"
PACKET_BYTES = 65536

# The first byte of what is sent to the daemon.
ASK = b"?"  # a command follows; the answer is an exit code of one digit and a text
JOIN = b"+"  # a client's PID and user ID follow; it is one as long as the connection is open
STATE = b"!"  # a state follows, which the server is in from now on
END = b"-"  # an exit status follows, with which the server ends

# What a client is told.
SERVED = b"served"
WAITING = b"waiting"
REFUSED = b"refused"
