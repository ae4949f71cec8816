#!/usr/bin/env python3
"""tests/structure/layers and tests/structure/sizes can fail: each fault is planted in a small tree, and must be named."""
import pathlib
import subprocess
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
TABLE = """
| layer | folder | public headers | may include |
|---|---|---|---|
| base | `src/base` | `status.h`, `detail/*` | nothing |
| device | `src/top/device` | | base |
| middle | `src/middle` | | base |
| top | `src/top` | `top.h` | base, device, `middle/shared.h` |
"""
TREE = {
    "docs/architecture.md": TABLE,
    "include/tern/status.h": "#include <string>\n",
    "include/tern/detail/buffer.h": "#pragma once\n",
    "include/tern/top.h": "#include <tern/status.h>\n",
    "src/base/check.h": "#include <tern/status.h>\n",
    "src/top/device/device.h": '#include "base/check.h"\n',
    "src/middle/shared.h": '#include "base/check.h"\n',
    "src/middle/inner.h": '#include "middle/shared.h"\n',
    "src/top/top.cc": '#include <tern/top.h>\n#include "middle/shared.h"\n#include "top/device/device.h"\n',
    "apps/common/flags.h": "#include <tern/top.h>\n",
    "apps/hello.cc": '#include <tern/top.h>\n#include "common/flags.h"\n',
    "examples/call.cc": "#include <tern/top.h>\n",
    "microbench/rate.cc": '#include "../apps/common/flags.h"\n',
    "tests/package/use.cc": "#include <tern/top.h>\n",
}


def run(test, changes):
    """The exit code and the output for the tree, in which these files are added or replaced."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {**TREE, **changes}.items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        done = subprocess.run([HERE / test, folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        return done.returncode, done.stdout


class LayersTest(unittest.TestCase):
    def expect_error(self, changes, text):
        code, output = run("layers", changes)
        self.assertEqual((code, output.count("\n")), (1, 1), output)  # exactly one error
        self.assertIn(text, output)

    def test_a_clean_tree_passes(self):
        code, output = run("layers", {})
        self.assertEqual(code, 0, output)

    def test_upward_include_is_an_error(self):
        self.expect_error({"src/base/check.h": '#include "middle/shared.h"\n', "src/middle/shared.h": ""},
                          "src/base/check.h includes middle/shared.h: base may not include middle")

    def test_upward_include_in_angle_brackets_is_an_error(self):
        self.expect_error({"src/base/check.h": "#include <tern/top.h>\n"},
                          "src/base/check.h includes tern/top.h: base may not include top")

    def test_upward_include_relative_to_the_file_is_an_error(self):
        self.expect_error({"src/middle/inner.h": '#include "../top/device/device.h"\n'}, "middle may not include device")

    def test_upward_include_of_a_public_header_is_an_error(self):
        self.expect_error({"include/tern/status.h": '#include <tern/top.h>\n', "include/tern/top.h": ""},
                          "include/tern/status.h includes tern/top.h")

    def test_header_that_the_table_does_not_allow_is_an_error(self):
        self.expect_error({"src/top/top.cc": '#include "middle/inner.h"\n'},
                          "src/top/top.cc includes middle/inner.h: top may not include middle")

    def test_include_of_a_layer_within_the_folder_of_another_is_an_error(self):
        self.expect_error({"src/top/inner.h": "", "src/top/device/device.h": '#include "top/inner.h"\n'},
                          "device may not include top")

    def test_include_in_a_comment_is_ignored(self):
        self.assertEqual(run("layers", {"src/base/check.h": '// #include "middle/shared.h"\n'})[0], 0)

    def test_public_header_that_includes_src_is_an_error(self):
        self.expect_error({"include/tern/top.h": '#include "base/check.h"\n'}, "which is not installed")

    def test_circle_of_includes_is_an_error(self):
        self.expect_error({"src/middle/shared.h": '#include "middle/inner.h"\n'},
                          "src/middle/inner.h -> src/middle/shared.h -> src/middle/inner.h")

    def test_file_without_a_layer_is_an_error(self):
        self.expect_error({"src/new/file.h": ""}, "src/new/file.h belongs to no layer")

    def test_missing_header_is_an_error(self):
        self.expect_error({"src/base/check.h": '#include "base/none.h"\n'}, "which this tree does not have")

    def test_header_that_cmake_writes_is_for_programs_only(self):
        self.assertEqual(run("layers", {"apps/hello.cc": '#include "transport_list.h"\n'})[0], 0)
        self.expect_error({"src/top/top.cc": '#include "transport_list.h"\n'}, "which this tree does not have")

    def test_row_that_names_a_row_below_it_is_an_error(self):
        self.expect_error({"docs/architecture.md": TABLE.replace("| nothing |", "| middle |")},
                          "base may include middle, which is no row above it")

    def test_row_without_files_is_an_error(self):
        self.expect_error({"docs/architecture.md": TABLE + "| gone | `src/gone` | | base |\n"}, "gone has no files")

    def test_document_without_a_table_is_an_error(self):
        code, output = run("layers", {"docs/architecture.md": "# Architecture\n"})
        self.assertEqual(code, 1)
        self.assertIn("has no table of layers", output)

    def test_program_that_includes_src_is_an_error(self):
        self.expect_error({"apps/hello.cc": '#include "base/check.h"\n'}, "which is neither public nor of apps")

    def test_program_that_includes_another_folder_is_an_error(self):
        self.expect_error({"examples/call.cc": '#include "../apps/common/flags.h"\n'},
                          "which is neither public nor of examples")

    def test_program_that_includes_detail_is_an_error(self):
        self.expect_error({"tests/package/use.cc": "#include <tern/detail/buffer.h>\n"}, "which is not for programs")

    def test_exception_that_is_not_needed_is_an_error(self):
        self.expect_error({"microbench/common/flow_meter.h": ""}, "take the exception away")


def function(lines, comment="", opening="int Class::name(int a,\n                int b) const {"):
    """A function of that many lines."""
    body = opening + "\n" + "  call([] { return 1; });\n" * (lines - opening.count("\n") - 2) + "}\n"
    return f"namespace tern {{\n\n{comment}{body}\n}}  // namespace tern\n"


class SizesTest(unittest.TestCase):
    def expect_error(self, text, *errors):
        code, output = run("sizes", {"src/base/long.cc": text})
        self.assertEqual((code, output.count("\n")), (1, len(errors)), output)
        for error in errors:
            self.assertIn(error, output)

    def expect_clean(self, text):
        code, output = run("sizes", {"src/base/long.cc": text + function(3)})
        self.assertEqual(code, 0, output)

    def test_500_lines_are_not_too_many(self):
        self.expect_clean("int x;\n" * 493)

    def test_501_lines_are_an_error(self):
        self.expect_error("// A file.\n" + "int x;\n" * 493 + function(3), "src/base/long.cc has 501 lines")

    def test_long_file_that_says_why_passes(self):
        self.expect_clean("// A file. Long because the test wants it so.\n" + "int x;\n" * 600)

    def test_reason_below_the_head_of_the_file_does_not_count(self):
        self.expect_error("int x;\n// Long because of nothing.\n" + "int x;\n" * 600 + function(3), "its head does not say why")

    def test_reason_of_a_short_file_is_an_error(self):
        self.expect_error("// Long because it was.\n" + function(3), "its head needs no reason")

    def test_function_of_60_lines_is_not_too_long(self):
        self.expect_clean(function(60))

    def test_function_of_61_lines_is_an_error(self):
        self.expect_error(function(61), "src/base/long.cc:3: Class::name() has 61 lines")

    def test_member_of_61_lines_in_a_class_is_an_error(self):
        self.expect_error("class A final : public B<int> {\n public:\n  A() : b_{1} {}\n"
                          + function(61, opening="  void f() override {") + "};\n", "f() has 61 lines")

    def test_constructor_with_braces_in_its_initializers_is_seen(self):
        self.expect_error(function(61, opening="A::A(int b)\n    : b_{b},\n      c_{} {"), "A() has 61 lines")

    def test_template_with_a_trailing_return_type_is_seen(self):
        self.expect_error(function(61, opening="template <class T>\nauto f(T a) -> std::pair<int, T> {"), "f() has 61 lines")

    def test_long_function_that_says_why_passes(self):
        self.expect_clean(function(80, "/// A function.\n/// Long because each kind has a line.\n"))

    def test_reason_of_another_function_does_not_count(self):
        self.expect_error(function(80, "// Long because of that.\nint before;\n"), "no comment above it says why")

    def test_reason_of_a_short_function_is_an_error(self):
        self.expect_error(function(20, "// Long because it was.\n"), "it needs no reason")

    def test_braces_in_literals_and_comments_do_not_count(self):
        self.expect_error(function(61, opening="void f() {  // }\n  const char* s = \"}\"; char c = '}';"), "f() has 61 lines")

    def test_class_of_many_lines_is_no_function(self):
        self.expect_clean("struct A {\n" + "  int f() { return 1; }\n" * 100 + "};\n")


if __name__ == "__main__":
    unittest.main()
