"""Which of several configurations a node has, and by what: a value that logs, states and the state directory share."""

from __future__ import annotations

import msgspec


class Chosen(msgspec.Struct, frozen=True):
    """``entry`` is the name of the configuration, empty for the one without a file: flags, environment and defaults.

    ``by`` says for people what chose it: ``label nvidia.com/device-plugin.config=mixed``, or that there is no label
    and which rule took its place.
    """

    entry: str
    by: str
