"""What maintainers rely on: workflows that run the project's own commands, templates that are valid, one way of imports."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml


ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def recipes() -> dict[str, list[str]]:
    """The commands of each target of the Makefile."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines():
        if target := re.match(r"(\w+):", line):
            found[target[1]] = []
        elif line.startswith("\t"):
            found[list(found)[-1]].append(line.strip())
    return found


def lanes(path: Path) -> dict[str, dict]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]


def commands(path: Path) -> list[str]:
    return [step["run"] for job in lanes(path).values() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_commands_that_stand_elsewhere(path: Path):
    extras = PROJECT["project"]["optional-dependencies"]
    for command in commands(path):
        words = command.split()
        if words[0] == "make":
            assert recipes()[words[1]]
        elif words[:2] == ["bash", ".ci/run"]:
            assert set(words[2:]) <= set(ci_steps())
        else:
            assert words[0] == "pip"
            assert {name for names in re.findall(r"\[(.+?)\]", command) for name in names.split(",")} <= set(extras)
    assert any(command.split()[0] in ("make", "bash") for command in commands(path))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read_and_ends_by_itself(path: Path):
    # YAML 1.1 reads the key `on` as True.
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow[True]
    for job in lanes(path).values():
        assert job["timeout-minutes"] <= 60
        assert job["steps"][0]["uses"].startswith("actions/checkout@")


def test_the_lanes_cover_what_the_project_promises():
    jobs = lanes(ROOT / ".github" / "workflows" / "tests.yml")
    assert sorted(jobs) == ["docs", "lint", "tests", "wheel"]
    versions = jobs["tests"]["strategy"]["matrix"]["python-version"]
    assert versions == ["3.11", "3.13"]
    assert PROJECT["project"]["requires-python"] == f">={versions[0]}"
    (gpu,) = lanes(ROOT / ".github" / "workflows" / "gpu.yml").values()
    assert "labels.*.name, 'gpu'" in gpu["if"]


def ci_steps() -> list[str]:
    steps = re.search(r"^all=\((.*)\)$", CI, re.MULTILINE)
    assert steps is not None
    return steps[1].split()


def test_ci_runs_what_make_runs():
    for target in ("check", "test"):
        for command in recipes()[target]:
            assert re.search(rf"^ +{re.escape(command)}$", CI, re.MULTILINE), command
    assert [name for name in ci_steps() if f"if wanted {name}" not in CI] == []
    assert [name for name in ci_steps() if not re.search(rf"^#   {name} ", CI, re.MULTILINE)] == []


def test_ci_refuses_a_step_that_it_does_not_have():
    done = subprocess.run(["bash", str(ROOT / ".ci" / "run"), "weels"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "first lint tests wheel oldest weights, got weels" in done.stderr


@pytest.mark.parametrize("path", [path for path in TEMPLATES if path.stem != "config"], ids=lambda path: path.stem)
def test_a_template_is_a_form_that_the_site_accepts(path: Path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form)
    asked = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in asked} <= {"input", "textarea", "dropdown", "checkboxes"}
    names = [field["id"] for field in asked]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z_-]+", name) for name in names)
    assert all(field["attributes"]["label"] for field in asked)
    assert any(field.get("validations", {}).get("required") for field in asked)


def test_who_reports_a_bug_or_a_reward_names_version_and_record():
    for name in ("bug", "reward"):
        form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text(encoding="utf-8"))
        asked = {field["id"]: field["attributes"] for field in form["body"] if field["type"] != "markdown"}
        assert "egrm --version" in asked["version"]["description"]
        assert "record" in asked


def test_imports_run_one_way():
    pytest.importorskip("importlinter", reason="the extra `lint` brings it")
    code = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kept, 0 broken" in done.stdout


def test_every_package_stands_in_the_order_of_imports():
    contracts = {contract["type"]: contract for contract in PROJECT["tool"]["importlinter"]["contracts"]}
    layers = contracts["layers"]
    assert layers["exhaustive"]
    listed = {name for layer in layers["layers"] for name in re.findall(r"\w+", layer)}
    there = {path.stem for path in (ROOT / "transformers_egrm").iterdir() if (path / "__init__.py").is_file()}
    there |= {path.stem for path in (ROOT / "transformers_egrm").glob("*.py")} - {"__init__"}
    assert listed == there
