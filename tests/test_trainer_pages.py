"""Every Python block of `docs/decisions.md` and `docs/trainers.md` runs, with the bundled judge and a real server."""

import re
from pathlib import Path
from typing import Any

import pytest
import transformers
from serve_tools import listening

from transformers_egrm import load_mini


ROOT = Path(__file__).parent.parent
# The pages' text is not of the bundled judge's world.
pytestmark = pytest.mark.filterwarnings("ignore:A text is unlike anything:UserWarning")


def run(page: str, **replaced: str) -> dict[str, Any]:
    """Run a page's blocks one after the other and return what they defined."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S))
    for old, new in replaced.items():
        assert old in code
        code = code.replace(old, new)
    names: dict[str, Any] = {}
    exec(compile(code, page, "exec"), names)
    return names


@pytest.mark.skipif(not hasattr(transformers, "AutoModelForDecision"), reason="the Decision API came with 5.23")
def test_the_page_about_decisions(tmp_path, capsys):
    load_mini().save_pretrained(tmp_path / "judge")
    names = run("decisions.md", **{"./my-judge": str(tmp_path / "judge")})
    assert 0 < names["answers"]["right"]["noul"] < 1
    assert set(names["answers"]["quality"]) >= {"verdict", "route", "consensus", "support", "status"}
    assert capsys.readouterr().out.split()[-2:] == ["short", "long"]


def test_the_page_about_trainers(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("EGRM_URL", "set by the page")
    with listening(load_mini()) as (url, _):
        names = run("trainers.md", **{"http://127.0.0.1:8000": url})
        told = names["judge"].reward_func([names["prompt"] + "12"], [names["prompt"]], [None])
    assert told["rewards"] == [names["told"]["score"]]
