#!/usr/bin/env python3
"""That tests/c/abi can fail: changes that are planted in <tern/tern.h>, or in what the library exports, are found. And
the structs of examples/python/tern.py are those of abi.txt.

Usage: tests/c/abi_test.py CC LIBRARY
"""
import ctypes
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CC, LIBRARY = sys.argv[1:3]

# For each change: the text in the header, its replacement, and a line of the test's output.
PLANTED = {
    "a field in the middle": ("  size_t worker_threads; ", "  size_t fresh;\n  size_t worker_threads; ",
                              "+tern_nexus_options.fresh 16 8"),
    "a field at the end": ("  int64_t deadline_ns;", "  int64_t later;\n  int64_t deadline_ns;",
                           "+struct tern_call_options 24"),
    "another argument": ("uint16_t app_code) TERN_C_NOEXCEPT", "uint32_t app_code) TERN_C_NOEXCEPT",
                         "-tern_status tern_request_fail"),
    "another type": ("typedef int32_t tern_code;", "typedef int64_t tern_code;", "+typedef int64_t tern_code"),
    "another sign": ("  int32_t wait; ", "  uint32_t wait; ", "+tern_endpoint_options.wait 80 4 uint32_t"),
    "another value": ("TERN_REFUSED = 5", "TERN_REFUSED = 15", "+TERN_REFUSED 15"),
    "a function that is missing": ("TERN_C_API const char *tern_version(void)", "TERN_C_API const char *tern_age(void)",
                                   "tern_age() is declared, and the library does not export it"),
    "a hole": ("  uint32_t reserved;", "", "bytes of padding"),
}

STRUCTS = {  # structs of tern.py
    "Status": "tern_status", "NexusOptions": "tern_nexus_options", "EndpointOptions": "tern_endpoint_options",
    "HandlerOptions": "tern_handler_options", "SessionOptions": "tern_session_options",
    "CallOptions": "tern_call_options",
    "SessionInfo": "tern_session_info", "SessionName": "tern_session", "CallName": "tern_call",
    "SessionEvent": "tern_session_event", "Completion": "tern_completion", "TimerName": "tern_timer",
    "LogEvent": "tern_log_event",
}


def abi(header, library=LIBRARY):
    command = [HERE / "abi", "--cc", CC, "--header", header, library]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Planted(unittest.TestCase):
    def test_changes_of_the_header_are_found(self):
        header = (ROOT / "include/tern/tern.h").read_text()
        for name, (old, new, said) in PLANTED.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                self.assertTrue(old in header, old)
                planted = pathlib.Path(folder, "tern", "tern.h")
                planted.parent.mkdir()
                planted.write_text(header.replace(old, new, 1))
                found = abi(planted)
                self.assertEqual(found.returncode, 1, found.stdout + found.stderr)
                self.assertIn(said, found.stdout)
                if said[0] in "+-":
                    self.assertIn("tests/c/abi --update", found.stdout)

    def test_other_symbols_of_the_library_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            library = f"{folder}/libother.so"
            subprocess.run([CC, "-shared", "-x", "c", "-", "-o", library], input="int tern_version; int loose;",
                           text=True, check=True)
            found = abi(ROOT / "include/tern/tern.h", library)
            self.assertEqual(found.returncode, 1)
            self.assertIn("+loose", found.stdout)
            self.assertIn("-tern_call_start", found.stdout)

    def test_structs_of_python_are_those_of_c(self):
        sys.path.insert(0, str(ROOT / "examples/python"))
        sys.dont_write_bytecode = True
        os.environ["TERN_LIBRARY"] = LIBRARY
        import tern  # pylint: disable=import-outside-toplevel
        kept = (HERE / "abi.txt").read_text()
        for name, c_name in STRUCTS.items():
            struct = getattr(tern, name)
            said = [f"struct {c_name} {ctypes.sizeof(struct)}"]
            for field, *_ in struct._fields_:
                place = getattr(struct, field)
                said.append(f"{c_name}.{field} {place.offset} {place.size}")
            self.assertEqual(said, re.findall(rf"^(struct {c_name} \d+|{c_name}\.\w+ \d+ \d+)", kept, re.M))
        values = dict(re.findall(r"^TERN_(\w+) (\d+)$", kept, re.M))
        for code, word in enumerate(tern.CODES):
            self.assertEqual((int(values[word]), getattr(tern, word)), (code, code))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
