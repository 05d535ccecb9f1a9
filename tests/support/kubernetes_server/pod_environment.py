"""What a container finds: its command, its variables, and the objects that they come from."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from decimal import ROUND_UP, Decimal
from pathlib import Path

from support.kubernetes_server.container import expanded
from support.kubernetes_server.objects import Json, name_of, namespace_of, uid_of
from support.kubernetes_server.resources import resource_of
from support.kubernetes_server.storage import Storage
from support.kubernetes_server.syntax import parse_quantity

_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


class NotThere(Exception):
    """A container cannot be made yet; `reason` is what its status says meanwhile."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def command_of(container: Json, images: Mapping[str, list[str]], variables: Mapping[str, str]) -> list[str]:
    """The command and its arguments; an image's own command where the pod names none."""
    command = container.get("command") or images[container["image"]]
    words = [*command, *container.get("args", ())]
    if not words:
        raise NotThere("CreateContainerError", "no command specified")
    return [expanded(word, variables) for word in words]


def variables_of(storage: Storage, pod: Json, container: Json) -> dict[str, str]:
    found: dict[str, str] = {"HOSTNAME": pod["spec"].get("hostname", name_of(pod))}
    for source in container.get("envFrom", ()):
        for kind, plural in (("secretRef", "secrets"), ("configMapRef", "configmaps")):
            if kind in source:
                obj = _referenced(storage, pod, plural, source[kind])
                values = _values(plural, obj) if obj is not None else {}
                found |= {f"{source.get('prefix', '')}{key}": value for key, value in values.items()}
    for variable in container.get("env", ()):
        if "valueFrom" in variable:
            value = _value_from(storage, pod, container, variable["valueFrom"])
            if value is not None:
                found[variable["name"]] = value
        else:
            found[variable["name"]] = expanded(variable.get("value", ""), found)
    return found


def _value_from(storage: Storage, pod: Json, container: Json, source: Json) -> str | None:
    if "fieldRef" in source:
        return _field(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return _resource(container, source["resourceFieldRef"])
    kind, plural = (
        ("secretKeyRef", "secrets") if "secretKeyRef" in source else ("configMapKeyRef", "configmaps")
    )
    reference = source[kind]
    obj = _referenced(storage, pod, plural, reference)
    value = _values(plural, obj).get(reference["key"]) if obj is not None else None
    if value is None and not reference.get("optional"):
        where = f"{plural[:-1]} {namespace_of(pod)}/{reference['name']}"
        said = f"couldn't find key {reference['key']} in {where}"
        raise NotThere("CreateContainerConfigError", said)
    return value


def _referenced(storage: Storage, pod: Json, plural: str, reference: Json) -> Json | None:
    obj = storage.find(resource_of(plural), namespace_of(pod), reference["name"])
    if obj is None and not reference.get("optional"):
        raise NotThere("CreateContainerConfigError", f'{plural[:-1]} "{reference["name"]}" not found')
    return obj


def _values(plural: str, obj: Json) -> dict[str, str]:
    data: dict[str, str] = obj.get("data", {})
    if plural == "configmaps":
        return data
    return {key: base64.b64decode(value).decode(errors="replace") for key, value in data.items()}


def _field(pod: Json, path: str) -> str:
    if keyed := _KEYED.fullmatch(path):
        return str(pod["metadata"].get(keyed[1], {}).get(keyed[2], ""))
    fields: dict[str, str] = {
        "metadata.name": name_of(pod),
        "metadata.namespace": namespace_of(pod),
        "metadata.uid": uid_of(pod),
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", ""),
    }
    # What is left are addresses, and there is only this machine.
    return fields.get(path, "127.0.0.1")


def _resource(container: Json, source: Json) -> str:
    kind, _, name = source["resource"].partition(".")
    amount = parse_quantity(container.get("resources", {}).get(kind, {}).get(name, "0"))
    divisor = parse_quantity(source.get("divisor", "1")) or Decimal(1)
    return str((amount / divisor).to_integral_value(ROUND_UP))


def missing_volume(storage: Storage, pod: Json) -> tuple[str, str] | None:
    """The first volume whose object is not there, and what a kubelet says of it."""
    for volume in pod["spec"].get("volumes", ()):
        for kind, plural, key in (
            ("secret", "secrets", "secretName"),
            ("configMap", "configmaps", "name"),
            ("persistentVolumeClaim", "persistentvolumeclaims", "claimName"),
        ):
            source = volume.get(kind)
            if source is None or source.get("optional"):
                continue
            if storage.find(resource_of(plural), namespace_of(pod), source[key]) is None:
                return volume["name"], f'{plural[:-1]} "{source[key]}" not found'
    return None


def mount_secrets(storage: Storage, pod: Json, folder: Path) -> dict[str, str]:
    """Writes the files of secrets below a folder of this machine; where that is, by the path in the pod."""
    found = {}
    for volume in pod["spec"].get("volumes", ()):
        if "secret" not in volume:
            continue
        place = folder / "volumes" / volume["name"]
        place.mkdir(parents=True, exist_ok=True)
        secret = storage.find(resource_of("secrets"), namespace_of(pod), volume["secret"]["secretName"])
        for key, value in (secret or {}).get("data", {}).items():
            path = place / key
            path.write_bytes(base64.b64decode(value))
            path.chmod(volume["secret"]["defaultMode"])
        for container in pod["spec"]["containers"]:
            for mount in container.get("volumeMounts", ()):
                if mount["name"] == volume["name"]:
                    found[mount["mountPath"]] = str(place)
    return found


def relocated(variables: Mapping[str, str], mounts: Mapping[str, str]) -> dict[str, str]:
    """A container here has this machine's files: a variable that is the path of a mount says where it is."""
    return {name: mounts.get(value, value) for name, value in variables.items()}
