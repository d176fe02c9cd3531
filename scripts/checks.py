"""A table of checks: what was found, and whether it is within its bar."""

import json
from pathlib import Path


class Table:
    def __init__(self):
        self.rows, self.results = [], {}

    def row(self, what, found, bar="", passed=None):
        """A line of the table; `passed` is None where there is no bar."""
        verdict = {True: "yes", False: "NO", None: ""}[passed]
        self.rows.append((what, found, bar, verdict))
        self.results[what] = {"found": found, "bar": bar, "passed": passed}
        print(f"{what}: {found} {f'(bar: {bar}) {verdict}' if bar else ''}", flush=True)

    def check(self, what, part):
        try:
            part()
        except (RuntimeError, OSError) as error:
            self.row(what, f"failed: {error}", "to run", False)

    def has_failed(self):
        return any(result["passed"] is False for result in self.results.values())

    def write(self, folder, name, about):
        table = ["| what | found | bar | held |", "| --- | --- | --- | --- |"]
        table += [f"| {' | '.join(row)} |" for row in self.rows]
        Path(folder, f"{name}.md").write_text(f"{about}\n\n" + "\n".join(table) + "\n")
        Path(folder, f"{name}.json").write_text(json.dumps({"hardware": about, "results": self.results}, indent=1) + "\n")


def flags(settings):
    return [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]
