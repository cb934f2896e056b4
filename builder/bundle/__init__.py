"""The offline bundle: image, evidence, signature and what serves it, for hosts without a network.

`deploy/bundle/import.sh` is its other half; `make_bundle` is the way in.
"""
