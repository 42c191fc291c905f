"""The package's types, as type checkers see them."""

import inspect
import subprocess
import sys
import typing
from pathlib import Path

import prologue_attention as prologue
import pytest
from prologue_attention import _options


def test_mypy_knows_what_calls_return(tmp_path):
    pytest.importorskip("mypy")
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nstrict = True\nfollow_imports = silent\n[mypy-tvm_ffi.*]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir=/dev/null"]
    result = subprocess.run([*command, str(Path(__file__).with_name("typed_calls.py"))], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "name, options, apart",
    [
        ("rotary", _options.RotaryOptions, {"x", "rope", "out"}),
        ("attention_prologue", _options.PrologueOptions, {"q", "k", "v", "qkv", "q_out", "q8_out"}),
        ("mla_prologue", _options.MlaOptions, {"kv_c", "k_pe", "q_pe", "q_pe_out"}),
    ],
)
def test_the_options_of_overloads_are_the_functions_parameters(name, options, apart):
    function = getattr(prologue, name)
    hints = typing.get_type_hints(function)
    parameters = {one: hints[one] for one in inspect.signature(function).parameters if one not in apart}
    assert typing.get_type_hints(options) == parameters
