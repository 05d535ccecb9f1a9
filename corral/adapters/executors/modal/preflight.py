"""All that a launch needs at Modal, each with the command that makes it so. Nothing is changed."""

from __future__ import annotations

from corral.adapters.executors.modal.api import ModalApi
from corral.adapters.executors.modal.options import ModalOptions
from corral.domain.errors import CorralError
from corral.domain.placements.orders import PreflightCheck


def preflight(api: ModalApi, options: ModalOptions) -> list[PreflightCheck]:
    """Without a token nothing else can be asked."""
    try:
        api.hello()
    except CorralError as error:
        return [PreflightCheck("token", False, str(error), error.hint)]
    limits = f"{options.containers} sandboxes and {options.gpus} GPUs at once, by the options"
    return [
        PreflightCheck("token", True, "Modal accepts our token"),
        _app(api, options),
        _image(options),
        PreflightCheck("limits", True, f"{limits}; modal.com/settings says what the workspace may have"),
    ]


def _app(api: ModalApi, options: ModalOptions) -> PreflightCheck:
    try:
        there = api.has_app()
    except CorralError as error:
        fix = "List environments with `modal environment list`, and set the option `environment`."
        return PreflightCheck("app", False, str(error), fix)
    return PreflightCheck(
        "app", True, f"{options.app} {'is there' if there else 'comes with the first launch'}"
    )


def _image(options: ModalOptions) -> PreflightCheck:
    if not options.image:
        fix = "Set the option `image` to an image that has Corral: -o image=REGISTRY/NAME:TAG"
        return PreflightCheck("image", False, "there is no image", fix)
    return PreflightCheck("image", True, f"{options.image}: Modal reads it with the first launch")
