"""The three ways to patch: JSON patch, merge patch, strategic merge patch."""

from __future__ import annotations

from typing import Any

from support.kubernetes_server.errors import ApiError, bad_request, unsupported_media_type
from support.kubernetes_server.objects import Json, clone
from support.kubernetes_server.schema import document, merge_key, resolve

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
ACCEPTED = (JSON_PATCH, MERGE_PATCH, STRATEGIC)


def patched(obj: Json, patch: Any, content_type: str, definition: str) -> Json:
    """The object after the patch; 415 for server-side apply, which this server does not have."""
    if content_type == JSON_PATCH:
        if not isinstance(patch, list):
            raise bad_request("json: cannot unmarshal object into Go value of type []jsonpatch.Operation")
        return _json_patch(obj, patch)
    if content_type not in ACCEPTED:
        raise unsupported_media_type(content_type, ACCEPTED)
    if not isinstance(patch, dict):
        raise bad_request("a merge patch is an object")
    if content_type == MERGE_PATCH:
        merged = _merge(obj, patch)
    else:
        merged = _strategic(obj, patch, document()["definitions"][definition])
    return merged if isinstance(merged, dict) else {}


def _merge(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    new = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = _merge(new.get(key), value)
    return new


def _strategic(old: Any, patch: Any, schema: Json) -> Any:
    schema = resolve(schema)
    if isinstance(patch, list) and (key := merge_key(schema)) and isinstance(old, list):
        return _merge_lists(old, patch, key, schema["items"])
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    new = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
            continue
        child = schema.get("properties", {}).get(name) or schema.get("additionalProperties") or {}
        new[name] = _strategic(new.get(name), value, child if isinstance(child, dict) else {})
    return new


def _merge_lists(old: list[Any], patch: list[Any], key: str, items: Json) -> list[Any]:
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if item.get("$patch") != "replace"]
    new = list(old)
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {key}")
        place = next((i for i, one in enumerate(new) if one.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            new = [one for one in new if one.get(key) != item[key]]
        elif place is None:
            new.append(item)
        else:
            new[place] = _strategic(new[place], item, items)
    return new


def _json_patch(obj: Json, operations: list[Any]) -> Json:
    new: Any = clone(obj)
    for operation in operations:
        if not isinstance(operation, dict) or "op" not in operation or "path" not in operation:
            raise bad_request("each operation of a JSON patch has an op and a path")
        try:
            _apply(new, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            message = f"the server rejected our request due to an error in our request: {operation}: {error}"
            raise ApiError(422, "Invalid", message) from error
    result: Json = new
    return result


def _steps(pointer: str) -> list[str]:
    if not pointer.startswith("/"):
        raise ValueError(f"{pointer!r} is no JSON pointer")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/")]


def _apply(root: Any, operation: Json) -> None:
    *way, last = _steps(operation["path"])
    target = root
    for step in way:
        target = target[int(step)] if isinstance(target, list) else target[step]
    match operation["op"]:
        case "add" if isinstance(target, list):
            target.insert(len(target) if last == "-" else int(last), operation["value"])
        case "add":
            target[last] = operation["value"]
        case "replace":
            key = int(last) if isinstance(target, list) else last
            target[key]  # It must be there.
            target[key] = operation["value"]
        case "remove":
            del target[int(last) if isinstance(target, list) else last]
        case "test":
            if (target[int(last)] if isinstance(target, list) else target.get(last)) != operation["value"]:
                raise ValueError("testing value failed")
        case other:
            raise ValueError(f"unexpected kind: {other}")
