"""Routes of web functions: paths with parameters, and what is refused before it is deployed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import corral
from corral.domain import web_paths
from corral.functions.check import check
from corral.functions.web.routes import route_problems
from corral.wire.endpoints import DeployRequest, FunctionTable
from corral.wire.spec.run_file import RunSpec

if TYPE_CHECKING:
    from decimal import Decimal


class Flag(Enum):
    RED = 1


@dataclass
class Crate:
    kilos: float


class Sealed:
    """No request can give one."""


@pytest.mark.parametrize(
    ("template", "path", "found"),
    [
        ("/items/{id}", "/items/5", {"id": "5"}),
        ("/items/{id}", "/items/", None),
        ("/items/{id}", "/items/5/parts", None),
        ("/items/{id}", "/items", None),
        ("/items/{id}/parts/{part}", "/items/5/parts/a b", {"id": "5", "part": "a b"}),
        ("/files/{name:path}", "/files/a/b", {"name": "a/b"}),
        ("/files/{name:path}", "/files/", None),
        ("/", "/", {}),
        ("/plain", "/plain/", None),
        ("/old/{broken", "/old/{broken", {}),
    ],
)
def test_a_path_gives_its_parameters(template: str, path: str, found: dict[str, str] | None) -> None:
    """DEF-04."""
    assert web_paths.match(template, path) == found


def takes(id: int) -> None: ...
def takes_model(id: Crate) -> None: ...
def takes_anything(id: int, *rest: int) -> None: ...
def takes_by_place(id: int, /) -> None: ...
def takes_sealed(id: int, sealed: Sealed) -> None: ...
def takes_list_of_sealed(id: int, sealed: list[Sealed] | None = None) -> None: ...
def takes_unknown(id: Decimal) -> None: ...


class Owner:
    def method(self, id: int) -> None: ...


@pytest.mark.parametrize(
    ("path", "fn", "said"),
    [
        ("/items/{id", takes, "is no parameter; write {name}"),
        ("/items/{id:int}", takes, "its type is the hint"),
        ("/items/item-{id}", takes, "a whole part between slashes"),
        ("/items/{id}/{id}", takes, "has id twice"),
        ("/items/{id:path}/parts", takes, "must be the last"),
        ("/items?fast", takes, "never has"),
        ("/items%20/{id}", takes, "never has"),
        ("/items/{number}", takes, "the function has no parameter number"),
        ("/items/{id}", takes_model, "its parameter id is a Crate, which a part of a path cannot be"),
        ("/items/{id}", takes_anything, "its parameter rest takes what has no name"),
        ("/items/{id}", takes_by_place, "its parameter id takes what has no name"),
        ("/items/{id}", takes_sealed, "its parameter sealed is a Sealed, which a request cannot give"),
        ("/items/{id}", takes_list_of_sealed, "its parameter sealed"),
        ("/items/{id}", takes_unknown, "cannot be read: NameError"),
        ("/items/{id}", Owner.method, "this is a method of Owner"),
    ],
)
def test_what_a_route_cannot_do_is_refused_before_the_deploy(
    path: str, fn: Callable[..., Any], said: str
) -> None:
    """DEF-04: and the decorator takes it still, since an instance of an earlier deploy imports it."""
    made = corral.App("routes").web(path, method="GET")(fn)

    assert said in "; ".join(route_problems(made.member))


def fine(id: int, flag: Flag, when: datetime, crate: Crate, more: dict[str, list[float]]) -> None:
    """All that a request can give."""


def test_the_check_says_so_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DEF-04."""
    (tmp_path / "routed_app.py").write_text(
        "import corral\napp = corral.App('routes')\n@app.web('/items/{id}')\ndef f(number: int): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    found = check(importlib.import_module("routed_app").f.member)

    assert [(one.level, one.message) for one in found if "{id}" in one.message] == [
        ("error", "f: its path has {id}, and the function has no parameter id")
    ]


def test_a_route_that_can_work_is_not_refused() -> None:
    assert route_problems(corral.App("routes").web("/x/{id}/{flag}/{when}")(fine).member) == []
    assert route_problems(corral.App("routes").function()(takes_sealed).member) == []
    batch = corral.App("routes").web("/x", batch=corral.Batch(3))(lambda items: items)
    assert "batch" in route_problems(batch.member)[0]


def test_the_server_refuses_a_path_that_nothing_matches() -> None:
    """DEF-04: whoever deploys it."""
    spec = RunSpec(kind="service", argv=["true"])
    with pytest.raises(ValueError, match="is no parameter"):
        DeployRequest(name="a.f", spec=spec, functions={"f": FunctionTable(kind="web", path="/a/{b:int}")})
