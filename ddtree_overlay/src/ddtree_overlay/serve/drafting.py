"""Algorithm and budget from the profile's tiers, where nobody gave them."""

from __future__ import annotations

from dataclasses import replace

from ddtree_overlay.serve.model_config import ModelFacts
from ddtree_overlay.serve.plan import Plan, Value
from ddtree_overlay.serve.profiles import Profile
from ddtree_overlay.serve.resolve import COMPUTED, level_is_given, set_values
from ddtree_overlay.serve.tiers import USUAL_BLOCK, choose


def choose_drafting(plan: Plan, profile: Profile, draft: ModelFacts) -> Plan:
    """The tier that the number of running requests falls into. An algorithm, budget or top-k that
    somebody gave wins: then only what is still open follows from the tier."""
    requests = plan.settings["max_running_requests"]
    if not profile.tiers or requests.value is None or not plan.get("draft_model"):
        return plan
    given = {
        name: plan.settings[name]
        for name in ("algorithm", "budget", "topk")
        if level_is_given(plan.settings[name].source)
    }
    tier = choose(profile.tiers, requests.value)
    basis = f"{COMPUTED}{requests.value} running requests ({requests.source}): "
    values: dict[str, Value] = {}
    if "algorithm" in given:
        algorithm = given["algorithm"].value
    elif given:
        algorithm = "DDTREE"
        values["algorithm"] = Value(algorithm, f"{COMPUTED}{' and '.join(given)} belong to it")
    elif tier is None:
        limit = profile.tiers[-1].max_running_requests
        algorithm = None
        values["algorithm"] = Value(None, f"{basis}{profile.source} drafts for {limit} at most")
    else:
        algorithm = tier.algorithm
        values["algorithm"] = Value(algorithm, basis + tier.why)
    if algorithm == "DDTREE" and "budget" not in given and tier and tier.algorithm == "DDTREE":
        block = draft.block_size
        nodes, why = tier.nodes(block), tier.why
        if nodes != tier.budget:
            stated = "the drafter's" if block else "the usual"
            why += f" ({stated} block of {block or USUAL_BLOCK} drafts {nodes} positions)"
        values["budget"] = Value(nodes, basis + why)
    plan = set_values(plan, values)
    chosen = values.get("algorithm")
    if chosen and profile.given.keys.get("algorithm") != chosen and chosen.value != "DDTREE":
        note = f"algorithm {chosen.value or 'NONE'}: {chosen.source.removeprefix(COMPUTED)}"
        plan = replace(plan, notes=(*plan.notes, note))
    return plan


def drop_speculation(plan: Plan) -> Plan:
    """Without an algorithm, no flag of speculation: SGLang would load a drafter for nothing."""
    if plan.get("algorithm") is not None:
        return plan
    dropped = [flag for flag in plan.flags if flag.name.startswith("--speculative-")]
    kept = tuple(flag for flag in plan.flags if flag not in dropped)
    notes = tuple(
        f"{flag.name} ({flag.source}) is left out: decoding is plain"
        for flag in dropped
        if level_is_given(flag.source)
    )
    return replace(plan, flags=kept, notes=(*plan.notes, *notes))
