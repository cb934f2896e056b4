"""What setup.py needs to build the wheel. Standard library only; not shipped."""
