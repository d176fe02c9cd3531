#!/usr/bin/env python3
"""Checks the order of folders: a folder imports only from folders below it, and no files import each other in a circle.

    python3 scripts/imports.py

Each crate's order is written here, the top first. To add a folder, add it where all that it imports is below it. If an import
goes up, move what both folders need into the lower one, pass it in as an argument, or move the importing file up. Tests within
files are not counted, nor is what a folder's page re-exports from its own folder. A name that the crate root re-exports counts as
an import from the folder that has it. An import that could hide its folder is an error: all names of the crate root, or the crate
root under another name.

The order is what lets a reader take the code in from below: a folder can be understood, tested and changed with the folders
below it alone. One import upwards or in a circle, and the folders of the circle can only be understood together.
"""

import itertools
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ORDER = {
    "stageline": (
        "verify build pipeline worker runner memory recording transfer failure update device model state threads".split()
    ),
    "stageline-gpt": "sample text model".split(),
    "stageline-hub": "check other_files tensor_file write header values layout folder similar index weights tensor disk error refusal shown names".split(),
    "stageline-models": "torch flags generation export model lora families parameters attention error".split(),
    "stageline-nn": "layers autograd kernels engine forward params".split(),
    "stageline-schedule": "search schedules simulate check costs measured plan".split(),
    "stageline-checkpoint": "write read format error damage printable disk open".split(),
    "stageline-data": "corpus epochs sampler key text file_range tokens error file_change walk hex shown".split(),
    "stageline-report": "export page predict log".split(),
    "stageline-train": "program training memory kernel_messages plan optimizers settings outputs data model fingerprint terminal".split(),
    "stageline-cli": "advise search logged_run predicted_schedule measured_search simulate check plan report devices serve plan_flags costs output".split(),
}
TESTS = re.compile(r"#\[cfg\(.*test.*\)\]\s*(?:#\[[^\n]*\]\s*)*(?:pub(?:\([a-z]+\))? )?mod \w+ \{")
COMMENT = re.compile(r"//[^\n]*")
PUBLIC = r"\bpub(?:\([a-z ]+\))? "
GLOB = "the folders of these names are not seen; name each item"
ALIAS = "paths that begin with another name for the crate root are not seen; begin each with `crate`"
ITEM = "this item is in the crate root, which is above all folders; move it into a folder"


def code(path):
    """The text of a file without comments and without its tests, which stand at its end."""
    text = COMMENT.sub("", path.read_text())
    tests = TESTS.search(text)
    return text[: tests.start()] if tests else text


def is_root(source, path):
    return path in (source / "lib.rs", source / "main.rs")


def module(source, path):
    """The path of a file's module, such as `pipeline::train`. The path of the crate root is empty."""
    if is_root(source, path):
        return ""
    parts, folder = path.relative_to(source).with_suffix("").parts, path.parent
    # A folder without a page has variants of one module, of which each build has one.
    has_page = folder == source or (folder / "mod.rs").exists() or folder.with_suffix(".rs").exists()
    return "::".join(parts[:-1] if parts[-1] == "mod" or not has_page else parts)


def expanded(text, start):
    """The paths that an import names, with its braces expanded."""
    depth, end = 0, start
    while end < len(text):
        opens = text[end] == "{" and (depth > 0 or text[end - 2 : end] == "::")
        if depth == 0 and not opens and not re.match(r"[\w:*]", text[end]):
            break
        depth += 1 if opens else -1 if text[end] == "}" else 0
        end += 1
    return [path for path, _ in braces(text[start:end])]


def braces(use):
    """Each path that an import with braces names, and the name under which the file then knows it."""
    opening = use.find("{")
    if opening < 0:
        path, _, name = " ".join(use.split()).partition(" as ")
        path = path.removesuffix("::self")
        return [(path, name or path.split("::")[-1])]
    head, inner = use[:opening], use[opening + 1 : use.rfind("}")]
    parts, depth, last = [], 0, 0
    for at, letter in enumerate(inner + ","):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(inner[last:at].strip())
            last = at + 1
    return [found for part in parts if part for found in braces(head + part)]


def without_own_reexports(text, me):
    """The text of a file without what it re-exports from its own folder."""

    def outside(use):
        others = re.findall(r"\b(?:crate|super)::[\w:]*", use[1])
        return use[0] if any(not other.startswith(f"crate::{me}::") for other in others) else ""

    return re.sub(PUBLIC + r"use ([^;]*);", outside, text)


def with_inner_modules_flat(text):
    """The text of a file in which `super` of a module that is written inside the file is `self`."""

    def flat(inner):
        return re.sub(r"(?<!super::)\bsuper::", "self::", inner[0]).replace("self::super::", "super::")

    return re.sub(r"\n(?:pub(?:\([a-z]+\))? )?mod \w+ \{\n.*?\n\}", flat, text, flags=re.S)


def from_root(name, modules, exported):
    """The paths in folders that a path from the crate root may mean, and the reason if none is known."""
    first, *rest = name.split("::")
    if first == "*":
        return [], GLOB
    if first == "self":
        return [], ALIAS
    paths = ["::".join([path, *rest]) for path in exported.get(first, [])]
    if first in modules:
        # A folder and an item in it may have the same name, but only the folder has further names.
        return [name] if rest else [name, *paths], None
    paths = paths or exported.get("*", [])
    return paths, None if paths else ITEM


def imports(source, modules, exported, path):
    """The paths within its crate that a file imports. Each has the word for how, and the reason if its folder is not seen."""
    me = module(source, path)
    text = with_inner_modules_flat(without_own_reexports(code(path), me))
    reexported = [found.span() for found in re.finditer(PUBLIC + r"use [^;]*;", text)]
    for found in re.finditer(r"\buse (crate|super(?:::super)*) as \w+", text):
        if found[1] == "crate" or found[1].count("super") == len(me.split("::")):
            yield "imports", found[1], ALIAS
    for found in re.finditer(r"(?<![\w$:])\$?(crate|super(?:::super)*)::(?!super\b)", text):
        how = "re-exports" if any(start <= found.start() < end for start, end in reexported) else "imports"
        above = me.split("::")[: -found[1].count("super")] if found[1] != "crate" else []
        for name in expanded(text, found.end()):
            paths, reason = (["::".join([*above, name])], None) if above else from_root(name, modules, exported)
            if reason:
                yield how, f"{found[1]}::{name}", reason
            yield from ((how, full, None) for full in paths)
    # A page imports from the files of its folder by their names alone.
    for found in re.finditer(r"\buse (?:self::)?(\w+)::", text):
        if f"{me}::{found[1]}" in modules:
            yield "imports", f"{me}::{found[1]}", None


def reexports(source, path):
    """The names that a file has from elsewhere, each with its paths there. The files below may also import from the crate
    root what this has only for itself."""
    found = {}
    me = module(source, path)
    public = PUBLIC if me else r"\b"
    for use in re.finditer(public + r"use (?:self::)?([^;]*);", code(path)):
        for full, name in braces(use[1]):
            inside = full if full.startswith("crate::") or not me else f"{me}::{full}"
            found.setdefault(name, []).append(inside.removeprefix("crate::").removesuffix("::*"))
    return found


def resolved(full, modules, pages):
    """The module that has what a path names, and not a page that re-exports it; nothing for a path of another crate."""
    parts, seen = full.split("::"), set()
    while True:
        prefixes = ("::".join(parts[:length]) for length in range(len(parts), 0, -1))
        target = next((prefix for prefix in prefixes if prefix in modules), None)
        rest = parts[len(target.split("::")) :] if target else []
        found = pages.get(target, {}).get(rest[0], []) if rest else []
        if not found or (target, rest[0]) in seen:
            return target
        seen.add((target, rest[0]))
        parts = found[0].split("::") + rest[1:]


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
    root = [path for path in files if is_root(source, path)]
    modules = {module(source, path) for path in files if path not in root}
    exported = dict(itertools.chain.from_iterable(reexports(source, path).items() for path in root))
    pages = {module(source, path): reexports(source, path) for path in files if path not in root}
    rank = {folder: at for at, folder in enumerate(order)}
    errors, rooms, edges = [], {}, {}
    for path in files:
        me = module(source, path)
        for how, name, reason in imports(source, modules, exported, path) if me else ():
            if reason:
                errors.append(f"{crate}: `{me}` {how} `{name}`: {reason}")
            target = resolved(name, modules, pages) if not reason else None
            if not target:
                continue
            here, there = me.split("::")[0], target.split("::")[0]
            for folder in (here, there):
                if folder not in rank:
                    errors.append(f"{crate}: the folder `{folder}` has no place in the order; give it one in scripts/imports.py")
            if here != there:
                rooms.setdefault(here, set()).add(there)
                if rank.get(here, 0) > rank.get(there, 0):
                    why = f"; files below could then import it from `{here}`" if how == "re-exports" else ""
                    errors.append(f"{crate}: `{me}` {how} `{name}`, and `{there}` is above `{here}`{why}")
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
