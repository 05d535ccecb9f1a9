"""How much a project's secrets may cost: each of them is looked for in all that its runs say."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.live_server import error_of, named, serve

from corral.domain.secrets.redact import SecretValues


def test_the_secrets_of_a_project_have_a_limit_in_all(tmp_path: Path) -> None:
    """ATK4-02: any number of them could be set, each of 64 kB, and all were looked for in every line."""
    with serve(tmp_path) as live:
        project = named("project")
        put = [live.call("PUT", path_of(project, n), {"value": "v" * 60_000}) for n in range(8)]
        assert [answer.status_code for answer in put] == [200] * 3 + [422] * 5
        assert "bytes in all" in error_of(put[-1], 422, "invalid_input").message
        # One that becomes smaller, and other projects, are not concerned.
        assert live.call("PUT", path_of(project, 0), {"value": "v" * 59_000}).status_code == 200
        assert live.call("PUT", path_of(named("project"), 0), {"value": "v" * 60_000}).status_code == 200


def test_what_is_looked_for_is_made_once_for_many_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ATK4-02: every submit made it anew, on the event loop."""
    made: list[int] = []
    make = SecretValues.__init__

    def counted(self: SecretValues, values: dict[str, str]) -> None:
        made.append(len(values))
        make(self, values)

    monkeypatch.setattr(SecretValues, "__init__", counted)
    with serve(tmp_path) as live:
        project = named("project")
        live.ok("PUT", path_of(project, 0), {"value": "a-value-to-look-for"})
        for _ in range(5):
            live.submit(project=project)
        assert made == [1]
        live.ok("PUT", path_of(project, 1), {"value": "another-value-to-look-for"})
        live.submit(project=project)
        assert made == [1, 2]
        refused = live.call("POST", "/v1/runs", exposing(project))
        error_of(refused, 422, "secret_exposed")


def exposing(project: str) -> dict[str, object]:
    run = {"argv": ["echo", "another-value-to-look-for"], "project": project}
    return {"request_id": named("request-id"), "runs": [run]}


def path_of(project: str, number: int) -> str:
    return f"/v1/projects/{project}/secrets/S{number}"
