"""Settings come from the environment and `.env`; a wrong one is named, and no secret is ever shown."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from programs.errors import SettingsError
from programs.settings import ROLES, Settings, load_settings


def test_the_defaults_need_no_key_and_no_service() -> None:
    settings = load_settings()
    for role in ROLES:
        [endpoint] = settings.endpoints(role)
        assert endpoint.embedded
        assert (endpoint.model, endpoint.api_key, endpoint.concurrency) == ("qwen2.5-coder-1.5b", None, 1)
    assert settings.milvus_uri is settings.elasticsearch_url is settings.tracking_uri is None


def test_the_environment_wins_over_the_file_and_an_argument_over_both(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("ADAPTIVE_RAG_MAX_HOPS=3\nADAPTIVE_RAG_DEADLINE=30\nOTHER=1\n")
    assert (load_settings().max_hops, load_settings().deadline) == (3, 30.0)
    monkeypatch.setenv("ADAPTIVE_RAG_MAX_HOPS", "4")
    assert load_settings().max_hops == 4
    assert load_settings(max_hops=5).max_hops == 5


def test_a_file_with_a_byte_order_mark_is_read() -> None:
    Path(".env").write_bytes("\ufeffADAPTIVE_RAG_MAX_HOPS=3\n# 中文注释\n".encode())
    assert load_settings().max_hops == 3


def test_a_file_in_another_encoding_is_an_error_with_a_way_out() -> None:
    Path(".env").write_bytes("ADAPTIVE_RAG_STORE_PREFIX=中文".encode("gbk"))
    with pytest.raises(SettingsError, match="UTF-8"):
        load_settings()


def test_an_empty_variable_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_HOPS", "API_KEY", "LM", "MILVUS_URI", "RERANKER"):
        monkeypatch.setenv(f"ADAPTIVE_RAG_{name}", "")
    settings = load_settings()
    assert settings.max_hops is settings.api_key is settings.milvus_uri is settings.reranker is None
    assert settings.endpoints("router")[0].embedded


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_HOPS", "0"),
        ("MAX_HOPS", "-1"),
        ("MAX_HOPS", "11"),
        ("MAX_HOPS", "many"),
        ("DEADLINE", "0"),
        ("DEADLINE", "soon"),
        ("CONFIDENCE_THRESHOLD", "1.1"),
        ("CONFIDENCE_THRESHOLD", "nan"),
        ("STORE_PREFIX", "Nicht erlaubt"),
        ("STORE_PREFIX", "x; drop"),
        ("MAX_TOKENS", "0"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_the_variable_and_not_the_value(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"ADAPTIVE_RAG_{name}", value)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert f"ADAPTIVE_RAG_{name}" in caught.value.message


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        load_settings().max_hops = 3


# -- endpoints -------------------------------------------------------------------------------


def endpoint(line: str, **settings: Any) -> Any:
    [found] = load_settings(lm=line, **settings).endpoints("router")
    return found


def test_a_line_is_read_with_all_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    found = endpoint("qwen-plus@https://host:8000/v1/?key=MY_KEY&thinking=off&context=4096&concurrency=2&timeout=5.5")
    assert (found.model, found.base_url) == ("qwen-plus", "https://host:8000/v1")
    assert found.api_key.get_secret_value() == "secret"
    assert (found.thinking, found.context, found.concurrency, found.timeout) == ("off", 4096, 2, 5.5)
    assert found.label == "qwen-plus@https://host:8000/v1"


@pytest.mark.parametrize("model", ["org/model:tag", "@cf/meta/llama-3", "model@2026-01-01", "模型"])
def test_a_model_name_may_hold_signs(model: str) -> None:
    assert (endpoint(f"{model}@http://h/v1").model, endpoint(f"{model}@http://h/v1").base_url) == (model, "http://h/v1")


def test_embedded_models_have_names() -> None:
    assert endpoint("local:qwen2.5-coder-0.5b").model == "qwen2.5-coder-0.5b"
    assert endpoint("local?context=2048").context == 2048


def test_several_endpoints_keep_their_order_and_roles_their_own() -> None:
    settings = load_settings(lm="a@http://one/v1 b@http://two/v1\n local", judge_lm="c@http://three/v1")
    assert [e.model for e in settings.endpoints("router")] == ["a", "b", "qwen2.5-coder-1.5b"]
    assert [e.model for e in settings.endpoints("judge")] == ["c"]


def test_the_common_key_goes_to_endpoints_that_name_no_other_and_never_to_the_embedded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OWN", "own")
    settings = load_settings(api_key="common", lm="a@http://one/v1 b@http://two/v1?key=OWN local")
    keys = [e.api_key and e.api_key.get_secret_value() for e in settings.endpoints("router")]
    assert keys == ["common", "own", None]


def test_a_key_may_stand_in_the_file_too() -> None:
    Path(".env").write_text("MY_KEY=from-file\n")
    assert endpoint("a@http://one/v1?key=MY_KEY").api_key.get_secret_value() == "from-file"


@pytest.mark.parametrize(
    "line",
    [
        " ",
        "gpt",
        "@http://h/v1",
        "a@",
        "a@ftp://h/v1",
        "a@http://",
        "a@http:///v1",
        "a@http://h/v1?thinking=maybe",
        "a@http://h/v1?context=0",
        "a@http://h/v1?concurrency=-1",
        "a@http://h/v1?timeout=inf",
        "a@http://h/v1?timeout=nan",
        "a@http://h/v1?context=many",
        "a@http://h/v1?kee=X",
        "a@http://h/v1?key=NOT_SET",
        "a@http://h/v1?key=",
    ],
)
def test_a_line_that_cannot_be_read_is_an_error_that_names_the_variable(line: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(judge_lm=line).endpoints("judge")
    assert "ADAPTIVE_RAG_JUDGE_LM" in caught.value.message


# -- secrets (H2, L3) ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "a@http://user:CANARY@host/v1",
        "a@http://CANARY@host/v1",
        "sk-CANARY-1",
        "a@ftp://user:CANARY@host/v1",
        "a@http://h/v1?key=sk-CANARY-1",
        "a@http://h/v1?key=CANARY0123456789ABCDEF",
        "a@http://h/v1?sk-CANARY-1",
        "a@http://h/v1?api_key=CANARY",
        "a@http://h/v1?thinking=CANARY",
        "a@http://h/v1?timeout=CANARY",
    ],
)
def test_a_secret_in_the_wrong_place_is_not_repeated(line: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(lm=line).endpoints("router")
    assert "CANARY" not in f"{caught.value.message}{caught.value.hint}{caught.value!r}"


def test_no_secret_shows_when_settings_are_printed_or_dumped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "CANARY")
    settings = load_settings(
        api_key="CANARY", milvus_token="CANARY", elasticsearch_api_key="CANARY", lm="a@http://h/v1?key=MY_KEY"
    )
    found = settings.endpoints("router")
    shown = f"{settings!r}{settings}{settings.model_dump()}{settings.model_dump_json()}{found!r}{found[0].label}"
    assert "CANARY" not in shown


def test_every_field_has_a_description_for_the_documentation() -> None:
    assert all(field.description for field in Settings.model_fields.values())
