"""Tokens from the command line."""

from __future__ import annotations

import json
import subprocess

from support.installation import CORRAL, Installation


def test_a_token_is_shown_once_and_worthless_after_it_is_revoked(corral: Installation) -> None:
    made = json.loads(corral.ok("tokens", "create", "ci", "--project", "default", "--json"))
    url = json.loads((corral.home / "server.json").read_text())["url"]

    def ls() -> subprocess.CompletedProcess[str]:
        env = {**corral.env, "CORRAL_URL": url, "CORRAL_TOKEN": made["token"]}
        return subprocess.run(
            [CORRAL, "ls"], capture_output=True, text=True, env=env, timeout=60, check=False
        )

    assert ls().returncode == 0
    corral.ok("tokens", "revoke", made["id"])
    refused = ls()
    assert refused.returncode == 1
    assert refused.stderr.startswith("error:")
    assert made["token"] not in corral.ok("tokens", "ls", "--json")
