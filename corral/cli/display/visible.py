"""Text that others wrote, made harmless: what a terminal would obey is shown instead.

Labels, details, names of metrics and hosts, and errors come from programs and from other people. An escape
sequence among them could move the cursor, hide a line, or make the terminal type.
"""

from __future__ import annotations

import re
from typing import TextIO

# Control characters, marks that turn the direction of text, and halves of characters.
_OBEYED = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_UNSAFE = re.compile(f"[\x00-\x08\x0b-\x1f{_OBEYED}]")
# What sets colours and the like or clears the rest of a line, as bars of progress do, which a terminal may
# obey; and the other characters of `_UNSAFE` but `\r`.
_COLOUR_OR_UNSAFE = re.compile(f"(\x1b\\[(?:[0-9;:]*m|[0-2]?K))|[\x00-\x08\x0b\x0c\x0e-\x1f{_OBEYED}]")
# JSON escapes the lower ones itself.
_UNSAFE_IN_JSON = re.compile(f"[{_OBEYED}]")


def visible(text: str) -> str:
    """The text with each character that a terminal would obey as an escape; line ends and tabs stay."""
    return _UNSAFE.sub(_escape, text.replace("\r\n", "\n"))


def for_stream(text: str, stream: TextIO) -> str:
    """What a program wrote: for a file or another program as it is, for a terminal without what that would
    obey but colours, `\\r` and clearing a line."""
    if not stream.isatty():
        return text
    return _COLOUR_OR_UNSAFE.sub(lambda found: found[1] or _escape(found), text)


def visible_line(text: str) -> str:
    """The same for what must stay within its line: line ends and tabs are shown too."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def visible_json(text: str) -> str:
    """JSON that says the same and holds no character that a terminal would obey."""
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
