"""`egrm client`: the client as one file, for environments that this package cannot be installed in."""

import sys
from importlib.resources import files


EXAMPLES = ("egrm client > egrm_client.py",)


def client() -> None:
    """Write the client of `egrm serve` to stdout, as one file of Python.

    The file needs Python 3.9 and its standard library alone, so that it runs beside any trainer.
    """
    sys.stdout.write((files("transformers_egrm.integrations") / "client.py").read_text("utf-8"))


__all__ = ["EXAMPLES", "client"]
