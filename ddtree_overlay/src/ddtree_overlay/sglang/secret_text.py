"""A secret inside SGLang's configuration: itself where it is compared, nowhere where it is shown.

ServerArgs is logged whole, copied into GET /server_info, and sent to every scheduler, whose copy
comes back in /server_info too. Nothing but the HTTP process compares keys.
"""

from __future__ import annotations

SHOWN = "(set)"


class SecretText(str):
    """The secret for ==, format and Authorization headers; "(set)" in repr, in deep copies (hence
    in dataclasses.asdict) and in what pickle sends to other processes.

    A copy must never be taken for the key: what checks keys is given the original (http_server.py).
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(SHOWN)

    def __deepcopy__(self, memo: object) -> str:
        return SHOWN

    def __reduce_ex__(self, protocol: object) -> tuple[type[str], tuple[str]]:
        return (str, (SHOWN,))
