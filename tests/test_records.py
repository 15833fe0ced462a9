"""Readers, field maps, writers and the journal: nothing lost, nothing twice, nothing read as something else."""

import csv
import json
import os
import tempfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformers_egrm.data.fields import FieldMap, keep_columns
from transformers_egrm.data.files import partial_of
from transformers_egrm.data.journal import Journal, JournalLine
from transformers_egrm.data.records import Record, columns_of, format_of, read_records
from transformers_egrm.data.writers import write_rows
from transformers_egrm.modeling.errors_egrm import DataError


PAIR = (("prompt", "response"), ("messages",))
ROWS = [{"prompt": "2 + 2?", "response": '4, said "she"\n'}, {"prompt": "ä, ö", "response": ""}]


def write(path: Path, rows: list[dict]) -> str:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1), "utf-8")
    elif path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=1)
    return str(path)


def values(path: str) -> list[dict | None]:
    return [record.values for record in read_records(path)]


def problems(path: str) -> list[str | None]:
    return [record.problem for record in read_records(path)]


@pytest.mark.parametrize("extension", ["jsonl", "json", "csv", "parquet"])
def test_every_format_reads_back_what_was_written(tmp_path, extension):
    path = write(tmp_path / f"in.{extension}", ROWS)
    assert values(path) == ROWS
    assert [record.number for record in read_records(path)] == [1, 2]


def test_an_unknown_extension_is_refused_with_the_known_ones():
    with pytest.raises(DataError, match=r"must end in one of \.jsonl.*\.parquet, got 'records\.txt'"):
        format_of("records.txt")


@pytest.mark.parametrize("name", ["none.jsonl", "none.csv", "none.parquet"])
def test_a_missing_file_is_named(tmp_path, name):
    with pytest.raises(DataError, match="must be a file that exists"):
        columns_of(str(tmp_path / name))


def test_a_bad_json_line_keeps_its_number_and_the_lines_behind_it(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"a": 1}\n\n{"a": \n[1]\n{"a": 4}\n', "utf-8")
    assert values(str(path)) == [{"a": 1}, None, None, {"a": 4}]
    assert [record.number for record in read_records(str(path))] == [1, 2, 3, 4]
    assert "Line 3 is not JSON" in str(problems(str(path))[1])
    assert problems(str(path))[2] == "Line 4 must be an object with named fields, got list."


def test_a_jsonl_file_that_was_interrupted_says_so_in_its_last_record(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"a": 1}\n{"a": "hal', "utf-8")
    assert values(str(path)) == [{"a": 1}, None]
    assert "looks cut off" in str(problems(str(path))[1])


def test_a_last_line_without_a_newline_is_whole_if_it_parses(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n{"a": 2}')
    assert values(str(path)) == [{"a": 1}, {"a": 2}]


def test_bytes_that_are_not_utf8_cost_one_record(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"a": "\xff"}\n{"a": 2}\n')
    assert values(str(path)) == [None, {"a": 2}]


def test_a_json_array_that_was_interrupted_keeps_its_whole_elements(tmp_path):
    path = tmp_path / "in.json"
    path.write_text('[{"a": 1}, {"a": 2}, {"a": ', "utf-8")
    assert values(str(path)) == [{"a": 1}, {"a": 2}, None]
    assert "cut off" in str(problems(str(path))[2])


def test_a_json_file_without_an_array_is_refused(tmp_path):
    path = tmp_path / "in.json"
    path.write_text('{"a": 1}', "utf-8")
    with pytest.raises(DataError, match="array of records"):
        list(read_records(str(path)))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=3), st.one_of(st.text(), st.integers(), st.booleans()), max_size=3)),
       st.integers(1, 40), st.sampled_from([None, 0, 3]))  # fmt: skip
def test_a_json_array_is_the_same_however_its_chunks_fall(rows, chunk_chars, indent):
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr("transformers_egrm.data.records._JSON_CHUNK_CHARS", chunk_chars)
        path = Path(folder, "in.json")
        path.write_text(json.dumps(rows, indent=indent), "utf-8")
        assert values(str(path)) == rows


def test_a_csv_row_of_another_length_keeps_its_place(tmp_path):
    path = tmp_path / "in.csv"
    path.write_text('a,b\n1,2\n3\n\n"4\n4",5\n6,7,8\n', "utf-8")
    assert values(str(path)) == [{"a": "1", "b": "2"}, None, {"a": "4\n4", "b": "5"}, None]
    assert problems(str(path))[1] == "Line 3 has 1 fields where the header has 2."
    assert problems(str(path))[3] == "Line 7 has 3 fields where the header has 2."


def test_a_csv_file_that_was_interrupted_inside_quotes_says_where(tmp_path):
    path = tmp_path / "in.csv"
    path.write_text('a,b\n1,2\n3,"half\n', "utf-8")
    assert values(str(path)) == [{"a": "1", "b": "2"}, None]
    assert "Lines 3 to 3 are not CSV: unexpected end of data" in str(problems(str(path))[1])


def test_a_csv_field_may_be_longer_than_the_module_allows_by_default(tmp_path):
    path = write(tmp_path / "in.csv", [{"a": "x" * 200_000}])
    assert values(path) == [{"a": "x" * 200_000}]


@pytest.mark.parametrize(("text", "message"), [("", "is empty"), ("a,a\n1,2\n", "name of its own")])
def test_a_csv_file_without_a_usable_header_is_refused(tmp_path, text, message):
    path = tmp_path / "in.csv"
    path.write_text(text, "utf-8")
    with pytest.raises(DataError, match=message):
        columns_of(str(path))


def test_a_truncated_parquet_file_is_refused_before_the_first_record(tmp_path):
    path = Path(write(tmp_path / "in.parquet", ROWS * 50))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"not a complete Parquet file.*cut off"):
        columns_of(str(path))


def test_a_parquet_file_damaged_inside_stops_with_the_number_of_the_last_good_record(tmp_path):
    path = Path(write(tmp_path / "in.parquet", [{"a": "x" * 500 + str(number)} for number in range(2000)]))
    data = bytearray(path.read_bytes())
    middle = len(data) // 3
    data[middle : middle + 2000] = os.urandom(2000)
    path.write_bytes(data)
    with pytest.raises(DataError, match="damaged after record"):
        list(read_records(str(path)))


def test_parquet_columns_that_nobody_asked_for_are_not_read(tmp_path):
    path = write(tmp_path / "in.parquet", [{"a": 1, "b": 2}])
    assert [record.values for record in read_records(path, ["b"])] == [{"b": 2}]


def test_two_records_share_a_digest_only_with_equal_content():
    assert Record(1, {"a": 1}).digest == Record(9, {"a": 1}).digest
    assert Record(1, {"a": 1}).digest != Record(1, {"a": "1"}).digest
    assert Record(1, None, "broken").digest != Record(1, {}).digest


def test_a_mapped_field_is_read_from_its_column():
    fields = FieldMap.parse(["prompt=input", "response=model.text"], PAIR)
    record = {"input": "q", "model": {"text": "a"}, "label": 1, "id": 7, "system": ""}
    assert fields.pick(record) == ({"prompt": "q", "response": "a", "id": 7}, None)


def test_a_column_whose_name_holds_a_dot_wins_over_a_path():
    fields = FieldMap.parse(["prompt=a.b"], PAIR)
    assert fields.pick({"a.b": "flat", "a": {"b": "nested"}, "response": "x"})[0]["prompt"] == "flat"


def test_several_columns_make_the_responses_of_a_ranking():
    fields = FieldMap.parse(["responses=first,second"], (("prompt", "responses"),))
    assert fields.pick({"prompt": "q", "first": "a", "second": "b"})[0]["responses"] == ["a", "b"]
    assert fields.columns(["first", "x", "second", "prompt"]) == ["first", "second", "prompt"]


def test_a_list_in_a_cell_is_read_as_json():
    fields = FieldMap.parse([], PAIR)
    messages = [{"role": "user", "content": "q"}]
    assert fields.pick({"messages": json.dumps(messages)}) == ({"messages": messages}, None)
    assert fields.pick({"prompt": "[1]", "response": "[2]"})[0] == {"prompt": "[1]", "response": "[2]"}


def test_an_incomplete_record_says_what_it_lacks_and_what_it_has():
    found, problem = FieldMap.parse(["prompt=input"], PAIR).pick({"input": "q", "output": "a", "id": 3})
    assert found == {"id": 3}
    assert problem == (
        "The record needs `input` (as prompt) and `response`, or `messages`, it has input, output, id. "
        "Name a column with --map, for example --map prompt=COLUMN."
    )


def test_missing_columns_of_a_table_are_refused():
    fields = FieldMap.parse(["prompt=input"], PAIR)
    fields.check_columns(["input", "response"], "in.csv")
    with pytest.raises(DataError, match=r"needs `input` \(as prompt\) and `response`.*it has prompt, response"):
        fields.check_columns(["prompt", "response"], "in.csv")


@pytest.mark.parametrize("assignment", ["prompt", "prompt=", "quality=x"])
def test_a_mapping_that_cannot_be_meant_is_refused(assignment):
    with pytest.raises(DataError, match="FIELD=COLUMN with FIELD one of prompt, response, messages, id"):
        FieldMap.parse([assignment], PAIR)


def test_a_column_to_keep_must_exist_in_a_table():
    assert keep_columns(["label", "label"], ("label", "x"), "in.csv") == ("label",)
    assert keep_columns(["label"], None, "in.jsonl") == ("label",)
    with pytest.raises(DataError, match="no column label to keep; it has x"):
        keep_columns(["label"], ("x",), "in.csv")


def test_a_lone_surrogate_is_a_problem_of_its_record():
    fields = FieldMap.parse([], PAIR)
    assert fields.pick({"prompt": "q", "response": "\ud800"})[1] == "The text of `response` is not valid UTF-8."


OUT = [
    {"record": 1, "id": "a", "reward": 7.0, "order": ["ab", "ba"], "label": 1, "extra": None, "ok": True},
    {"record": 2, "id": 5, "reward": None, "order": [], "label": "no", "extra": {"k": "ä\ud800"}, "ok": False},
]
TYPES = {"record": int, "id": str | int | None, "reward": float | None, "order": tuple[str, ...]}


def test_parquet_output_has_the_types_of_its_columns_even_where_all_is_none(tmp_path):
    path = str(tmp_path / "out.parquet")
    write_rows(lambda: OUT, path, TYPES)
    table = pyarrow.parquet.read_table(path)
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {"record": "int64", "id": "string", "reward": "double", "order": "list<element: string>",
                     "label": "string", "extra": "string", "ok": "bool"}  # fmt: skip
    assert table.to_pylist()[1] == {"record": 2, "id": "5", "reward": None, "order": [], "label": "no",
                                    "extra": '{"k": "ä\\ud800"}', "ok": False}  # fmt: skip


def test_csv_output_writes_none_as_an_empty_cell_and_lists_as_json(tmp_path):
    path = tmp_path / "out.csv"
    write_rows(lambda: OUT, str(path), TYPES)
    with path.open(encoding="utf-8", newline="") as stream:
        first, second = csv.DictReader(stream)
    assert first["order"] == '["ab", "ba"]'
    assert first["ok"] == "true"
    assert (second["reward"], second["extra"]) == ("", '{"k": "ä\\ud800"}')


def test_jsonl_output_spells_a_lone_surrogate_as_json_does(tmp_path):
    path = tmp_path / "out.jsonl"
    write_rows(lambda: OUT, str(path), TYPES)
    assert [json.loads(line) for line in path.read_text("utf-8").splitlines()] == OUT


def test_a_full_disk_is_explained_and_the_journal_kept(tmp_path):
    output = tmp_path / "out.jsonl"
    begun(output, 1)
    partial_of(output).symlink_to("/dev/full")
    with Journal(str(output), RUN) as journal, pytest.raises(DataError, match="No space left on device"):
        write_rows(journal.rows, str(output), TYPES)
    with Journal(str(output), RUN) as journal:
        assert journal.count == 1
    partial_of(journal.path).symlink_to("/dev/full")
    with Journal(str(output), RUN) as journal:
        write_rows(journal.rows, str(output), TYPES)
        with pytest.raises(DataError, match=r"out\.jsonl\.egrm must be writable.*No space left on device"):
            journal.finish({})


def test_an_output_that_fails_to_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text("old", "utf-8")

    def rows():
        yield OUT[0]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_rows(rows, str(path), TYPES)
    assert path.read_text("utf-8") == "old"


RUN = {"command": "score", "judging": {"seed": 0}}


def line(number: int) -> JournalLine:
    return JournalLine(number, Record(number, {"a": number}).digest, 0.5 * number, {"record": number, "text": "ä" * 9})


def records(*numbers: int):
    return iter([Record(number, {"a": number}) for number in numbers])


def begun(output: Path, count: int) -> Path:
    with Journal(str(output), RUN) as journal:
        for number in range(1, count + 1):
            journal.append(line(number))
    return Path(f"{output}.egrm")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_journal_cut_at_any_byte_goes_on_behind_its_last_whole_line(data):
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "out.jsonl")
        path = begun(output, 3)
        whole = path.read_bytes()
        cut = data.draw(st.integers(0, len(whole)))
        path.write_bytes(whole[:cut])
        complete = max(whole[:cut].count(b"\n") - 1, 0)
        with Journal(str(output), RUN) as journal:
            assert (journal.count, journal.seconds) == (complete, 0.5 * complete)
            rest = records(1, 2, 3)
            journal.check(rest)
            for record in rest:
                journal.append(line(record.number))
        assert path.read_bytes() == whole


def test_zeros_behind_the_last_line_are_dropped_as_after_a_power_failure(tmp_path):
    path = begun(tmp_path / "out.jsonl", 2)
    path.write_bytes(path.read_bytes() + b"\0" * 100)
    with Journal(str(tmp_path / "out.jsonl"), RUN) as journal:
        assert journal.count == 2
    assert not path.read_bytes().endswith(b"\0")


def test_a_run_with_other_options_is_refused_and_names_them(tmp_path):
    begun(tmp_path / "out.jsonl", 1)
    with pytest.raises(
        DataError, match=r'begun by another run: judging was \{"seed": 0\}, is \{"seed": 1\}.*--restart'
    ):
        Journal(str(tmp_path / "out.jsonl"), RUN | {"judging": {"seed": 1}})
    with Journal(str(tmp_path / "out.jsonl"), RUN | {"judging": {"seed": 1}}, restart=True) as journal:
        assert journal.count == 0


def test_a_run_that_judged_nothing_binds_nobody(tmp_path):
    begun(tmp_path / "out.jsonl", 0)
    with Journal(str(tmp_path / "out.jsonl"), RUN | {"judging": {"seed": 1}}) as journal:
        journal.append(line(1))
    with pytest.raises(DataError, match=r'judging was \{"seed": 1\}, is \{"seed": 0\}'):
        Journal(str(tmp_path / "out.jsonl"), RUN)


def test_a_command_that_fails_before_its_first_record_leaves_no_journal(tmp_path):
    with pytest.raises(RuntimeError), Journal(str(tmp_path / "out.jsonl"), RUN):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("others", [(1, 3), (1,)])
def test_another_input_is_refused(tmp_path, others):
    begun(tmp_path / "out.jsonl", 2)
    with Journal(str(tmp_path / "out.jsonl"), RUN) as journal, pytest.raises(DataError, match="differs at record 2"):
        journal.check(records(*others))


def test_an_input_that_has_grown_goes_on(tmp_path):
    begun(tmp_path / "out.jsonl", 2)
    with Journal(str(tmp_path / "out.jsonl"), RUN) as journal:
        rest = records(1, 2, 3)
        journal.check(rest)
        assert [record.number for record in rest] == [3]


def test_two_runs_cannot_write_one_output(tmp_path):
    with (
        Journal(str(tmp_path / "out.jsonl"), RUN),
        pytest.raises(DataError, match="Another run is writing"),
    ):
        Journal(str(tmp_path / "out.jsonl"), RUN)


def test_a_file_that_no_run_wrote_is_not_overwritten(tmp_path):
    output = tmp_path / "out.jsonl"
    output.write_text("precious", "utf-8")
    with pytest.raises(DataError, match="no run of this command wrote it"):
        Journal(str(output), RUN)
    output.unlink()
    Path(f"{output}.egrm").write_text("precious\n", "utf-8")
    with pytest.raises(DataError, match="got another file"):
        Journal(str(output), RUN)
    assert Path(f"{output}.egrm").read_text("utf-8") == "precious\n"


def finished(output: Path) -> None:
    begun(output, 2)
    with Journal(str(output), RUN) as journal:
        write_rows(journal.rows, str(output), TYPES)
        journal.finish({"records": 2})


def test_a_finished_run_leaves_a_receipt_and_nothing_to_do(tmp_path):
    output = tmp_path / "out.jsonl"
    finished(output)
    with Journal(str(output), RUN) as journal:
        journal.check(records(1, 2))
        assert journal.receipt is not None
        assert journal.receipt["summary"] == {"records": 2}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "out.jsonl.egrm"]
    assert [json.loads(text)["record"] for text in output.read_text("utf-8").splitlines()] == [1, 2]


def test_a_finished_run_over_another_input_is_refused(tmp_path):
    finished(tmp_path / "out.jsonl")
    for others in (records(1, 2, 3), records(1), records(1, 3)):
        with Journal(str(tmp_path / "out.jsonl"), RUN) as journal, pytest.raises(DataError, match="differs at record"):
            journal.check(others)


def test_a_finished_output_that_was_changed_is_not_overwritten_and_a_deleted_one_is_made_again(tmp_path):
    output = tmp_path / "out.jsonl"
    finished(output)
    output.write_text(output.read_text("utf-8") + "mine\n", "utf-8")
    with pytest.raises(DataError, match="was changed since"):
        Journal(str(output), RUN)
    output.unlink()
    with Journal(str(output), RUN) as journal:
        assert (journal.count, journal.receipt) == (0, None)
