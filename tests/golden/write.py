"""Write the golden rows anew: what the library judges now.

    python tests/golden/write.py

Run it only when rewards are meant to change; what changed and why is then named under *Rewards change* in CHANGELOG.md.
Otherwise a difference that `tests/test_golden.py` reports is a mistake. A retrained egrm-mini needs new rows as well:
they hold for the weights whose hash stands in the file's first line.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch


sys.path.insert(0, str(Path(__file__).parent.parent))

from golden.cases import CASES, ROWS, differences, mini_hash, rows_of
from golden.checkpoints import load


def main() -> None:
    """Judge every case and write its rows."""
    torch.set_num_threads(1)  # as the tests do
    written: dict[str, list[dict[str, Any]]] = {}
    with ROWS.open("w", encoding="utf-8") as file:
        file.write(json.dumps({"egrm_mini_sha256": mini_hash()}) + "\n")
        for case in sorted(CASES.values(), key=lambda case: case.rows_of is not None):  # others' rows come first
            rows = rows_of(load(case.checkpoint), case)
            if case.rows_of is not None:
                if found := differences(case, written[case.rows_of], rows):
                    raise SystemExit("\n".join(found))  # two ways that must agree do not
                continue
            written[case.name] = rows
            file.writelines(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
            routes = Counter(f"{row['route']} {row['status']}" for row in rows)
            sys.stdout.write(f"{case.name}: {len(rows)} rows, {dict(routes)}\n")
    sys.stdout.write(f"{ROWS.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
