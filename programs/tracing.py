"""The only MLflow tracing set-up; a no-op without a tracking address.

Tracing never decides about an answer: a tracking server that is down costs a warning, not a question.
"""

import logging
import os
import threading

from programs.settings import Settings

EXPERIMENT = "adaptive-rag"
_lock = threading.Lock()
_state: dict[str, bool] = {}
_log = logging.getLogger(__name__)


def start_tracing(settings: Settings) -> bool:
    """Send traces of all DSPy calls to MLflow from now on; once per process and address.

    Must be called in the thread that first configures DSPy (MLflow configures it).

    Returns:
        Whether traces are kept.
    """
    address = settings.tracking_uri
    if not address:
        return False
    with _lock:
        if address not in _state:
            _state[address] = _start(address)
        return _state[address]


def _start(address: str) -> bool:
    # Short: nobody waits for a tracking server. Set before the import, which reads them.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    import mlflow
    from mlflow.exceptions import MlflowException

    try:
        mlflow.set_tracking_uri(address)
        mlflow.set_experiment(EXPERIMENT)
        mlflow.dspy.autolog(log_traces=True, log_traces_from_compile=False)
    except (MlflowException, OSError) as error:
        _log.warning("MLflow at the tracking address cannot be used, traces are off: %s", type(error).__name__)
        mlflow.tracing.disable()
        return False
    return True
