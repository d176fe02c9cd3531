#!/usr/bin/env python3
"""Writes the README's own-model program to a folder: its `toml` block to Cargo.toml, its `rust` block to src/main.rs."""

import re
import sys
from pathlib import Path

PACKAGE = '[package]\nname = "outside"\nversion = "0.0.0"\nedition = "2024"\npublish = false\n\n'


def main():
    folder = Path(sys.argv[1])
    readme = (Path(__file__).resolve().parent.parent / "README.md").read_text()
    section = re.search(r"## Your own model\n(.*?)\n## ", readme, re.DOTALL).group(1)
    block = lambda language: re.search(rf"```{language}\n(.*?)```", section, re.DOTALL).group(1)
    (folder / "src").mkdir(exist_ok=True)
    (folder / "Cargo.toml").write_text(PACKAGE + block("toml"))
    (folder / "src/main.rs").write_text(block("rust"))


if __name__ == "__main__":
    main()
