"""What SGLang runs for `--speculative-algorithm DDTREE`: the only part of the wheel that imports it."""
