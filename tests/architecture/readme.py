"""Checks that README.md tells the truth: its tables are those of tersum-info, its example is a part of
examples/quick_start.cpp, and the files that it names exist.

usage: readme.py ROOT TERSUM_INFO [--update]     --update writes the tables into README.md
"""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path


def block(text, name):
    """Text between <!-- name:begin --> and <!-- name:end -->."""
    match = re.search(rf"<!-- {name}:begin -->\n(.*?)<!-- {name}:end -->", text, re.S)
    if not match:
        sys.exit(f"no block <!-- {name}:begin --> ... <!-- {name}:end -->")
    return match.group(1)


def tables(tool):
    """The tool's Markdown, made without any setting of this process's environment."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TERSUM_")}
    return subprocess.run([tool, "--markdown"], env=environment, check=True, capture_output=True, text=True).stdout


def code(text):
    """Code without indentation and empty lines at its ends."""
    return textwrap.dedent(text).strip()


def problems(root, tool):
    """What README.md says and is not so."""
    readme = (root / "README.md").read_text(encoding="utf-8")
    printed = tables(tool)
    for name in ("settings", "compressors"):
        if block(readme, name) != block(printed, name):
            yield f"the table of {name} in README.md is not what tersum-info --markdown prints; run this with --update"
    example = re.search(r"```cpp\n(.*?)```", block(readme, "example"), re.S)
    source = (root / "examples/quick_start.cpp").read_text(encoding="utf-8")
    plain = [line.strip() for line in source.splitlines()]
    wanted = [line.strip() for line in code(example.group(1)).splitlines()]
    if not any(plain[i:i + len(wanted)] == wanted for i in range(len(plain))):
        yield "the example in README.md is not a part of examples/quick_start.cpp"
    for target in re.findall(r"\]\(([^)#:]+)\)", readme):
        if not (root / target).exists():
            yield f"README.md links to {target}, which does not exist"


def update(root, tool):
    """Writes the tool's tables into README.md."""
    path = root / "README.md"
    readme = path.read_text(encoding="utf-8")
    printed = tables(tool)
    for name in ("settings", "compressors"):
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        before, after = readme.split(begin, 1)
        readme = before + begin + block(printed, name) + end + after.split(end, 1)[1]
    path.write_text(readme, encoding="utf-8")


def main():
    root, tool = Path(sys.argv[1]), sys.argv[2]
    if "--update" in sys.argv:
        update(root, tool)
    found = list(problems(root, tool))
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
