"""What a lock may say."""

from __future__ import annotations

import pytest

from corral.domain.errors import InvalidInput
from corral.domain.runs.pins import check_pins

HASH = f"--hash=sha256:{'0' * 64}"
PIN = f"hay==1.0 {HASH}"


@pytest.mark.parametrize(
    "lock",
    [
        "",
        PIN,
        f"# feed\n{PIN}\n",
        f"torch==2.3.0+cu121 ; python_version < '3.13' and os_name == 'nt' \\\n    {HASH} \\\n    {HASH}\n",
        f"ruamel-yaml[jinja2,x]==1!0.18.post1 {HASH}",
        f"hay==1.0; platform_machine in 'x86_64 arm64' {HASH}",
    ],
)
def test_what_corral_itself_makes_is_accepted(lock: str) -> None:
    """ATK-01: versions, extras, markers and hashes."""
    check_pins(lock)


@pytest.mark.parametrize(
    "line",
    [
        "hay==1.0",
        f"hay>=1.0 {HASH}",
        f"hay==1.* {HASH}",
        "-r /home/corral/operator.token",
        f"-r{HASH}",
        "--find-links /tmp",
        f"--index-url=http://elsewhere {HASH}",
        f"hay @ file:///tmp/hay {HASH}",
        f"hay @ https://elsewhere/hay.whl {HASH}",
        f"git+https://elsewhere/hay {HASH}",
        f"./hay {HASH}",
        f"/tmp/hay.whl {HASH}",
        f"-e . {HASH}",
        f"hay==1.0 ; sys_platform == '${{HOME}}' {HASH}",
        f"hay==1.0 ; sys_platform == 'x' --config-settings=a=b {HASH}",
        f"hay==1.0 {HASH} -r /etc/passwd",
        f"hay==1.0 --hash=md5:{'0' * 32}",
        f"{PIN}\f-r /etc/passwd",
        "# a comment \\\n-r /etc/passwd",
        f"{PIN} \\\n# between\n-r /etc/passwd",
        f"{PIN} \\",
        f"h\u00e4y==1.0 {HASH}",
    ],
)
def test_nothing_else_is(line: str) -> None:
    """ATK-01: no range, option, URL, path, variable, nor a line that hides behind another."""
    with pytest.raises(InvalidInput, match="the lock has the line"):
        check_pins(f"{PIN}\n{line}\n{PIN}\n")
