#!/usr/bin/env python3
"""Writes the README's own-model program to a folder: its `toml` block to Cargo.toml, its `rust` block to src/main.rs.

In Cargo.toml, the path of Stageline's clone is replaced by the version that the README promises for crates.io.
"""

import re
import sys
from pathlib import Path

PACKAGE = '[package]\nname = "outside"\nversion = "0.0.0"\nedition = "2024"\npublish = false\n\n'


def main():
    folder = Path(sys.argv[1])
    readme = (Path(__file__).resolve().parent.parent / "README.md").read_text()
    section = re.search(r"## Your own model\n(.*?)\n## ", readme, re.DOTALL).group(1)
    block = lambda language: re.search(rf"```{language}(?:,ignore)?\n(.*?)```", section, re.DOTALL).group(1)
    published = re.search(r'`(stageline = "[^"]+")`', section).group(1)
    dependencies, replaced = re.subn(r"^stageline = \{ path = .*$", published, block("toml"), flags=re.MULTILINE)
    assert replaced == 1, "the README's Cargo.toml names the path of a clone once"
    (folder / "src").mkdir(exist_ok=True)
    (folder / "Cargo.toml").write_text(PACKAGE + dependencies)
    (folder / "src/main.rs").write_text(block("rust"))


if __name__ == "__main__":
    main()
