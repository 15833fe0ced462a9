"""What is written is there as a whole or not at all."""

import json

import pytest

from transformers_egrm.data.files import partial_of, replacing, write_json, write_text


class KilledError(BaseException):
    """Stops a block where no `except Exception` sees it."""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_until_the_block_ends_the_old_file_is_there(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old", "utf-8")
    with replacing(path) as partial:
        partial.write_text("new", "utf-8")
        assert path.read_text("utf-8") == "old"
    assert path.read_text("utf-8") == "new"
    assert names(tmp_path) == ["a.txt"]


def half_written(path, kind, error):
    with replacing(path) as partial:
        if kind == "file":
            partial.write_text("ne", "utf-8")
        else:
            partial.mkdir()
            (partial / "weights").write_text("ne", "utf-8")
        raise error


@pytest.mark.parametrize("error", [OSError, KilledError])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_block_that_fails_leaves_the_old_content_and_nothing_else(tmp_path, kind, error):
    path = tmp_path / "a"
    if kind == "file":
        path.write_text("old", "utf-8")
    else:
        path.mkdir()
        (path / "weights").write_text("old", "utf-8")
    with pytest.raises(error):
        half_written(path, kind, error)
    assert names(tmp_path) == ["a"]
    assert (path if kind == "file" else path / "weights").read_text("utf-8") == "old"


def test_a_folder_takes_the_place_of_another_one_whole(tmp_path):
    path = tmp_path / "judge"
    path.mkdir()
    (path / "of_the_old_one").write_text("x", "utf-8")
    with replacing(path) as partial:
        partial.mkdir()
        (partial / "config.json").write_text("{}", "utf-8")
    assert names(tmp_path) == ["judge"]
    assert names(path) == ["config.json"]


def test_what_a_killed_process_left_is_not_mixed_into_the_next_one(tmp_path):
    path = tmp_path / "judge"
    partial_of(path).mkdir()
    (partial_of(path) / "half").write_text("x", "utf-8")
    (tmp_path / ".judge.replaced").mkdir()
    with replacing(path) as partial:
        partial.mkdir()
        (partial / "config.json").write_text("{}", "utf-8")
    assert names(tmp_path) == ["judge"]
    assert names(path) == ["config.json"]

    text = tmp_path / "a.txt"
    partial_of(text).write_text("a long half of a file", "utf-8")
    write_text(text, "short")
    assert text.read_text("utf-8") == "short"


def test_a_folder_that_is_missing_is_made_for_text_and_an_error_for_a_block(tmp_path):
    path = tmp_path / "a" / "b" / "c.json"
    with pytest.raises(FileNotFoundError), replacing(path) as partial:
        partial.write_text("{}", "utf-8")
    write_json(path, {"ä": [1, None]})
    assert path.read_text("utf-8") == '{\n  "ä": [\n    1,\n    null\n  ]\n}\n'
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text("utf-8")) == {"ä": [1, None]}
