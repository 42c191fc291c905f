"""The Python blocks of docs/python.md and of the README run, one after another."""

import importlib.util
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_blocks_of_the_page_run():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 5
    for name, needed in (("torch", "torch"), ("jax", "jax_tvm_ffi")):
        if importlib.util.find_spec(needed) is None:
            blocks = [block for block in blocks if name not in block]
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)


def test_the_block_of_the_readme_runs():
    (block,) = re.findall(r"```python\n(.*?)```", (PAGE.parents[1] / "README.md").read_text(), re.DOTALL)
    names: dict = {}
    exec(compile(block, "README.md", "exec"), names)
    assert names["cache"].k[1, :5].any() and not names["cache"].k[1, 5:].any()


def test_the_page_lists_the_functions_of_compat():
    text = PAGE.read_text()
    modules = list((Path(__file__).parents[1] / "prologue_attention" / "compat").glob("[a-z]*.py"))
    assert len(modules) >= 5
    for module in modules:
        for name in re.findall(r"^(?:def|class) ([a-zA-Z]\w*)", module.read_text(), re.MULTILINE):
            short = re.sub(r"(_pos_ids)?(_inplace)?$", "", name)
            if f"`{short}`" not in text and f"`{name}`" not in text:
                pytest.fail(f"{PAGE} does not name {module.stem}.{name}")
