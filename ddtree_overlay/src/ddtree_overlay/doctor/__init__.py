"""Checks of host, model and image before anything loads. Standard library at module level."""
