"""``nvdp resume``: have the daemon of this node take the driver back after ``nvdp pause``."""

from __future__ import annotations

from typing import Final

import click

from nvdp.commands.orders import RUN_DIR, give_order
from nvdp.http.routes import RESUME_PATH

_ABSENT: Final = "A pause by command lasts until this order or a reboot: give it again once nvdp runs"


@click.command()
@RUN_DIR
def resume(*, run_dir: str | None) -> int:
    """End what nvdp pause began: the driver is asked again, and devices that are well take pods.

    Exit code 0 once the driver answers, 4 if it does not, or if something else keeps the pause (devices.paused in the
    file), 1 if the daemon could not be asked. For root, in the daemon's container or on its node.
    """
    return give_order(RESUME_PATH, {}, run_dir=run_dir, absent=_ABSENT)
