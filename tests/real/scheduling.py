"""A real scheduler, and the controllers that it takes for pods to run."""

from __future__ import annotations

from pathlib import Path

from tests.real.controlplane import ControlPlane, Program

# What takes the taint of a new Node away, and makes pods of a Deployment.
_CONTROLLERS = "nodelifecycle,deployment,replicaset"


class Scheduling:
    """Runs from its making until ``stop``. Its directory keeps its logs."""

    def __init__(self, control: ControlPlane, directory: Path) -> None:
        common = [f"--kubeconfig={control.admin}", "--leader-elect=false", "--port=0", "--secure-port=0"]
        self._programs = [
            Program([control.programs / name, *common, *flags], directory / f"{name}.log")
            for name, flags in (
                ("kube-scheduler", []),
                ("kube-controller-manager", [f"--controllers={_CONTROLLERS}"]),
            )
        ]

    def check(self) -> None:
        """AssertionError with the end of its output if one of them has ended."""
        for program in self._programs:
            program.check()

    def stop(self) -> None:
        for program in self._programs:
            program.stop()
