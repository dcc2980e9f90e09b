"""Lets a process that loaded transformers end with its own status: a native package crashes while Python shuts down.

sentencepiece 0.2.1, which SGLang 0.5.23 pins, frees its type table through a Python type that may be gone by then: a
segmentation fault after all work was done, and status 139 instead of 0 (seen in a debugger: ``capsule_dealloc`` →
``_PyObject_New(tp=0)``). 0.2.3 is out; this module can go when SGLang takes it.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
from functools import cache

_PREFIX = "swig_runtime_data"


@cache
def keep_native_data() -> None:
    """At this process's end, keep the table instead of freeing it. Call it before transformers is imported."""
    atexit.register(_keep)


def _keep() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith(_PREFIX):
            for value in list(vars(module).values()):
                if type(value).__name__ == "PyCapsule":
                    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
