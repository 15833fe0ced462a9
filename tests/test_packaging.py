"""What is shipped: one copy of the code, whole in the wheel, loadable from the Hub, polite when imported."""

import ast
import importlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from transformers.dynamic_module_utils import get_relative_import_files, get_relative_imports

import transformers_egrm


ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]
MODEL_FILES = sorted((ROOT / "modeling").glob("*.py"))
ENTRY_FILES = (
    "configuration_egrm.py", "modeling_egrm.py", "processing_egrm.py", "pipeline_egrm.py", "decision_egrm.py",
)  # fmt: skip
LIBRARIES_OF_A_HUB_FILE = {"torch", "transformers"} | sys.stdlib_module_names


def test_the_package_list_names_every_folder_with_code():
    folders = {path.parent for path in (ROOT / "transformers_egrm").rglob("*.py") if "checkpoints" not in path.parts}
    names = {".".join(folder.relative_to(ROOT).parts) for folder in folders} | {"transformers_egrm.modeling"}
    assert sorted(SETUPTOOLS["packages"]) == sorted(names)


def test_the_model_folder_is_mapped_and_linked():
    assert SETUPTOOLS["package-dir"] == {"transformers_egrm.modeling": "modeling"}
    # A checkout without links keeps their target as text.
    link = ROOT / "transformers_egrm" / "modeling"
    assert (str(link.readlink()) if link.is_symlink() else link.read_text(encoding="utf-8")) == "../modeling"
    if (ROOT / ".git").exists():
        entry = ["git", "ls-files", "--stage", "transformers_egrm/modeling"]
        assert subprocess.run(entry, cwd=ROOT, capture_output=True, text=True, check=True).stdout.startswith("120000 ")


def imports_of(path: Path) -> tuple[set[str], list[ast.ImportFrom]]:
    """Top-level names of the libraries a file needs (those it merely tries aside), and all its relative imports."""
    libraries, relative = set(), []

    def visit(node: ast.AST, required: bool) -> None:
        if isinstance(node, ast.Import) and required:
            libraries.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            relative.append(node)
        elif isinstance(node, ast.ImportFrom) and required:
            libraries.add((node.module or "").split(".")[0])
        for child in ast.iter_child_nodes(node):
            visit(child, required and not isinstance(node, ast.Try))

    visit(ast.parse(path.read_text(encoding="utf-8")), True)
    return libraries, relative


@pytest.mark.parametrize("path", MODEL_FILES, ids=lambda path: path.stem)
def test_a_hub_file_needs_only_torch_transformers_and_its_neighbours(path: Path):
    assert re.fullmatch(r"[a-z]+(_[a-z]+)?_egrm", path.stem), (
        "files are flattened into a repository's root: keep the suffix"
    )
    libraries, relative = imports_of(path)
    assert libraries <= LIBRARIES_OF_A_HUB_FILE
    neighbours = {node.module for node in relative}
    assert all(node.level == 1 and node.module for node in relative), "`from . import x` and `from ..x` are not copied"
    assert neighbours <= {other.stem for other in MODEL_FILES}
    # Transformers finds relative imports by regular expression: one inside a docstring would be copied too.
    assert set(get_relative_imports(path)) == neighbours


@pytest.mark.parametrize("path", MODEL_FILES, ids=lambda path: path.stem)
def test_a_hub_file_never_names_the_package(path: Path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [name for name in names if name.split(".")[0] in ("transformers_egrm", "modeling")]


def test_every_model_file_is_reachable_from_a_saved_class():
    reached = set(ENTRY_FILES)
    for entry in ENTRY_FILES:
        reached |= {Path(path).name for path in get_relative_import_files(ROOT / "modeling" / entry)}
    assert reached == {path.name for path in MODEL_FILES}


@pytest.mark.parametrize("linked", [True, False], ids=["with the link", "without links"])
def test_the_wheel_holds_all_the_code(tmp_path: Path, linked: bool):
    tree = tmp_path / "tree"
    for name in (*SETUPTOOLS["packages"], "modeling"):
        folder = ROOT.joinpath(*name.split("."))
        if not folder.is_symlink():
            for path in folder.glob("*.*"):
                if path.is_file():
                    target = tree / path.relative_to(ROOT)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, target)
    shutil.copytree(ROOT / "transformers_egrm" / "checkpoints", tree / "transformers_egrm" / "checkpoints")
    link = tree / "transformers_egrm" / "modeling"
    if linked:
        link.symlink_to("../modeling")
    else:
        link.write_text("../modeling", encoding="utf-8")
    modules = [f"{name}.py" for name in SETUPTOOLS["py-modules"]]
    for name in ("pyproject.toml", "README.md", "LICENSE", *modules):
        shutil.copy(ROOT / name, tree / name)
    build = "import sys, setuptools.build_meta as backend; print(backend.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=tree, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
        (scripts,) = (name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt"))
        assert archive.read(scripts).decode().split("\n")[:2] == [
            "[console_scripts]",
            "egrm = transformers_egrm_cli:main",
        ]
    code = {path.relative_to(ROOT) for path in (ROOT / "transformers_egrm").rglob("*.py")}
    expected = {path.as_posix() for path in code} | {f"transformers_egrm/modeling/{path.name}" for path in MODEL_FILES}
    assert {name for name in shipped if name.endswith(".py")} == expected | set(modules)
    assert "transformers_egrm/py.typed" in shipped
    cards = {path.relative_to(ROOT).as_posix() for path in (ROOT / "transformers_egrm").rglob("README.md")}
    assert len(cards) >= 5
    assert cards <= shipped
    bundle = [path for path in (ROOT / "transformers_egrm" / "checkpoints").rglob("*") if path.is_file()]
    assert len(bundle) >= 7
    assert {path.relative_to(ROOT).as_posix() for path in bundle} <= shipped


MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_FUNCTION = 450, 60  # of a function: its docstring not counted
# Older than the rule; each leaves the list when it is split.
LONG_FILES: set[str] = set()
LONG_FUNCTIONS = {"modeling/prompt_records_egrm.py: read_record"}


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Its lines, signature included and docstring not."""
    first, lines = function.body[0], (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        lines -= (first.end_lineno or 0) - first.lineno + 1
    return lines


def test_no_library_file_and_no_function_is_too_long_to_read():
    long_files, long_functions = set(), set()
    for path in [*MODEL_FILES, *(ROOT / "transformers_egrm").rglob("*.py")]:
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        if len(text.splitlines()) > MOST_LINES_OF_A_FILE:
            long_files.add(name)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and lines_of(node) > MOST_LINES_OF_A_FUNCTION:
                long_functions.add(f"{name}: {node.name}")
    assert long_files == LONG_FILES
    assert long_functions == LONG_FUNCTIONS


ROOMS = ("engine", "verdict", "draft", "prompt", "judge", "hub")
"""Prefixes of model files, from the ground up; a file without a prefix belongs to the Hub's own grammar."""


def test_arrows_between_the_rooms_of_the_model_code_run_one_way():
    for path in MODEL_FILES:
        room = path.stem.split("_")[0]
        for imported in re.findall(r"^from \.(\w+)_egrm import", path.read_text(encoding="utf-8"), re.MULTILINE):
            used = imported.split("_")[0]
            if room in ROOMS and used in ROOMS:
                assert ROOMS.index(used) <= ROOMS.index(room), f"{path.name} imports {imported}"
            # What has no prefix stands above the rooms, but for settings and errors, which the judge is made of.
            if room in ROOMS[:4]:
                assert used in (*ROOMS, "errors"), f"{path.name} imports {imported}"


def test_every_public_name_can_be_imported():
    assert transformers_egrm.__all__ == sorted(transformers_egrm.__all__)
    for name in transformers_egrm.__all__:
        assert getattr(transformers_egrm, name) is not None
    for path in MODEL_FILES:
        module = importlib.import_module(f"transformers_egrm.modeling.{path.stem}")
        assert [name for name in getattr(module, "__all__", ["__all__"]) if not hasattr(module, name)] == []


def test_the_command_line_is_installed():
    (script,) = entry_points(group="console_scripts", name="egrm")
    assert callable(script.load())


LOOK_AROUND = """
import json, logging, os, random, sys, warnings
import torch, transformers, transformers.pipelines
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoProcessor, GenerationMixin
from transformers import PreTrainedModel, ProcessorMixin

def state():
    return {
        "environment": dict(os.environ),
        "search path": sys.path[:],
        "warning filters": [str(f) for f in warnings.filters],
        "log handlers": [str(h) for h in logging.getLogger().handlers] + [logging.getLogger().level],
        "verbosity": transformers.logging.get_verbosity(),
        "random numbers": [hash(random.getstate()), torch.random.initial_seed(), int(torch.get_rng_state().sum())],
        "dtype, device": [str(torch.get_default_dtype()), str(torch.get_default_device())],
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "grad, determinism": [torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()],
        "precision": torch.get_float32_matmul_precision(),
    }

before, loaded = state(), set(sys.modules)
import transformers_egrm
new = {name.split(".")[0] for name in set(sys.modules) - loaded}
print(json.dumps({"before": before, "after": state(), "new": sorted(new - sys.stdlib_module_names)}))
"""


def test_importing_the_package_changes_nothing_global():
    done = subprocess.run([sys.executable, "-c", LOOK_AROUND], capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    assert seen["after"] == seen["before"]
    # Slow to import, and needed only by those who read tables or evaluate.
    slow = {
        "datasets",
        "evaluate",
        "pandas",
        "pyarrow",
        "peft",
        "sentence_transformers",
        "fastapi",
        "starlette",
        "uvicorn",
    }
    assert not slow & set(seen["new"])


OWN_IMPORT = """
import time
import torch, transformers.pipelines
# What registration needs of Transformers: registers take classes, so their bases are loaded, whoever registers.
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoProcessor, GenerationMixin
from transformers import PreTrainedModel, ProcessorMixin
from transformers.masking_utils import create_causal_mask
start = time.process_time()
import transformers_egrm
print(time.process_time() - start)
"""


def test_the_packages_own_modules_are_imported_within_half_a_second_of_a_processor():
    command = [sys.executable, "-c", OWN_IMPORT]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(2)]
    assert min(float(run.stdout) for run in runs) < 0.5


def test_the_citation_and_the_changelog_name_the_released_version():
    assert transformers_egrm.__version__ == PROJECT["project"]["version"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {transformers_egrm.__version__}\n" in citation
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## [{transformers_egrm.__version__}]" in changelog


def test_ci_runs_the_commands_that_the_readme_prints():
    blocks = re.findall(r"^```bash\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    installing = [block for block in blocks if "pip install" in block and "benchmarks/" not in block]
    parts = [part.strip() for block in installing for part in re.split(r"&&|\n", block.replace("\\\n", ""))]
    commands = [part for part in parts if part and ".venv" not in part]
    assert len(commands) == 5
    assert [command for command in commands if command not in ci] == []
