"""Holds the rules of docs/architecture.md: who may import whom, how long files and functions may be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("mmdata", "mmdata_train")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
STAGES = ("clean", "dedup", "encode", "chat")
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc"}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide who imports whom"
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def typing_only(tree: ast.Module) -> set[ast.AST]:
    """Nodes below `if TYPE_CHECKING:`, which import nothing at run time."""
    blocks = (n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test))
    return {inner for block in blocks for stmt in block.body for inner in ast.walk(stmt)}


def module_scope_imports(tree: ast.Module) -> set[str]:
    skip = typing_only(tree)
    functions = (n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))
    inside = {inner for function in functions for inner in ast.walk(function)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and node not in skip and node not in inside:
            found.update(imports_of(node))
    return found


TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_module_keeps_the_size_and_docstring_budget(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(TREES[path]), "the file does not say what it does"
    assert text.count("\n") <= 400, "split the file: the limit is 400 lines"
    assert path.stem not in FORBIDDEN_NAMES
    for node in ast.walk(TREES[path]):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            assert size <= 60, f"{node.name} has {size} lines; the limit is 60"
        assert not isinstance(node, ast.Global), "no globals: pass the value"


def test_no_file_of_tests_is_longer_than_400_lines_or_silent_about_its_claim() -> None:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 400, f"{path.relative_to(ROOT)}: split it by claim, the limit is 400 lines"
        assert ast.get_docstring(ast.parse(text)), f"{path.relative_to(ROOT)} does not say what it holds"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_follow_the_layers(path: Path) -> None:
    name, imported = name_of(path), set(imports_of(TREES[path]))
    tops = {module.split(".")[0] for module in imported}
    if name.split(".")[0] == "mmdata":
        assert not tops & {"torch", "mmdata_train"}, "the data side works without torch"
    if path.name != "cli.py":
        assert "click" not in tops, "click belongs in cli.py"
    if name != "mmdata.indexed.layout":
        assert "struct" not in tops, "bytes belong in indexed/layout.py"
    if name in ("mmdata_train.layout", "mmdata_train.sampler"):
        assert "torch" not in tops, "rank grid and sample order are pure integers"
    stage = name.split(".")[1] if name.startswith("mmdata.") else ""
    others = {f"mmdata.{other}" for other in STAGES if other != stage}
    if stage in STAGES:
        hits = {module for module in imported if any(module == o or module.startswith(o + ".") for o in others)}
        assert not hits, f"stages never import each other: {sorted(hits)}"
        assert not any(module.startswith(("mmdata.convert", "mmdata.cli")) for module in imported)


def test_no_import_cycles() -> None:
    names = {name_of(path): path for path in SOURCES}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        if path.name == "__init__.py":
            continue
        hits = {module for module in module_scope_imports(TREES[path]) if module in names}
        graph[name] = {module for module in hits if names[module].name != "__init__.py"}
    done: set[str] = set()

    def visit(node: str, trail: tuple[str, ...]) -> None:
        assert node not in trail, "import cycle: " + " -> ".join((*trail, node))
        if node in done:
            return
        for target in sorted(graph.get(node, ())):
            visit(target, (*trail, node))
        done.add(node)

    for start in sorted(graph):
        visit(start, ())


def test_no_library_code_prints_or_exits() -> None:
    for path, tree in TREES.items():
        if path.name in ("cli.py", "__main__.py"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("print", "exit", "quit"), f"{name_of(path)}:{node.lineno}"
            if isinstance(node, ast.Attribute) and node.attr == "splitlines":
                raise AssertionError(f"{name_of(path)}:{node.lineno}: splitlines() also splits at U+2028")


def test_public_names_are_one_sorted_list_and_all_load() -> None:
    import mmdata

    assert mmdata.__all__ == sorted(mmdata.__all__)
    for name in mmdata.__all__:
        assert getattr(mmdata, name) is not None


def test_the_drawn_error_tree_names_every_error_once() -> None:
    from mmdata import errors

    tree = (errors.__doc__ or "").split("A message names")[0]
    classes = [name for name, value in vars(errors).items() if isinstance(value, type)]
    drawn = re.findall(r"\w+Error", tree)
    assert sorted(drawn) == sorted(classes)


def test_every_public_name_of_a_package_loads() -> None:
    for package in ("mmdata", "mmdata.run", "mmdata.dedup", "mmdata.samples", "mmdata_train"):
        module = import_module(package)
        for name in module.__all__:
            assert getattr(module, name) is not None
        with pytest.raises(AttributeError, match="no_such_name"):
            module.no_such_name  # noqa: B018
