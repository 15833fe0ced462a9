"""One tree of errors, and who is to blame: the program, whose errors end a run, or the record, which gets a result."""

import ast
import importlib.util
from pathlib import Path

import pytest

from transformers_egrm.modeling import errors_egrm
from transformers_egrm.modeling.errors_egrm import EGRMError, InputError, PromptTooLongError
from transformers_egrm.modeling.judge_results_egrm import failed_result, raise_if_programs


ROOT = Path(__file__).resolve().parent.parent
CLASSES = [name for name in errors_egrm.__all__ if name.endswith("Error")]  # beside them stand checks of settings
NAMES = [name for name in CLASSES if name != "EGRMError"]
OF_RECORDS = {"EngineError", "InputError", "PromptTooLongError"}


def foreign_copy():
    """The module once more, as a checkpoint loaded with remote code brings it: other classes of the same names."""
    spec = importlib.util.spec_from_file_location("errors_of_a_checkpoint", ROOT / "modeling" / "errors_egrm.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert not issubclass(module.InputError, EGRMError)
    return module


@pytest.fixture(params=["own", "foreign"])
def errors(request):
    return errors_egrm if request.param == "own" else foreign_copy()


# No caller of the library sees the first three; the client is one file that knows nothing of the package.
ELSEWHERE = {
    "NothingToChooseError": "scorer.py",
    "RefusedError": "work.py",
    "_TooLongError": "guard.py",
    "ServerError": "client.py",
}


def test_every_error_class_of_the_library_stands_in_the_tree():
    found = {}
    for folder in ("modeling", "transformers_egrm"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
                if any(base.endswith(("Error", "Exception")) for base in bases):
                    found[node.name] = path.name
    assert {name: found.pop(name) for name in ELSEWHERE} == ELSEWHERE
    assert sorted(found) == CLASSES
    assert set(found.values()) == {"errors_egrm.py"}
    assert all(issubclass(getattr(errors_egrm, name), EGRMError) for name in NAMES)


def test_the_picture_of_the_tree_shows_each_class_once():
    words = [word for line in errors_egrm.__doc__.splitlines() for word in line.split() if word.endswith("Error")]
    assert sorted(words) == CLASSES


@pytest.mark.parametrize("name", NAMES)
def test_an_error_of_the_program_is_raised_again_and_one_of_the_record_is_not(errors, name):
    error = getattr(errors, name)("Needed a, got b.", "Pass a.")
    assert (str(error), error.hint) == ("Needed a, got b. Pass a.", "Pass a.")
    if name in OF_RECORDS:
        raise_if_programs(error)
    else:
        with pytest.raises(type(error)):
            raise_if_programs(error)


def test_an_error_of_another_library_is_the_records():
    raise_if_programs(RuntimeError("out of memory"))
    assert failed_result(7, RuntimeError("out of memory")).error == "RuntimeError: out of memory"


def test_a_status_comes_from_our_own_errors_only(errors):
    assert failed_result(1, errors.PromptTooLongError("Too long.")).status == "too_long"
    assert failed_result(1, errors.InputError("No prompt.")).status == "error"
    # The attribute of that name on an error of HTTP is a number.
    http = OSError("unreachable")
    http.status = 503
    assert failed_result(1, http).status == "error"


def test_a_subclass_keeps_the_blame_and_the_status_unless_it_says_otherwise():
    class EmptyPromptError(InputError):
        pass

    assert (EmptyPromptError.blames, EmptyPromptError.status) == ("record", "error")
    assert (PromptTooLongError.blames, PromptTooLongError.status) == ("record", "too_long")
    assert EGRMError.blames == "program"
