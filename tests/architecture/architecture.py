"""Holds the tree against the rules of docs/architecture.md, which it reads from there.

usage: architecture.py ROOT

Prints one line "file:line: what breaks which rule" for each violation; exit status 1 if there is one.
Only the standard library is needed.
"""

import fnmatch
import re
import sys
from pathlib import Path
from typing import NamedTuple

SOURCE_SUFFIXES = {".cpp", ".cc", ".c", ".hpp", ".h", ".cu", ".cuh", ".inc", ".inl", ".ipp"}
HEADER_SUFFIXES = {".hpp", ".h", ".cuh"}
LINES_OF_ANY_FILE = 500
LINES_OF_PUBLIC_HEADER = 250
ROOM_NAMESPACES = {
    "compressors": "compressors", "scheduler": "scheduler", "transport": "transport", "cuda": "gpu",
}
STANDARD_HEADERS = set("""
algorithm any array atomic barrier bit bitset charconv chrono codecvt compare complex concepts condition_variable
coroutine deque exception execution filesystem format forward_list fstream functional future initializer_list iomanip
ios iosfwd iostream istream iterator latch limits list locale map memory memory_resource mutex new numbers numeric
optional ostream queue random ranges ratio regex scoped_allocator semaphore set shared_mutex source_location span
sstream stack stdexcept stop_token streambuf string string_view strstream syncstream system_error thread tuple
type_traits typeindex typeinfo unordered_map unordered_set utility valarray variant vector version
cassert cctype cerrno cfenv cfloat cinttypes climits clocale cmath csetjmp csignal cstdarg cstddef cstdint cstdio
cstdlib cstring ctime cuchar cwchar cwctype
assert.h ctype.h errno.h float.h inttypes.h limits.h math.h signal.h stdarg.h stdbool.h stddef.h stdint.h stdio.h
stdlib.h string.h time.h
""".split())

# HWY_TARGET_INCLUDE names the file that hwy/foreach_target.h includes.
INCLUDE = re.compile(r'^\s*(?:#|%:)\s*(?:include|include_next|import|define\s+HWY_TARGET_INCLUDE)\b\s*'
                     r'(?:([<"])([^>"]+)[>"]|(\S.*))')
ENVIRONMENT = re.compile(r"\b(?:getenv|secure_getenv|environ)\b")
# A literal, which may look like a comment inside, or a comment.
TOKEN = re.compile(r'R"([^()\\\s]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|'
                   r'(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))', re.S)
CODE_SPAN = re.compile(r"`([^`]+)`")


class Violation(NamedTuple):
    """One broken rule, and where."""

    file: str
    line: int
    text: str

    def __str__(self):
        return f"{self.file}:{self.line}: {self.text}"


class Rules(NamedTuple):
    """What docs/architecture.md allows."""

    rooms: dict      # room -> {other room -> globs of headers that may be included, or ["*"]}
    libraries: list  # (name, globs of headers, globs of files or rooms that may include them)
    environment: list  # files that may read the process's environment


def table(text, name):
    """Rows (lists of cells, title row left out) of the table between <!-- name:begin --> and <!-- name:end -->."""
    match = re.search(rf"<!-- {name}:begin -->\n(.*?)<!-- {name}:end -->", text, re.S)
    if not match:
        raise SystemExit(f"docs/architecture.md has no table between <!-- {name}:begin --> and <!-- {name}:end -->")
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")]
            for line in match.group(1).splitlines() if line.startswith("|")]
    return [rows[0]] + rows[2:]


def read_rules(root):
    """The rules as docs/architecture.md states them."""
    text = (root / "docs/architecture.md").read_text(encoding="utf-8")
    title, *rows = table(text, "rooms")
    columns = [CODE_SPAN.findall(cell)[0] for cell in title[1:]]
    rooms = {}
    for row in rows:
        allowed = {}
        for column, cell in zip(columns, row[1:]):
            if cell:
                allowed[column] = CODE_SPAN.findall(cell) or ["*"]
        for room in CODE_SPAN.findall(row[0]):
            rooms[room] = allowed
    libraries = [(row[0], CODE_SPAN.findall(row[1]), CODE_SPAN.findall(row[2]))
                 for row in table(text, "libraries")[1:]]
    environment = [CODE_SPAN.findall(row[0])[0] for row in table(text, "environment")[1:]]
    return Rules(rooms, libraries, environment)


def matches_any(path, patterns):
    """True if the path is one of the patterns or lies in a folder named by one."""
    return any(fnmatch.fnmatchcase(path, p) or path.startswith(p.rstrip("/") + "/") for p in patterns)


def check_include(rules, root, file, quote, header):
    """What is wrong with one include, or None."""
    room = file.split("/")[0]
    first = header.split("/")[0]
    if quote == '"' and room not in ("include", "src", *ROOM_NAMESPACES) and (root / room / header).is_file():
        return None  # tests, benchmarks and examples have folders of their own
    target = "include" if first == "tersum" else first
    if (quote == '"' or first == "tersum") and target in rules.rooms and "/" in header:
        allowed = rules.rooms[room].get(target)
        if allowed is None:
            return f'room {room} must not include "{header}" of room {target}'
        if allowed != ["*"] and not matches_any(header, allowed):
            return f'room {room} may include only {", ".join(allowed)} of room {target}, not "{header}"'
        return None
    if header in STANDARD_HEADERS:
        return None
    for name, headers, places in rules.libraries:
        if matches_any(header, headers):
            if matches_any(file, places):
                return None
            return f"<{header}> belongs to {name}, which only {', '.join(places)} may include"
    if quote == "<":
        return f"<{header}> is neither of the standard library nor of a library that docs/architecture.md lists"
    if room not in ("include", "src", *ROOM_NAMESPACES):
        return None  # a path below the folder's own root
    return f'"{header}" is not relative to a room: write "{room}/{Path(header).name}"'


def check_header(file, room, lines):
    """#pragma once, and no names thrown into the reader's scope."""
    text = "\n".join(lines)
    if not file.endswith("-inl.hpp") and "#pragma once" not in text:
        yield Violation(file, 1, "a header starts with #pragma once")
    for number, line in enumerate(lines, 1):
        if room != "tests" and re.match(r"\s*using\s+namespace\b", line):
            yield Violation(file, number, "a header must not contain 'using namespace'")
    if room == "include" and len(lines) > LINES_OF_PUBLIC_HEADER:
        yield Violation(file, len(lines), f"a public header has at most {LINES_OF_PUBLIC_HEADER} lines")


def check_namespace(file, room, lines):
    """Everything is in tersum, a room's things in its own namespace; nothing is called tersum::cuda."""
    text = "\n".join(lines)
    for number, line in enumerate(lines, 1):
        if re.search(r"\bnamespace\s+(?:tersum::)?cuda\b", line):
            yield Violation(file, number, "namespace cuda inside ours hides ::cuda; it is called tersum::gpu")
    if file.endswith((".h", ".inc", ".inl", ".ipp")) or re.search(r"\bint main\(", text):
        return
    declared = re.findall(r"\bnamespace\s+(tersum[\w:]*)", text)
    if not declared and re.search(r"^\s*(?:class|struct|enum|template|namespace)\b|\)\s*(?:const\s*)?\{", text, re.M):
        yield Violation(file, 1, "code of a room is in namespace tersum")
    own = ROOM_NAMESPACES.get(room)
    others = {name for key, name in ROOM_NAMESPACES.items() if key != room}
    for name in declared:
        parts = name.split("::")
        if own and len(parts) > 1 and parts[1] in others:
            yield Violation(file, 1, f"room {room} declares things in namespace {name}; its own is tersum::{own}")


def without_comments(text):
    """The same lines with blanks in the place of comments."""
    def blank(match):
        comment = match.group("comment")
        return match.group() if comment is None else " " + "\n" * comment.count("\n")
    return TOKEN.sub(blank, text)


def check_line(rules, root, file, line):
    """What is wrong with the include in one line of code, or None."""
    include = INCLUDE.match(line)
    if not include:
        return None
    quote, header, macro = include.groups()
    if macro:
        return f"includes {macro.strip()}: name the file, so that rules can be held against it"
    return check_include(rules, root, file, quote, header)


def check_file(rules, root, path):
    """All rules for one file of C, C++ or CUDA."""
    file = path.relative_to(root).as_posix()
    room = file.split("/")[0]
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        problem = check_line(rules, root, file, line)
        if problem:
            yield Violation(file, number, problem)
        elif ENVIRONMENT.search(line) and room != "tests" and file not in rules.environment:
            yield Violation(file, number, "reads the environment; only " + ", ".join(rules.environment) + " may")
    if path.suffix in HEADER_SUFFIXES:
        yield from check_header(file, room, lines)
    if room in ("include", "src", *ROOM_NAMESPACES):
        yield from check_namespace(file, room, lines)


def check_tree(root, rules):
    """All violations in the tree at `root`, in order of files. Build folders and hidden ones are not looked at."""
    violations = []
    for room in sorted(rules.rooms):
        folder = root / room
        if not folder.is_dir():
            continue
        files = sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
        if any(p.suffix in SOURCE_SUFFIXES for p in files) and not (folder / "README.md").is_file():
            violations.append(Violation(room, 1, "a room has a README.md: purpose, rules, how to add"))
        for path in files:
            if path.suffix in SOURCE_SUFFIXES:
                violations += check_file(rules, root, path)
            if path.suffix in SOURCE_SUFFIXES | {".py", ".sh"}:
                length = len(path.read_text(encoding="utf-8").splitlines())
                if length > LINES_OF_ANY_FILE:
                    name = path.relative_to(root).as_posix()
                    violations.append(Violation(name, length, f"a file has at most {LINES_OF_ANY_FILE} lines"))
    return violations


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    violations = check_tree(root, read_rules(root))
    for violation in violations:
        print(violation)
    print(f"{len(violations)} violations of docs/architecture.md")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
