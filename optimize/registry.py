"""The promoted state in MLflow's model registry: a version for each promotion, the alias on the running one.

A version is the folder with the JSON file, nothing else. MLflow's own way to log a DSPy program pickles it
together with DSPy's settings, in which the API keys are.
"""

import hashlib
import json
import logging
from typing import Any

from optimize.tracking import Run, connect, finish, tracking_faults
from programs.settings import Settings

ALIAS = "champion"
FOLDER = "promoted"
DIGEST = "adaptive_rag.state"
_log = logging.getLogger(__name__)


def model_name(slug: str) -> str:
    """Name of the registered model for a state file."""
    return f"adaptive-rag-{slug}"


def register(run: Run, slug: str, text: str, component: str, settings: Settings) -> bool:
    """Log a promoted state and make it a version with the alias; gives whether that worked.

    Args:
        run: The promoted run.
        slug: Name of the state file.
        text: The whole state as JSON.
        component: What was promoted.
        settings: Say which MLflow.
    """
    try:
        return _register(run, slug, text, component, settings)
    except tracking_faults() as error:  # the state is in place; a registry that is down is no reason to take it back
        return _warn(error)


def move_alias(slug: str, text: str | None, settings: Settings) -> bool:
    """Set the alias to the version that holds `text`, or remove it; gives whether the registry was reached.

    Args:
        slug: Name of the state file.
        text: The state that runs now; None for none.
        settings: Say which MLflow.
    """
    try:
        client = connect(settings).MlflowClient()
        name = model_name(slug)
        versions = client.search_model_versions(f"name = '{name}'")
        own = [one for one in versions if text is not None and one.tags.get(DIGEST) == _digest(text)]
        if own:
            client.set_registered_model_alias(name, ALIAS, max(own, key=lambda one: int(one.version)).version)
        elif versions:
            client.delete_registered_model_alias(name, ALIAS)
        return True
    except tracking_faults() as error:
        return _warn(error)


def _register(run: Run, slug: str, text: str, component: str, settings: Settings) -> bool:
    mlflow = connect(settings)
    client = mlflow.MlflowClient()
    address = run.folder / "mlflow.json"
    if not address.exists() and not finish(run, settings=settings):
        return False
    known = client.get_run(json.loads(address.read_text(encoding="utf-8"))["run_id"])
    client.log_text(known.info.run_id, text, f"{FOLDER}/{slug}.state.json")
    name = model_name(slug)
    try:
        client.create_registered_model(name)
    except mlflow.exceptions.MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    tags: dict[str, Any] = {DIGEST: _digest(text), "adaptive_rag.run": run.id, "adaptive_rag.component": component}
    made = client.create_model_version(
        name, source=f"{known.info.artifact_uri}/{FOLDER}", run_id=known.info.run_id, tags=tags
    )
    client.set_registered_model_alias(name, ALIAS, made.version)
    return True


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _warn(error: Exception) -> bool:
    first = str(error).splitlines()[0] if str(error) else ""
    _log.warning("MLflow's registry was not changed (%s: %s)", type(error).__name__, first)
    return False
