"""Checks of the host and the container, cheapest cause first: what one finding explains, later
checks do not repeat."""

from ddtree_overlay.doctor.host_checks import (
    caches,
    container,
    driver,
    gpus,
    limits,
    links,
    memory,
    network,
    processors,
    profile,
    shared_memory,
)

CHECKS = (
    *driver.CHECKS,
    *gpus.CHECKS,
    *profile.CHECKS,
    *links.CHECKS,
    *shared_memory.CHECKS,
    *limits.CHECKS,
    *processors.CHECKS,
    *memory.CHECKS,
    *network.CHECKS,
    *caches.CHECKS,
    *container.CHECKS,
)
