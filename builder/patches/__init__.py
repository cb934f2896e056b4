"""The patched SGLang: a wheel by hash, a series of patches, a wheel of our own version.

treehash  identity of a file tree
series    patch files and their headers; diff: their second half
apply     strict application in memory
wheel     unpack, check, patch, repack
scratch   a git work tree to edit the series in, and back
"""
