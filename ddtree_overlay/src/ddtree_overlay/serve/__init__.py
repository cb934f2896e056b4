"""The image's entry point. Standard library only: it must run when torch does not."""
