from __future__ import annotations

from builder.engine.network import NAMESERVER, resolv_conf


def test_a_loopback_resolver_is_replaced_and_the_rest_kept() -> None:
    host = "# systemd-resolved\nnameserver 127.0.0.53\nsearch corp.example\noptions edns0\n"
    text = resolv_conf(host)
    assert text.splitlines() == [f"nameserver {NAMESERVER}", "search corp.example", "options edns0"]


def test_without_a_host_file_there_is_still_a_resolver() -> None:
    assert resolv_conf("") == f"nameserver {NAMESERVER}\n"
