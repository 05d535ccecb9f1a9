"""FL-D48: nothing is sent to an address that only the server can reach, however it is written."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.domain.errors import InvalidInput
from corral.domain.webhooks.addresses import is_allowed, parse_networks, parse_url, refusal

PRIVATE = [
    "127.0.0.1",
    "127.9.9.9",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "192.0.2.1",
    "198.18.0.1",
]
REFUSED = [
    *PRIVATE,
    "::1",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "fd00::1",
    "ff02::1",
    "2001:db8::1",
    "::7f00:1",
    "::a01:203",
    "64:ff9b:1::808:808",
    # Teredo: the client's address is stored inverted.
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
]
PUBLIC = [
    "8.8.8.8",
    "1.1.1.1",
    "2606:4700:4700::1111",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
    "2002:808:808::1",
]


@pytest.mark.parametrize("address", REFUSED)
def test_what_is_not_public_is_refused(address: str) -> None:
    assert refusal(address, []) is not None


@pytest.mark.parametrize("address", PUBLIC)
def test_what_is_public_is_not(address: str) -> None:
    assert refusal(address, []) is None


@pytest.mark.parametrize("inner", PRIVATE)
def test_ipv4_inside_ipv6_is_judged_by_what_it_is(inner: str) -> None:
    """FL-D48: mapped, translated and tunnelled."""
    parts = bytes(int(part) for part in inner.split("."))
    forms = [
        IPv6Address(b"\0" * 10 + b"\xff\xff" + parts),
        IPv6Address(bytes.fromhex("0064ff9b") + b"\0" * 8 + parts),
        IPv6Address(b"\x20\x02" + parts + b"\0" * 9 + b"\x01"),
        IPv6Address(b"\0" * 12 + parts),
    ]

    assert [str(form) for form in forms if refusal(str(form), []) is None] == []


@given(st.binary(min_size=4, max_size=4))
def test_a_mapped_address_is_refused_exactly_when_the_plain_one_is(packed: bytes) -> None:
    plain = ".".join(str(byte) for byte in packed)

    assert (refusal(plain, []) is None) == (refusal(f"::ffff:{plain}", []) is None)


def test_what_an_operator_allows_may_be_reached() -> None:
    allowed = parse_networks("127.0.0.0/8, fd00::/8,")

    assert allowed == (ip_network("127.0.0.0/8"), ip_network("fd00::/8"))
    for address in ("127.0.0.1", "::ffff:127.0.0.1", "fd00::1"):
        assert refusal(address, allowed) is None
        assert is_allowed(address, allowed)
    assert refusal("10.0.0.1", allowed) is not None
    assert not is_allowed("8.8.8.8", allowed)


@pytest.mark.parametrize("text", ["10.0.0.1/8", "nonsense", "10.0.0.0/33"])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_networks(text)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example.com",
        "ftp://hooks.example.com/",
        "file:///etc/passwd",
        "https://",
        "https://user:word@hooks.example.com/",
        "https://token@hooks.example.com/",
        "https://hooks.example.com\\@evil.example/",
        "https://hooks.example.com/ space",
        "https://hooks.example.com/\r\nHost: x",
        "https://hooks.example.com:0/",
        "https://hooks.example.com:99999/",
        "https://hooks.example.com:x/",
        "https://[::1/",
        "https://h\u00e4use.example/",
        "https://hooks.example.com/#fragment",
        "https://exa%6dple.com/",
        "https://hooks.example.com/" + "x" * 2048,
    ],
)
def test_a_url_that_is_not_plain_is_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_url(url)

    assert not url or url not in caught.value.message


def test_a_plain_url_is_taken_apart() -> None:
    target = parse_url("https://Hooks.Example.com:8443/services/T0/B0?x=1")

    assert target == ("https", "hooks.example.com", 8443, "/services/T0/B0?x=1")
    assert target.authority == "hooks.example.com:8443"
    assert target.shown == "https://hooks.example.com:8443/..."
    assert parse_url("http://[::1]").authority == "[::1]"
