"""What runs inside build stages: prune, toolchain links, audit, observe.

Executed by the image's own Python 3.11 with the standard library and pyelftools, never with the
builder's environment: nothing here imports builder.pins or a third-party package but elftools.
"""
