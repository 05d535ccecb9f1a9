"""Promise 9: a secret value never leaves in clear, however it is cut, encoded or mixed with others."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import pairwise
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.domain.secrets.redact import SecretValues, StreamRedactor, StreamScanner

TOKEN = "hf_Zk3vQ9+/x?Lw~72pQ"
PEM = """-----BEGIN PRIVATE KEY-----
MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj
MzEfYyjiWA4R4/M2bS1GB4t7NXp98C3SC6dVMvDuictGeurT8jNbvJZHtCSuYEvu
Q2F0cw==
-----END PRIVATE KEY-----
"""


def feed_all(secrets: SecretValues, pieces: list[bytes]) -> bytes:
    redactor = StreamRedactor(secrets)
    return b"".join(redactor.feed(piece) for piece in pieces) + redactor.flush()


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    borders = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(borders)]


def covered(data: bytes, values: list[bytes]) -> bytes:
    """The slow and obvious answer for plain values: overlapping hits are one star."""
    out, end = bytearray(), 0
    for at in range(len(data)):
        lengths = [len(value) for value in values if data.startswith(value, at)]
        if lengths and at >= end:
            out += b"*"
        end = max([end, *(at + n for n in lengths)])
        if at >= end:
            out += data[at : at + 1]
    return bytes(out)


def test_a_value_is_replaced_by_its_name() -> None:
    secrets = SecretValues({"HF_TOKEN": TOKEN})
    assert secrets.redact_text(f"login {TOKEN} ok") == "login [secret HF_TOKEN] ok"


def test_the_repr_shows_names_only() -> None:
    assert repr(SecretValues({"HF_TOKEN": TOKEN})) == "Secrets(['HF_TOKEN'])"


def test_values_under_eight_bytes_are_left_alone() -> None:
    secrets = SecretValues({"PIN": "1234567", "EMPTY": "", "WIDE": "日本語"})
    assert secrets.redact_text("1234567 日本語") == "1234567 [secret WIDE]"


def test_no_secrets_change_nothing() -> None:
    assert SecretValues({}).redact(b"anything") == b"anything"
    assert StreamScanner(SecretValues({})).feed(b"anything") is None


@pytest.mark.parametrize("before", range(6))
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_base64_is_found_at_every_alignment(before: int, encode: type[bytes]) -> None:
    text = encode(b"u" * before + TOKEN.encode() + b":tail")
    cleaned = SecretValues({"T": TOKEN}).redact(text)
    assert b"[secret T]" in cleaned
    assert SecretValues({"T": TOKEN}).find(text) == "T"


@pytest.mark.parametrize(
    "form",
    [
        json.dumps('pass"word\\\nü!')[1:-1],
        json.dumps('pass"word\\\nü!', ensure_ascii=False)[1:-1],
        repr('pass"word\\\nü!')[1:-1],
        quote('pass"word\\\nü!'),
        quote('pass"word\\\nü!').replace("%C3%BC", "%c3%bc").replace("%5C%0A", "%5c%0a"),
    ],
)
def test_escaped_forms_are_found(form: str) -> None:
    secrets = SecretValues({"P": 'pass"word\\\nü!'})
    assert secrets.redact_text(f"<{form}>") == "<[secret P]>"


def test_a_private_key_is_hidden_line_by_line() -> None:
    secrets = SecretValues({"KEY": PEM})
    lines = [secrets.redact_text(line) for line in PEM.splitlines()]
    assert lines == ["-----BEGIN PRIVATE KEY-----", *["[secret KEY]"] * 3, "-----END PRIVATE KEY-----"]


def test_base64_wrapped_into_lines_is_hidden() -> None:
    secrets = SecretValues({"KEY": PEM})
    wrapped = base64.encodebytes(PEM.encode())
    assert set(secrets.redact(wrapped).splitlines()) == {b"[secret KEY]"}
    assert secrets.find(wrapped) == "KEY"


def test_a_trailing_newline_in_the_value_does_not_hide_it_from_the_search() -> None:
    assert SecretValues({"T": f"{TOKEN}\n"}).redact_text(f"[{TOKEN}]") == "[[secret T]]"


def test_an_innocent_line_of_a_secret_document_does_not_refuse_a_file() -> None:
    document = '{\n  "type": "service_account",\n  "key": "0123456789abcdef"\n}\n'
    secrets = SecretValues({"GCP": document})
    assert secrets.find(b'  "type": "service_account",') is None
    assert secrets.find(document.encode()) == "GCP"
    assert secrets.redact(b'"type": "service_account",') == b"[secret GCP]"


def test_the_longest_of_two_secrets_at_one_place_gives_the_name() -> None:
    secrets = SecretValues({"SHORT": "abcdefgh", "LONG": "abcdefghijkl"})
    assert secrets.redact(b"abcdefghijkl abcdefghij") == b"[secret LONG] [secret SHORT]ij"


def test_overlapping_secrets_leave_no_remainder() -> None:
    secrets = SecretValues({"A": "abcdefgh", "B": "efghijklmnop"})
    assert secrets.redact(b"<abcdefghijklmnop>") == b"<[secret A]>"
    assert feed_all(secrets, [b"<abcdefgh", b"ijkl", b"mnop>"]) == b"<[secret A]>"


def test_a_name_that_contains_the_value_is_not_printed() -> None:
    assert SecretValues({"db_password": "password"}).redact(b"password") == b"[secret]"
    assert SecretValues({"A": "[secret]", "B": "secret B"}).redact(b"secret B") == b"***"


def test_ordinary_output_is_not_delayed() -> None:
    redactor = StreamRedactor(SecretValues({"T": "swordfish-1"}))
    assert redactor.feed(b"step 1 loss 2.5\n") == b"step 1 loss 2.5\n"
    assert redactor.feed(b"fish swordf") == b"fish "
    assert redactor.feed(b"ight\n") == b"swordfight\n"


def test_a_secret_written_byte_by_byte_is_caught() -> None:
    data = f"a {TOKEN} b {base64.b64encode(TOKEN.encode()).decode()} c".encode()
    secrets = SecretValues({"T": TOKEN})
    assert feed_all(secrets, [data[i : i + 1] for i in range(len(data))]) == secrets.redact(data)
    assert secrets.redact(data).startswith(b"a [secret T] b [secret T]")


def test_what_is_held_back_stays_below_the_longest_needle() -> None:
    redactor = StreamRedactor(SecretValues({"T": "a" * 50 + "b"}))
    released = sum(len(redactor.feed(b"a" * 10)) for _ in range(100))
    assert 1000 - released < 51 * 2


def test_a_scanner_finds_a_secret_across_chunks() -> None:
    scanner = StreamScanner(SecretValues({"T": TOKEN}))
    half = len(TOKEN) // 2
    assert scanner.feed(b"x" * 5000 + TOKEN[:half].encode()) is None
    assert scanner.feed(TOKEN[half:].encode()) == "T"
    assert scanner.feed(b"nothing here") == "T"


# A tiny alphabet makes overlaps, prefixes and near misses common.
plain_values = st.lists(st.text("ab", min_size=8, max_size=12), min_size=1, max_size=4, unique=True)
any_values = st.dictionaries(st.sampled_from("ABCD"), st.text(min_size=3, max_size=20), max_size=4)
splits = st.lists(st.integers(0, 400), max_size=12)


@st.composite
def texts_with(draw: st.DrawFn, values: list[str], alphabet: str) -> bytes:
    filler = st.text(alphabet, max_size=10)
    encoded = [base64.b64encode(value.encode()).decode() for value in values]
    pieces = st.sampled_from([*values, *encoded]) if values else st.nothing()
    return "".join(draw(st.lists(pieces | filler, max_size=12))).encode()


@given(data=st.data(), values=plain_values, cuts=splits)
def test_any_split_gives_what_the_obvious_algorithm_gives(
    data: st.DataObject, values: list[str], cuts: list[int]
) -> None:
    text = data.draw(texts_with(values, "abc"))
    secrets = SecretValues({f"s{i}": value for i, value in enumerate(values)})
    got = feed_all(secrets, cut(text, cuts))
    assert got == secrets.redact(text)
    if "=" not in text.decode():
        needles = [value.encode() for value in values]
        plain = [secrets.label(f"s{i}") for i in range(len(values))]
        for label in plain:
            got = got.replace(label, b"*")
        hits_only_plain = not any(piece in text for piece in base64_of(values))
        assert not hits_only_plain or got == covered(text, needles)


def base64_of(values: list[str]) -> Iterator[bytes]:
    return (base64.b64encode(value.encode())[:8] for value in values)


@given(data=st.data(), values=any_values, cuts=splits)
def test_no_value_nor_its_base64_ever_comes_out(
    data: st.DataObject, values: dict[str, str], cuts: list[int]
) -> None:
    """FL-D48."""
    text = data.draw(texts_with(list(values.values()), "ab[]*#secrtABCD "))
    secrets = SecretValues(values)
    out = feed_all(secrets, cut(text, cuts))
    assert out == secrets.redact(text)
    for value in values.values():
        if len(value.encode()) >= 8:
            assert value.encode() not in out
            assert base64.b64encode(value.encode()).rstrip(b"=") not in out


@given(data=st.data(), values=any_values, cuts=splits)
def test_a_scanner_sees_the_same_in_any_split(
    data: st.DataObject, values: dict[str, str], cuts: list[int]
) -> None:
    text = data.draw(texts_with(list(values.values()), "ab "))
    secrets = SecretValues(values)
    scanner = StreamScanner(secrets)
    found = [scanner.feed(piece) for piece in cut(text, cuts)]
    assert (found[-1] is None) == (secrets.find(text) is None)


@given(text=st.text(), cuts=splits)
def test_text_without_secrets_passes_unchanged(text: str, cuts: list[int]) -> None:
    secrets = SecretValues({"T": "a-long-secret-value"})
    assert feed_all(secrets, cut(text.encode(), cuts)) == text.encode()
    assert secrets.redact_text(text) == text
