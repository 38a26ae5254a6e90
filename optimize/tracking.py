"""Experiments: a folder for each run, and a copy of it in MLflow.

The folder comes first and is complete; MLflow gets its copy at the end. So a tracking server that is down
costs a warning, never a compile that took hours. Nothing that goes into a run is secret: settings are not
logged, language models appear by their label.
"""

import json
import logging
import os
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from programs.errors import AdaptiveRAGError
from programs.settings import Settings, load_settings

_log = logging.getLogger(__name__)
FETCHED = "fetched.json"
"""Marks the folder of a run that came from MLflow."""


class RunNotFound(AdaptiveRAGError):
    """No run has this id, here or in MLflow."""


@dataclass
class Run:
    """One run in the making.

    Attributes:
        folder: Where it is kept.
        experiment: Name of the experiment.
        name: What it is: `baseline`, `compiled`, …
        parent: Id of the run it belongs to; "" for none.
        params: What it was made with.
        metrics: What came out.
    """

    folder: Path
    experiment: str
    name: str
    parent: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.time)

    @property
    def id(self) -> str:
        return self.folder.name

    def write_json(self, name: str, value: Any) -> None:
        """Keep a value as JSON in the run's folder."""
        text = json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True)
        (self.folder / name).write_text(text + "\n", encoding="utf-8")

    def write_table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep rows as JSON Lines in the run's folder."""
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (self.folder / name).write_text("".join(lines), encoding="utf-8")

    def save(self, *, finished: bool) -> None:
        """Write what the run is; without it the folder is no run."""
        record = {
            "experiment": self.experiment,
            "name": self.name,
            "parent": self.parent,
            "params": self.params,
            "metrics": self.metrics,
            "started": self.started,
            "seconds": round(time.time() - self.started, 1),
            "finished": finished,
        }
        self.write_json("run.json", record)


def experiments_folder(settings: Settings | None = None) -> Path:
    """Where runs are kept."""
    return (settings or load_settings()).home / "experiments"


def new_run(experiment: str, name: str, *, parent: Run | None = None, settings: Settings | None = None) -> Run:
    """Begin a run.

    Args:
        experiment: One per component.
        name: What it is.
        parent: The run it belongs to.
        settings: Say where runs are kept.
    """
    folder = experiments_folder(settings) / experiment / uuid.uuid4().hex[:12]
    folder.mkdir(parents=True)
    run = Run(folder, experiment, name, parent.id if parent else "")
    run.save(finished=False)
    return run


def finish(*runs: Run, settings: Settings | None = None) -> bool:
    """End runs, parents first, and copy them to MLflow; gives whether the copy was made."""
    for run in runs:
        run.save(finished=True)
    try:
        _copy(runs, settings or load_settings())
    except tracking_faults() as error:
        _log.warning(
            "MLflow did not take the runs (%s: %s); they are in %s",
            type(error).__name__,
            str(error).splitlines()[0] if str(error) else "",
            runs[0].folder.parent if runs else "",
        )
        return False
    return True


def tracking_faults() -> tuple[type[Exception], ...]:
    """What a tracking server that is down, full or of another version ends in."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, SQLAlchemyError, OSError


def load_run(run_id: str, settings: Settings | None = None) -> Run:
    """A run by its id, here or from MLflow.

    Args:
        run_id: Of this program, the beginning of it, or the one that MLflow shows.
        settings: Say where runs are kept.

    Raises:
        RunNotFound: There is none, or several begin so.
    """
    settings = settings or load_settings()
    found = sorted(path.parent for path in experiments_folder(settings).glob(f"*/{run_id}*/run.json"))
    if len(found) > 1:
        raise RunNotFound(f"several runs begin with {run_id!r}: {', '.join(path.name for path in found)}")
    folder = found[0] if found else _fetched(run_id, settings)
    return load_run_folder(folder)


def read_table(run: Run, name: str) -> list[dict[str, Any]]:
    """Rows that `write_table` kept; [] where there are none."""
    path = run.folder / name
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def children(run: Run, settings: Settings | None = None) -> list[Run]:
    """The runs that belong to a run, oldest first; those of a run that came from MLflow come from there too.

    Args:
        run: The parent.
        settings: Say which MLflow is asked; None asks none.
    """
    if settings is not None and (run.folder / FETCHED).exists():
        _fetch_children(run, settings)
    found = []
    for path in run.folder.parent.glob("*/run.json"):
        if json.loads(path.read_text(encoding="utf-8"))["parent"] == run.id:
            found.append(load_run_folder(path.parent))
    return sorted(found, key=lambda child: child.started)


def load_run_folder(folder: Path) -> Run:
    """The run that is kept in a folder."""
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return Run(folder, **{key: record[key] for key in ("experiment", "name", "parent", "params", "metrics", "started")})


def git_commit() -> str:
    """The commit that runs, with `+` behind it where files differ from it; "" outside of a repository."""
    root = Path(__file__).parents[1]
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
        changed = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return commit.stdout.strip() + ("+" if changed.stdout.strip() else "")


def connect(settings: Settings) -> Any:
    """MLflow with its address set: the one of the settings, else a file of this user.

    Returns:
        The module `mlflow`.
    """
    # Short: nobody waits for a tracking server. Set before the import, which reads them.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    import mlflow

    mlflow.set_tracking_uri(settings.tracking_uri or _own_address(settings))
    return mlflow


def _own_address(settings: Settings) -> str:
    folder = (settings.home / "mlflow").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}"


def _copy(runs: Sequence[Run], settings: Settings) -> None:
    mlflow = connect(settings)
    copied: dict[str, str] = {}
    for run in runs:
        client = mlflow.MlflowClient()
        experiment = client.get_experiment_by_name(run.experiment)
        if experiment is None:
            # Only our own file needs to be told where artifacts go; a server knows.
            own = None if settings.tracking_uri else (settings.home / "mlflow" / "artifacts" / run.experiment).as_uri()
            experiment_id = client.create_experiment(run.experiment, artifact_location=own)
        else:
            experiment_id = experiment.experiment_id
        tags = {"adaptive_rag.run": run.id, "mlflow.runName": run.name}
        if run.parent in copied:
            tags["mlflow.parentRunId"] = copied[run.parent]
        made = client.create_run(experiment_id, start_time=int(run.started * 1000), tags=tags)
        copied[run.id] = made.info.run_id
        entities = mlflow.entities
        now = int(time.time() * 1000)
        client.log_batch(
            made.info.run_id,
            metrics=[entities.Metric(_plain(k), float(v), now, 0) for k, v in run.metrics.items()],
            params=[entities.Param(_plain(k), str(v)[:500]) for k, v in run.params.items()],
        )
        client.log_artifacts(made.info.run_id, str(run.folder))
        client.set_terminated(made.info.run_id)
        run.write_json("mlflow.json", {"run_id": made.info.run_id})


def _fetched(run_id: str, settings: Settings) -> Path:
    """A run of MLflow, brought here."""
    mlflow = connect(settings)
    client = mlflow.MlflowClient()
    try:
        artifacts = mlflow.artifacts.download_artifacts(run_id=run_id)
        experiment = client.get_experiment(client.get_run(run_id).info.experiment_id).name
    except (mlflow.exceptions.MlflowException, OSError) as error:
        raise RunNotFound(f"there is no run {run_id!r}", hint="python -m optimize compare lists the runs.") from error
    if not Path(artifacts, "run.json").exists():
        raise RunNotFound(f"the run {run_id!r} of MLflow was not made by this program")
    # Under its own id, which its children name.
    own = client.get_run(run_id).data.tags.get("adaptive_rag.run", "")
    folder: Path = experiments_folder(settings) / experiment / (own if own.isalnum() else run_id[:12])
    folder.mkdir(parents=True, exist_ok=True)
    for path in Path(artifacts).iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    for name in ("mlflow.json", FETCHED):
        (folder / name).write_text(json.dumps({"run_id": run_id}), encoding="utf-8")
    return folder


def _fetch_children(run: Run, settings: Settings) -> None:
    mlflow = connect(settings)
    client = mlflow.MlflowClient()
    own = json.loads((run.folder / FETCHED).read_text(encoding="utf-8"))["run_id"]
    try:
        experiment = client.get_run(own).info.experiment_id
        below = client.search_runs([experiment], filter_string=f"tags.`mlflow.parentRunId` = '{own}'")
    except (mlflow.exceptions.MlflowException, OSError) as error:
        _log.warning("MLflow did not give the children of %s (%s)", run.id, type(error).__name__)
        return
    for child in below:
        if not (run.folder.parent / child.data.tags.get("adaptive_rag.run", child.info.run_id[:12])).exists():
            _fetched(child.info.run_id, settings)


def _plain(name: str) -> str:
    # MLflow forbids some characters in names.
    return "".join(char if char.isalnum() or char in "_-. /" else "_" for char in name)
