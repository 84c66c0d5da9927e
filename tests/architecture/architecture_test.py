"""Proves that architecture.py sees what it is made for: copies rooms of this tree, breaks a rule, and looks.

usage: architecture_test.py ROOT [unittest arguments]
"""

import shutil
import sys
import tempfile
import unittest
from pathlib import Path

import architecture

ROOT = Path()


class BrokenTree(unittest.TestCase):
    """A copy of some rooms, fine until a test breaks it."""

    def setUp(self):
        self.root = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        for folder in ("docs", "include", "scheduler", "transport", "compressors"):
            shutil.copytree(ROOT / folder, self.root / folder)
        self.rules = architecture.read_rules(self.root)
        self.before = set(architecture.check_tree(self.root, self.rules))

    def add(self, name, *lines, head="#pragma once\n"):
        """Puts a small file into the copy."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")

    def news(self):
        """Violations that the copy did not have at first, as text."""
        return [str(v) for v in architecture.check_tree(self.root, self.rules) if v not in self.before]

    def test_a_copy_breaks_nothing_new(self):
        self.assertEqual(self.news(), [])

    def test_an_include_of_a_forbidden_room_is_named_with_file_line_and_rule(self):
        self.add("scheduler/zz.hpp", "", '#include "transport/transport.hpp"', "namespace tersum::scheduler {}")
        self.assertEqual(
            self.news(),
            ['scheduler/zz.hpp:3: room scheduler must not include "transport/transport.hpp" of room transport'])

    def test_an_existing_file_is_seen_too(self):
        path = self.root / "scheduler/scheduler.hpp"
        path.write_text('#include "compressors/convert.hpp"\n' + path.read_text(encoding="utf-8"), encoding="utf-8")
        self.assertEqual(len([n for n in self.news() if n.startswith("scheduler/scheduler.hpp:1: ")]), 1)

    def test_an_allowed_include_is_fine(self):
        self.add("transport/zz.hpp", '#include <vector>', '#include "tersum/error.hpp"', "#include <unistd.h>",
                 "#include <boost/asio/io_context.hpp>", "namespace tersum::transport {}")
        self.assertEqual(self.news(), [])

    def test_foreign_libraries_are_kept_in_their_rooms(self):
        for room, header in (("compressors", "boost/asio.hpp"), ("scheduler", "unistd.h"), ("include", "hwy/highway.h"),
                             ("transport", "spdlog/spdlog.h"), ("src", "spdlog/spdlog.h"), ("src", "Eigen/Core"),
                             ("transport", "cuda_runtime.h"), ("compressors", "nobody/knows.hpp")):
            with self.subTest(room=room, header=header):
                self.add(f"{room}/zz.hpp", f"#include <{header}>", "namespace tersum {}")
                found = [n for n in self.news() if f"{room}/zz.hpp:2: <{header}>" in n]
                self.assertEqual(len(found), 1)
                (self.root / room / "zz.hpp").unlink()

    def test_the_logging_library_has_one_door(self):
        self.add("src/log.cpp", "#include <spdlog/spdlog.h>", "namespace tersum {}", head="\n")
        self.assertFalse([n for n in self.news() if "spdlog" in n])

    def test_includes_are_relative_to_rooms(self):
        self.add("scheduler/zz.cpp", '#include "plan.hpp"', "namespace tersum::scheduler {}", head="\n")
        self.assertIn("not relative to a room", "".join(self.news()))

    def test_every_spelling_of_an_include_is_seen(self):
        for line in ('#import "transport/transport.hpp"', '/**/#include "transport/transport.hpp"',
                     '# /* a */ include/* b */"transport/transport.hpp"', '/*\n*/ #include "transport/transport.hpp"',
                     '%:include "transport/transport.hpp"', '#define HWY_TARGET_INCLUDE "transport/transport.hpp"'):
            with self.subTest(line=line):
                self.add("scheduler/zz.hpp", line, "namespace tersum::scheduler {}")
                self.assertEqual(len([n for n in self.news() if "of room transport" in n]), 1)

    def test_what_is_no_include_is_not_taken_for_one(self):
        self.add("scheduler/zz.hpp", '// #include "transport/transport.hpp"', "/*",
                 '#include "transport/transport.hpp"', "*/", "namespace tersum::scheduler {",
                 'constexpr auto kText = R"(\n#include_it "transport/transport.hpp"\n)";',
                 'constexpr const char* kGlob = "/*";', '// #include MACRO', "}")
        self.assertEqual(self.news(), [])

    def test_an_include_behind_a_text_that_looks_like_a_comment_is_seen(self):
        self.add("scheduler/zz.hpp", 'inline const char* kGlob = "/*"; inline const char kQuote = \'"\';',
                 '#include "transport/transport.hpp"', "namespace tersum::scheduler {}")
        self.assertIn("scheduler/zz.hpp:3: room scheduler must not include", "".join(self.news()))

    def test_an_include_names_its_file(self):
        self.add("scheduler/zz.hpp", "#define ELSEWHERE <unistd.h>", "#include ELSEWHERE",
                 "namespace tersum::scheduler {}")
        self.assertEqual([n.split(":")[:2] for n in self.news()], [["scheduler/zz.hpp", "3"]])
        self.assertIn("includes ELSEWHERE", self.news()[0])

    def test_files_of_all_kinds_of_code_are_seen(self):
        for suffix in ("inc", "inl", "ipp", "cc", "c", "cu", "cuh"):
            with self.subTest(suffix=suffix):
                self.add(f"scheduler/zz.{suffix}", '#include "transport/transport.hpp"',
                         "namespace tersum::scheduler {}")
                self.assertEqual(len([n for n in self.news() if f"scheduler/zz.{suffix}:2: " in n]), 1)
                (self.root / f"scheduler/zz.{suffix}").unlink()

    def test_headers_need_pragma_once_and_no_using_namespace(self):
        self.add("scheduler/zz.hpp", "using namespace std;", "namespace tersum::scheduler {}", head="")
        news = "\n".join(self.news())
        self.assertIn("#pragma once", news)
        self.assertIn("scheduler/zz.hpp:1: a header must not contain 'using namespace'", news)

    def test_long_files_are_named(self):
        self.add("scheduler/zz.cpp", *["// line"] * 500, head="// first\n")
        self.add("include/tersum/zz.hpp", *["// line"] * 250)
        news = "\n".join(self.news())
        self.assertIn("scheduler/zz.cpp:501: ", news)
        self.assertIn("include/tersum/zz.hpp:251: ", news)

    def test_code_is_in_its_namespace(self):
        self.add("scheduler/zz.cpp", "struct Lost {};", head="\n")
        self.add("scheduler/zy.cpp", "namespace tersum::transport { struct Wrong {}; }", head="\n")
        self.add("scheduler/zx.cpp", "namespace tersum::cuda { struct Wrong {}; }", head="\n")
        news = "\n".join(self.news())
        for name in ("zz", "zy", "zx"):
            self.assertIn(f"scheduler/{name}.cpp", news)

    def test_the_environment_is_read_in_one_place(self):
        self.add("transport/zz.cpp", 'namespace tersum::transport { const char* x = std::getenv("A"); }', head="\n")
        self.add("transport/zy.cpp", "namespace tersum::transport {}  // getenv is fine here", head="\n")
        self.assertEqual(len(self.news()), 1)
        self.assertIn("transport/zz.cpp:2: reads the environment", self.news()[0])

    def test_a_room_without_readme_is_named(self):
        self.add("integrations/torch/zz.hpp", "namespace tersum {}")
        self.assertIn("integrations:1: a room has a README.md", "".join(self.news()))


if __name__ == "__main__":
    ROOT = Path(sys.argv.pop(1)).resolve()
    unittest.main()
