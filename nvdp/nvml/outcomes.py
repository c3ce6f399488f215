"""What can become of a command to an NVML child besides an answer."""

from __future__ import annotations

from typing import TypeAlias, TypeGuard

import msgspec

from nvdp.model.inventory import GpuRef
from nvdp.nvml.frames import Answer


class Hung(msgspec.Struct, frozen=True, kw_only=True):
    """A call that did not return within its limit."""

    call: str
    gpu: GpuRef | None
    limit_s: float

    @property
    def text(self) -> str:
        return f"{self.call or 'the NVML child'} did not return within {self.limit_s:g}s"


class Died(msgspec.Struct, frozen=True, kw_only=True):
    """The child ended, or had to be given up, without an answer.

    ``at_fault`` says that the call itself did it, as a crash in the driver library does: a child that was killed or
    stopped from outside says nothing about the GPU it was busy with. ``trace`` is the end of its standard error.
    """

    call: str
    gpu: GpuRef | None
    how: str
    at_fault: bool
    trace: str = ""

    @property
    def text(self) -> str:
        return f"the NVML child {self.how}{f' in {self.call}' if self.call else ''}"


class Closed(msgspec.Struct, frozen=True):
    """``close`` was called meanwhile, or before."""


Outcome: TypeAlias = Answer | Hung | Died | Closed


def is_gpus_fault(outcome: Outcome) -> TypeGuard[Hung | Died]:
    """Whether one GPU is to blame, so that all is well without it."""
    return (isinstance(outcome, Hung) and outcome.gpu is not None) or (isinstance(outcome, Died) and outcome.at_fault)
