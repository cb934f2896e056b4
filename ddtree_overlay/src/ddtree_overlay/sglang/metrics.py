"""DDTREE's part of the decode log line and of `/metrics`."""

from __future__ import annotations

from typing import Any

from ddtree_overlay.sglang.stats import TreeCounts, TreeStats

NO_TREES = TreeCounts(0, 0, 0, 0, 0, 0)

# Metric (Prometheus appends _total), field of TreeCounts, what it counts.
COUNTERS = (
    ("sglang:ddtree_trees", "trees", "Trees verified, one per request and round."),
    ("sglang:ddtree_nodes_verified", "nodes", "Drafted tree nodes verified, roots not counted."),
    (
        "sglang:ddtree_off_spine_tokens",
        "off_spine",
        "Accepted tokens that the drafter's greedy chain did not hold.",
    ),
    (
        "sglang:ddtree_truncated_trees",
        "truncated",
        "Trees that a larger --speculative-ddtree-topk could have changed.",
    ),
    (
        "sglang:ddtree_fallbacks",
        "fallbacks",
        "Rounds of a request without a tree: the drafter gave no usable distribution.",
    ),
)


class TreeMetrics:
    """Reports what the trees did since the last report."""

    def __init__(self, stats: TreeStats, budget: int) -> None:
        self._stats, self._budget = stats, budget
        self._reported = NO_TREES
        self._counters: dict[str, Any] = {}

    def report(self, collector: Any) -> str:
        """A piece of the decode log line; updates Prometheus if there is a `collector` (upstream's
        `SchedulerMetricsCollector`, for its labels). Waits for the device: once per log interval.
        """
        counts = self._stats.read()
        past, self._reported = self._reported, counts
        if collector is not None:
            self._export(collector.labels, past, counts)
        trees = counts.trees - past.trees
        if trees == 0:
            return ""
        return (
            f"tree budget: {self._budget}, "
            f"tree nodes: {(counts.nodes - past.nodes) / trees:.2f}, "
            f"off-spine accept: {(counts.off_spine - past.off_spine) / trees:.2f}, "
            f"truncated trees: {counts.truncated - past.truncated}, "
            f"tree fall-backs: {counts.fallbacks - past.fallbacks}, "
        )

    def _export(self, labels: dict[str, str], past: TreeCounts, now: TreeCounts) -> None:
        if not self._counters:
            # Not at import: PROMETHEUS_MULTIPROC_DIR must be set by then.
            from prometheus_client import Counter, Gauge

            for name, field, what in COUNTERS:
                self._counters[field] = Counter(name, what, labelnames=list(labels))
            budget = Gauge(
                "sglang:ddtree_budget",
                "Drafted nodes of a verify tree, the root not counted.",
                labelnames=list(labels),
                multiprocess_mode="mostrecent",
            )
            budget.labels(**labels).set(self._budget)
        for field, counter in self._counters.items():
            counter.labels(**labels).inc(getattr(now, field) - getattr(past, field))
