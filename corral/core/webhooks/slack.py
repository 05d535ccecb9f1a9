"""A notice as a message for Slack, and for chats that take the same form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The most that Slack takes, as its reference of blocks says.
HEADER_CHARS = 150
FIELD_CHARS = 2000
SECTION_CHARS = 3000
FIELDS = 10
# It cuts longer texts off itself, but far later.
TEXT_CHARS = 3000

_SIGNS = {
    "run.succeeded": ":white_check_mark:",
    "run.failed": ":x:",
    "run.cancelled": ":no_entry_sign:",
    "run.retried": ":repeat:",
    "call.succeeded": ":white_check_mark:",
    "call.failed": ":x:",
    "call.cancelled": ":no_entry_sign:",
    "call.expired": ":hourglass:",
}


def slack_message(notice: Mapping[str, Any]) -> dict[str, Any]:
    """`text` for notifications, `blocks` for the channel."""
    run = notice["run"]
    if notice.get("call") is not None:
        return _call_message(notice)
    if run is None:
        text = "Corral can reach this channel."
        return {"text": text, "blocks": [_section(text)]}
    word = str(notice["type"]).removeprefix("run.")
    title = f"{run['name']} {word}"
    about = {
        "Run": run["id"],
        "Project": run["project"],
        "Group": run["group"],
        "Host": run["host"],
        "Attempt": run["attempt"] or None,
        "Reason": run["reason"],
        "Exit code": run["exit_code"],
        "Took": _took(run),
        "By": run["submitted_by"],
    }
    message = _message(notice, title, about, f"{_plain(run['project'])}, {run['id']}", run["detail"])
    if run["hint"]:
        message["blocks"].append(_section(_plain(run["hint"])))
    return message


def _call_message(notice: Mapping[str, Any]) -> dict[str, Any]:
    call = notice["call"]
    title = f"{call['endpoint'] or call['function']} {str(notice['type']).removeprefix('call.')}"
    about = {
        "Call": call["id"],
        "Project": call["project"],
        "Function": call["function"],
        "Attempt": call["attempt"] or None,
        "Error": call["error"],
        "Took": _took(call),
        "By": call["submitted_by"],
    }
    return _message(notice, title, about, call["id"], call["message"])


def _message(
    notice: Mapping[str, Any], title: str, about: Mapping[str, Any], which: str, detail: str | None
) -> dict[str, Any]:
    fields = [_mrkdwn(f"*{name}*\n{_plain(value)}", FIELD_CHARS) for name, value in about.items() if value]
    blocks = [
        {"type": "header", "text": {"type": "plain_text", "text": _cut(title, HEADER_CHARS), "emoji": False}},
        {"type": "section", "fields": fields[:FIELDS]},
    ]
    text = f"{_SIGNS.get(str(notice['type']), ':information_source:')} {_plain(title)} ({which})"
    if detail:
        blocks.append(_section(f"```{_cut(_plain(detail).replace('```', ''), 2500)}```"))
        text += f": {_plain(detail)}"
    return {"text": _cut(text, TEXT_CHARS), "blocks": blocks}


def _took(run: Mapping[str, Any]) -> str | None:
    if run["started_at"] is None or run["ended_at"] is None:
        return None
    seconds = round(run["ended_at"] - run["started_at"])
    hours, rest = divmod(max(seconds, 0), 3600)
    return f"{hours}h {rest // 60}m {rest % 60}s" if hours else f"{rest // 60}m {rest % 60}s"


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": _mrkdwn(text, SECTION_CHARS)}


def _mrkdwn(text: str, most: int) -> dict[str, Any]:
    return {"type": "mrkdwn", "text": _cut(text, most)}


def _plain(value: object) -> str:
    """What came from a run must not mention people, link, or end the block that it stands in."""
    return str(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "\u2026"
