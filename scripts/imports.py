#!/usr/bin/env python3
"""Checks the order of folders: a folder imports only from folders below it, and no files import each other in a circle.

    python3 scripts/imports.py

Each crate's order is written here, the top first. To add a folder, add it where all that it imports is below it. If an import
goes up, move what both folders need into the lower one, pass it in as an argument, or move the importing file up. Tests within
files, and what a file only re-exports, are not counted.

The order is what lets a reader take the code in from below: a folder can be understood, tested and changed with the folders
below it alone. One import upwards or in a circle, and the folders of the circle can only be understood together.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ORDER = {
    "stageline": (
        "verify build pipeline worker runner memory recording transfer failure update device model state threads".split()
    ),
    "stageline-gpt": "sample text model".split(),
    "stageline-hub": "check companions tensor_file write header values layout folder similar index weights tensor disk error refusal shown names".split(),
    "stageline-models": "generation generation_config export model family gpt2 llama head residual parameters names cache scope limits unsupported error".split(),
    "stageline-nn": "layers autograd kernels engine forward params".split(),
    "stageline-schedule": "search schedules simulate check costs measured plan".split(),
    "stageline-checkpoint": "write read format error damage printable disk open".split(),
    "stageline-data": "corpus sampler key text file_range tokens error change walk".split(),
    "stageline-report": "export page predict log".split(),
    "stageline-train": "program training memory kernels plan optimizers settings outputs data model fingerprint".split(),
}
TESTS = re.compile(r"#\[cfg\(.*test.*\)\]\s*(?:#\[[^\n]*\]\s*)*(?:pub(?:\([a-z]+\))? )?mod \w+ \{")
COMMENT = re.compile(r"//[^\n]*")


def code(path):
    """The text of a file without comments and without its tests, which stand at its end."""
    text = COMMENT.sub("", path.read_text())
    tests = TESTS.search(text)
    return text[: tests.start()] if tests else text


def module(source, path):
    """The path of a file's module, such as `pipeline::train`."""
    parts = path.relative_to(source).with_suffix("").parts
    return "::".join(parts[:-1] if parts[-1] == "mod" else parts)


def expanded(text, start):
    """The paths that an import names, with its braces expanded."""
    depth, end = 0, start
    while end < len(text) and (depth or text[end] not in ";,) \n"):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth < 0:
            break
        end += 1
    path = "".join(text[start:end].split())
    return braces(path)


def braces(path):
    opening = path.find("{")
    if opening < 0:
        return [path]
    head, inner = path[:opening], path[opening + 1 : path.rfind("}")]
    parts, depth, last = [], 0, 0
    for at, letter in enumerate(inner + ","):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(inner[last:at])
            last = at + 1
    return [full for part in parts if part for full in braces(head + part)]


def imports(source, modules, exported, path):
    """The modules of the same crate from which a file imports."""
    me, text = module(source, path), code(path)
    # The re-exports of a module page do not count as its imports.
    text = re.sub(r"pub(?:\([a-z]+\))? use [^;]*;", "", text)
    # Within a module that is written inside the file, `super` is the file.
    text = re.sub(r"\n(?:pub )?mod \w+ \{\n.*?\n\}", "", text, flags=re.S)
    for found in re.finditer(r"(?<![\w$:])\$?(crate|super(?:::super)*)::", text):
        above = me.split("::")[: -found[1].count("super")] if found[1] != "crate" else []
        for name in expanded(text, found.end()):
            parts = above + re.sub(r"[<(!].*", "", name).split("::")
            if not above and parts[0] in exported:
                parts = exported[parts[0]].split("::")
            for length in range(len(parts), 0, -1):
                target = "::".join(parts[:length])
                if target in modules:
                    yield me, target, name
                    break
    # A page imports from the files of its folder by their names alone.
    for found in re.finditer(r"\buse (?:self::)?(\w+)::", text):
        if f"{me}::{found[1]}" in modules:
            yield me, f"{me}::{found[1]}", found[1]


def resolved(pages, target, name):
    """The file that has what a folder's page re-exports under this name."""
    last = name.split("::")[-1]
    return pages.get(target, {}).get(last, target)


def reexports(source, path):
    found = {}
    me = module(source, path)
    text = COMMENT.sub("", path.read_text())
    for use in re.finditer(r"pub(?:\([a-z]+\))? use (?:self::)?([^;]*);", text):
        for full in braces("".join(use.group(1).split())):
            parts = full.removeprefix("crate::").split("::")
            parent = "::".join(parts[:-1])
            inside = parent if full.startswith("crate::") or not me else f"{me}::{parent}"
            found[parts[-1]] = inside
    return found


def circle(edges):
    """A circle of imports, if there is one."""
    state, stack = {}, []

    def visit(node):
        state[node] = 1
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if state.get(other) == 1:
                return stack[stack.index(other) :] + [other]
            if other not in state:
                found = visit(other)
                if found:
                    return found
        state[node] = 2
        stack.pop()
        return None

    for node in sorted(edges):
        if node not in state:
            found = visit(node)
            if found:
                return found
    return None


def levels(edges, nodes):
    known = {}

    def level(node):
        if node not in known:
            known[node] = 0
            known[node] = 1 + max((level(other) for other in edges.get(node, ())), default=0)
        return known[node]

    return max(map(level, nodes))


def check(crate, order):
    source = ROOT / "crates" / crate / "src"
    files = sorted(source.rglob("*.rs"))
    modules = {module(source, path) for path in files} - {"lib"}
    exported = {name: parent for name, parent in reexports(source, source / "lib.rs").items() if parent}
    pages = {module(source, path): reexports(source, path) for path in files if path.name == "mod.rs"}
    rank = {folder: at for at, folder in enumerate(order)}
    errors, rooms, edges = [], {}, {}
    for path in files:
        if path.name == "lib.rs":
            continue
        for me, target, name in imports(source, modules, exported, path):
            target = resolved(pages, target, name)
            here, there = me.split("::")[0], target.split("::")[0]
            for folder in (here, there):
                if folder not in rank:
                    errors.append(f"{crate}: the folder `{folder}` has no place in the order; give it one in scripts/imports.py")
            if here != there:
                rooms.setdefault(here, set()).add(there)
                if rank.get(here, 0) > rank.get(there, 0):
                    errors.append(f"{crate}: `{me}` imports `{name}`, and `{there}` is above `{here}`")
            elif me != target:
                edges.setdefault(me, set()).add(target)
    found = circle(edges)
    if found:
        errors.append(f"{crate}: files import each other in a circle: {' -> '.join(found)}")
    if not errors:
        print(f"{crate}: {len(order)} folders on {levels(rooms, order)} levels, no import goes up, no circle")
    return sorted(set(errors))


def main():
    errors = [error for crate, order in ORDER.items() for error in check(crate, order)]
    if errors:
        sys.exit("\n".join(errors) + "\n\n" + __doc__.split("\n\n", 2)[2])


if __name__ == "__main__":
    main()
