"""DDTree speculation for SGLang.

tree/   the algorithm, in plain Python
ops/    `torch.ops.ddtree.*`; importing it loads the extension
serve/  the image's entry point; standard library only

Importing this package imports none of them.
"""
