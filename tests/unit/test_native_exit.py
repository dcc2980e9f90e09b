"""A process that loaded sentencepiece's native part ends with its own status."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys, types
{guard}
ctypes.pythonapi.PyCapsule_New.restype = ctypes.py_object
ctypes.pythonapi.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
freed = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda capsule: print("freed", flush=True))
module = sys.modules["swig_runtime_data4"] = types.ModuleType("swig_runtime_data4")
address = ctypes.cast(freed, ctypes.c_void_p).value
module.table = ctypes.pythonapi.PyCapsule_New(1, b"table", address)
import atexit
atexit._run_exitfuncs()
del module, sys.modules["swig_runtime_data4"]
print("done", flush=True)
import os
os._exit(0)
"""
GUARD = "from config.native_exit import keep_native_data; keep_native_data()"


@pytest.mark.parametrize(("guard", "expected"), [("", "freed\ndone\n"), (GUARD, "done\n")])
def test_the_native_table_is_not_freed_at_the_end(guard: str, expected: str) -> None:
    """Without the guard its destructor runs while modules go; with it, it does not."""
    command = [sys.executable, "-c", PROGRAM.format(guard=guard)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == expected
