"""A table of checks: each row has a finding, the bar that it has to meet, and the verdict."""

import json
from pathlib import Path


class Table:
    """The rows of a table, which are printed when they are added, and written to files at the end."""

    def __init__(self):
        self.rows, self.results, self.failed = [], {}, 0

    def row(self, what, found, bar="", passed=None):
        """Adds a row and prints it; `passed` is None if there is no bar."""
        verdict = {True: "yes", False: "NO", None: ""}[passed]
        self.rows.append((what, found, bar, verdict))
        self.results[what] = {"found": found, "bar": bar, "passed": passed}
        self.failed += passed is False
        print(f"{what}: {found} {f'(bar: {bar}) {verdict}' if bar else ''}", flush=True)

    def check(self, what, part):
        """Runs one part of the checks; any error in it becomes a row that has failed, so that the other parts run."""
        try:
            part()
        except Exception as error:
            self.row(what, f"failed: {type(error).__name__}: {error}", "no error", False)

    def has_failed(self):
        """Returns whether any row has missed its bar."""
        return self.failed > 0

    def write(self, folder, name, about):
        """Writes the table as Markdown and as JSON; `about` describes the hardware."""
        table = ["| what | found | bar | held |", "| --- | --- | --- | --- |"]
        table += [f"| {' | '.join(map(str, row))} |" for row in self.rows]
        Path(folder, f"{name}.md").write_text(f"{about}\n\n" + "\n".join(table) + "\n")
        Path(folder, f"{name}.json").write_text(json.dumps({"hardware": about, "results": self.results}, indent=1) + "\n")


def flags(settings):
    """Returns settings such as `micro_batches=8` as words of a command line, such as `--micro-batches 8`. A setting that is
    True is a flag without a value."""
    words = []
    for name, value in settings.items():
        words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return words
