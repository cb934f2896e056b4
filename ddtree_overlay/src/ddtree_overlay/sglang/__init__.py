"""What SGLang runs for DDTREE: the only part of the wheel that imports SGLang."""
