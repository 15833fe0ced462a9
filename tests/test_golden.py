"""What was judged stays judged: rewards, routes, tokens and texts of every way to judge, held against saved rows.

A difference is a mistake, unless rewards are meant to change: then `tests/golden/write.py` writes the rows anew.
"""

from dataclasses import replace

import pytest
from golden.cases import CASES, MINI, differences, mini_hash, read_rows, rows_of
from golden.checkpoints import load


MINI_HASH, GOLDEN = read_rows()


@pytest.fixture(scope="module")
def mini_is_the_one_judged():
    if mini_hash() != MINI_HASH:
        pytest.fail(
            f"The golden rows hold for egrm-mini with the weights {MINI_HASH[:12]}, the package has {mini_hash()[:12]}. "
            "If it was retrained on purpose, run `python tests/golden/write.py`."
        )


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_judged_as_it_was(name, request):
    case = CASES[name]
    if case.checkpoint == MINI:
        request.getfixturevalue("mini_is_the_one_judged")
    found = differences(case, GOLDEN[case.rows_of or name], rows_of(load(case.checkpoint), case))
    assert not found, "\n" + "\n".join(found)


def test_every_row_belongs_to_a_case():
    assert set(GOLDEN) == {case.name for case in CASES.values() if case.rows_of is None}


def test_the_comparison_sees_a_changed_option():
    case = replace(CASES["llama"], options={"temperatures": (0.6, 0.7, 0.8, 0.9, 1.1)})
    found = differences(case, GOLDEN["llama"], rows_of(load(case.checkpoint), case))
    assert any("chain_scores" in line for line in found), found
    assert all(line.startswith("llama, item ") and " before, " in line for line in found)
