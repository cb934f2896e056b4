"""Settings that are right one by one and contradict each other, or need one another."""

from __future__ import annotations

from ddtree_overlay.serve.catalogue import BY_NAME, TREE_ALGORITHMS
from ddtree_overlay.serve.errors import ConflictError
from ddtree_overlay.serve.plan import Plan


def check(plan: Plan, *, need_model: bool, complete: bool = False) -> None:
    """Raises ConflictError for the first contradiction.

    complete: the profile is chosen, so an algorithm that is still unset stays so.
    """
    if need_model and not plan.get("model"):
        raise ConflictError(
            "no model is named",
            "set DDTREE_MODEL (or --model) to its folder, for example /models/Qwen3-32B",
        )
    _check_speculation(plan, complete)
    _check_hosts(plan)
    _check_ports(plan)


def _check_speculation(plan: Plan, complete: bool) -> None:
    algorithm = plan.settings["algorithm"]
    if algorithm.value in TREE_ALGORITHMS and not plan.get("draft_model"):
        raise ConflictError(
            f"algorithm is {algorithm.value} ({algorithm.source}) and no draft_model is named",
            "set DDTREE_DRAFT_MODEL to the model's DFlash drafter, or take profile nospec",
        )
    known = complete or algorithm.source != "default"
    for name in ("budget", "topk"):
        value = plan.settings[name]
        if value.value is not None and known and algorithm.value != "DDTREE":
            raise ConflictError(
                f"{name} is {value.value} ({value.source}) and belongs to DDTREE, but algorithm is "
                f"{algorithm.value or 'NONE'} ({algorithm.source})",
                f"remove {name}, or set algorithm to DDTREE",
            )
    budget, topk = plan.get("budget"), plan.get("topk")
    if budget is not None and topk is not None and topk > budget:
        raise ConflictError(
            f"topk is {topk} ({plan.settings['topk'].source}) and budget {budget} "
            f"({plan.settings['budget'].source}): a tree has no room for more than budget",
            "lower topk or raise budget",
        )


def _check_hosts(plan: Plan) -> None:
    hosts, rank = plan.settings["nnodes"], plan.settings["node_rank"]
    if rank.value >= hosts.value:
        raise ConflictError(
            f"node_rank is {rank.value} ({rank.source}) and nnodes {hosts.value} ({hosts.source})",
            f"node_rank counts from 0 to {hosts.value - 1}",
        )
    address = plan.settings["dist_init_addr"]
    if hosts.value > 1 and not address.value:
        raise ConflictError(
            f"nnodes is {hosts.value} ({hosts.source}) and dist_init_addr is not set",
            "set DDTREE_DIST_INIT_ADDR to HOST:PORT of the host whose node_rank is 0",
        )
    if address.value:
        host, colon, port = str(address.value).rpartition(":")
        if not colon or not host or not port.isdigit() or not 1 <= int(port) <= 65535:
            raise ConflictError(
                f"dist_init_addr is {address.value!r} ({address.source})", "write HOST:PORT"
            )
        if hosts.value > 1 and rank.value == 0:
            _check_meeting_port(plan, int(port))
    size = plan.settings["tp"]
    if size.value is not None and (total := size.value * plan.get("pp")) % hosts.value:
        raise ConflictError(
            f"tp x pp is {total} ({size.source}) and does not divide among nnodes "
            f"{hosts.value} ({hosts.source})",
            "make tp a multiple of nnodes",
        )


def _check_meeting_port(plan: Plan, port: int) -> None:
    for name in ("port", "probe_port"):
        other = plan.settings[name]
        if other.value == port:
            raise ConflictError(
                f"dist_init_addr ({plan.settings['dist_init_addr'].source}) and {name} "
                f"({other.source}) are both port {port}",
                f"give dist_init_addr another port, the same on all {plan.get('nnodes')} hosts",
            )


def _check_ports(plan: Plan) -> None:
    port, probe = plan.settings["port"], plan.settings["probe_port"]
    if port.value == probe.value:
        raise ConflictError(
            f"port ({port.source}) and probe_port ({probe.source}) are both {port.value}",
            f"set {BY_NAME['probe_port'].variable} to a free port",
        )
