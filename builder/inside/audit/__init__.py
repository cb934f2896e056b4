"""The ABI audit: rules over the finished file system; a finding fails the build.

Each module holds the rules of one concern; `rules.py` lists them; `exceptions.toml` holds what is
known, harmless and reasoned.
"""
