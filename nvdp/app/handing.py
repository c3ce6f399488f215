"""Composes what hands devices over besides the answers to the kubelet: the writer of CDI specs, and a look ahead."""

from __future__ import annotations

import os
import time
from functools import partial

import msgspec

from nvdp.config.process import CDI_DIR, HOST_DEV, ProcessOptions
from nvdp.errors import HostError
from nvdp.host.boot import load_boot_id
from nvdp.host.cdi_files import CdiFiles
from nvdp.host.cdi_found import FoundFiles
from nvdp.host.mps_grants import has_grants, load_grants, write_grants
from nvdp.log import Log
from nvdp.model.cdi import CdiState, CdiWish
from nvdp.model.cdi_spec import encode_spec
from nvdp.model.mps import MpsGrants
from nvdp.planning.cdi import build_specs, find_problems
from nvdp.planning.cdi_news import build_state, decode_specs, join_problems
from nvdp.planning.mps_verdicts import is_out_of_order
from nvdp.services.cdi import CdiService
from nvdp.services.events import Post
from nvdp.services.granting import GrantService
from nvdp.services.mps import MpsLink, load_view


class Foreseen(msgspec.Struct, frozen=True, kw_only=True):
    """What a writer would make of a wish. ``hook_problem``: containers need a program beside the specs."""

    state: CdiState
    hook_problem: str = ""


def build_cdi_service(options: ProcessOptions, *, post: Post, log: Log) -> CdiService:
    """Not started yet."""
    return CdiService(
        post,
        files=_build_files(options),
        load_found=_build_found_files(options).load,
        log=log,
        feature_flags=options.cdi_feature_flags,
        disabled_hooks=options.cdi_disable_hooks,
    )


def build_mps_services(options: ProcessOptions, *, post: Post, log: Log, boot_id: str) -> tuple[MpsLink, GrantService]:
    """What hears of the daemons of MPS, and what tells of them; not started yet. Blocks for the disk."""
    try:
        found = load_grants(options.state_dir)
    except HostError:
        found = None  # it is replaced as soon as there is a plan
    return (
        MpsLink(post, mps_dir=options.mps_dir, boot_id=boot_id),
        GrantService(
            post,
            partial(write_grants, options.state_dir),
            is_kept=partial(has_grants, options.state_dir),
            found=found,
            log=log,
        ),
    )


def foresee_specs(options: ProcessOptions, wish: CdiWish) -> Foreseen:
    """What that service would come to here, with nothing written. Blocks as long as the disks do."""
    wish = msgspec.structs.replace(
        wish, feature_flags=options.cdi_feature_flags, disabled_hooks=options.cdi_disable_hooks
    )
    files = _build_files(options)
    there: dict[str, bytes] = {}
    hook_problem = ""
    try:
        there = files.load()
        found = _build_found_files(options).load(wish, decode_specs(there))
        hook_problem = found.hook_problem
        problem = join_problems(find_problems(wish, found))
        contents = {name: encode_spec(spec) for name, spec in build_specs(wish, found).items()}
        for name, content in contents.items():
            if there.get(name) != content:
                files.check_writable(name)
        there |= contents
    except HostError as error:
        problem = str(error)
    state = msgspec.structs.replace(build_state(there), asked=wish.asked, problem=problem, answered=True)
    return Foreseen(state=state, hook_problem=hook_problem)


def foresee_daemons(options: ProcessOptions, grants: MpsGrants) -> tuple[str, ...]:
    """Why what MPS is to share could not be on offer here, in sentences. A daemon that is still to be started is no
    reason. Blocks for the disk.
    """
    view = load_view(options.mps_dir, now=time.monotonic(), boot_id=load_boot_id())
    wanted = [resource for resource, grant in grants.resources.items() if grant.wanted is not None]
    if view.problem and wanted:
        return (f"{view.problem}; until it does {', '.join(wanted)} cannot be offered",)
    daemons = {resource: view.daemons[resource] for resource in wanted if resource in view.daemons}
    return tuple(
        f"{resource}: its MPS control daemon is no good now: {daemon.text}"
        for resource, daemon in daemons.items()
        if is_out_of_order(daemon.phase, daemon.text)
    )


def _build_files(options: ProcessOptions) -> CdiFiles:
    # What a machine's own runtimes read is none of a simulated node's business.
    is_own = options.simulated_node is None or options.cdi_dir != CDI_DIR
    return CdiFiles(options.cdi_dir if is_own else options.run_dir / "cdi", in_pod=_is_in_pod())


def _build_found_files(options: ProcessOptions) -> FoundFiles:
    # A node has nothing of a simulated driver, but for a /dev that is made for it.
    is_real = options.simulated_node is None or options.host_dev != HOST_DEV
    return FoundFiles(host_dev=options.host_dev, is_real=is_real, in_pod=_is_in_pod())


def _is_in_pod() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ  # the kubelet gives it to every container
