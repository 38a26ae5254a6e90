"""`compose.yaml`: nothing without a health check, nothing reachable from outside, no password that works by default."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
TEXT = (REPOSITORY / "compose.yaml").read_text(encoding="utf-8")
EXAMPLE = (REPOSITORY / ".env.example").read_text(encoding="utf-8")
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)(:[?-])?([^}]*)\}")
SECRET = re.compile(r"PASSWORD|SECRET|KEY|TOKEN|_USER$")
NO_SECRET = {"POSTGRES_USER": "mlflow"}
"""A name that is written into the addresses."""
each_service = pytest.mark.parametrize("name", SERVICES)


def environment(service: dict[str, Any]) -> dict[str, str]:
    """Variables of a service; they are written as a mapping everywhere."""
    return {name: str(value) for name, value in service.get("environment", {}).items()}


@each_service
def test_a_service_tells_how_it_is_and_comes_back(name: str) -> None:
    service = SERVICES[name]
    assert service["restart"] in ("unless-stopped", "always")
    check = service["healthcheck"]
    assert check["test"][0] in ("CMD", "CMD-SHELL")
    assert len(check["test"]) > 1
    assert {"interval", "timeout", "retries"} <= set(check)


@each_service
def test_a_published_port_is_on_the_loopback_interface(name: str) -> None:
    service = SERVICES[name]
    for port in service.get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", str(port)), port
    assert service.get("network_mode") != "host"


def test_two_services_that_run_together_publish_no_port_twice() -> None:
    for profile in ("cpu", "gpu"):
        running = [s for s in SERVICES.values() if profile in s.get("profiles", [profile])]
        ports = [str(port).split(":")[1] for service in running for port in service.get("ports", [])]
        assert len(ports) == len(set(ports))
        assert "8000" in ports


@each_service
def test_an_image_has_a_version(name: str) -> None:
    service = SERVICES[name]
    build = service.get("build", {}).get("dockerfile_inline", "")
    for image in (service["image"], *re.findall(r"(?m)^FROM (\S+)", build)):
        _, colon, tag = image.rpartition("/")[2].partition(":")
        assert colon, image
        assert re.search(r"\d", tag), image
        assert "$" not in image
    for package in re.findall(r"pip install (.*)", build):
        assert all("==" in word for word in package.split() if not word.startswith("-")), package


@each_service
def test_a_secret_has_to_be_set(name: str) -> None:
    for variable, value in environment(SERVICES[name]).items():
        if SECRET.search(variable) and NO_SECRET.get(variable) != value:
            found = VARIABLE.fullmatch(value)
            assert found, f"{variable} is written down"
            assert found[2] == ":?", f"{variable} has a default"
    words = " ".join(map(str, [*SERVICES[name].get("command", []), *SERVICES[name]["healthcheck"]["test"]]))
    assert not re.search(r"//[^/@\s]+:[^/@\s]+@", words), "a password in an address"
    for found in VARIABLE.finditer(words):
        assert not SECRET.search(found[1]), "a command can be seen by every user of the machine"


def test_every_variable_is_in_the_example_file_and_the_required_ones_are_empty_there() -> None:
    used = {found[1]: found[2] for found in VARIABLE.finditer(TEXT)}
    listed = dict(re.findall(r"(?m)^(?:# )?([A-Z][A-Z_]+)=(.*)$", EXAMPLE))
    open_lines = dict(re.findall(r"(?m)^([A-Z][A-Z_]+)=(.*)$", EXAMPLE))
    assert set(used) <= set(listed)
    required = {name for name, kind in used.items() if kind == ":?"}
    assert {"MINIO_PASSWORD", "MILVUS_PASSWORD", "ELASTIC_PASSWORD", "POSTGRES_PASSWORD", "LM_API_KEY"} <= required
    assert open_lines == dict.fromkeys(required, ""), "what must be set stands there, with no value that could stay"
    for name, default in re.findall(r"\$\{(\w+):-([^}]*)\}", TEXT):
        assert listed[name] == default


def test_data_is_in_named_volumes() -> None:
    volumes = yaml.safe_load(TEXT)["volumes"]
    for service in SERVICES.values():
        sources = [str(volume).split(":")[0] for volume in service["volumes"]]
        assert sources
        assert set(sources) <= set(volumes)


def test_who_needs_another_waits_until_it_is_healthy() -> None:
    for name, needs in (("milvus", {"etcd", "minio"}), ("mlflow", {"postgres"})):
        waits = SERVICES[name]["depends_on"]
        assert set(waits) == needs
        assert {condition["condition"] for condition in waits.values()} == {"service_healthy"}


def test_the_settings_of_the_example_reach_the_published_ports() -> None:
    team = EXAMPLE.partition("compose.yaml")[2]
    ports = {str(port).split(":")[1] for service in SERVICES.values() for port in service.get("ports", [])}
    assert set(re.findall(r"127\.0\.0\.1:(\d+)", team)) == ports
