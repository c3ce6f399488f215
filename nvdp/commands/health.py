"""``nvdp health clear``: the operator's word that a GPU is well, where the driver gives none."""

from __future__ import annotations

from typing import Final

import click

from nvdp.commands.orders import RUN_DIR, give_order
from nvdp.errors import FormatError
from nvdp.http.routes import CLEAR_PATH, DEVICE
from nvdp.model.deviceref import DeviceRef
from nvdp.model.orders import parse_gpu

_ABSENT: Final = "What is known of faults outlives restarts: give the order again once nvdp runs"


@click.group()
def health() -> None:
    """Tell the daemon of this node what its driver does not."""


def _read_device(_context: click.Context, _parameter: click.Parameter, text: str) -> DeviceRef:
    try:
        return parse_gpu(text)
    except FormatError as error:
        raise click.BadParameter(str(error)) from error


@health.command(short_help="Forget the faults of a GPU that is well again.")
@click.argument("device", callback=_read_device)
@RUN_DIR
def clear(*, device: DeviceRef, run_dir: str | None) -> int:
    """Forget the faults of the GPU that DEVICE names by UUID, PCI address or index.

    For a GPU that you have reset, repaired or judged to be well: it takes new pods again, unless it still shows that
    it is not. Exit code 0 if nothing ails it any more, 4 if something does or there is no such GPU, 1 if the daemon
    could not be asked. For root, in the daemon's container or on its node.
    """
    return give_order(CLEAR_PATH, {DEVICE: str(device)}, run_dir=run_dir, absent=_ABSENT)
