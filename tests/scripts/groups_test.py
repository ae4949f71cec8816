#!/usr/bin/env python3
"""Tests of scripts/tern_doctor/groups.py: programs end with the script that has started them, even if it is killed."""
import os
import select
import signal
import subprocess
import sys
import unittest

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'scripts')
SECONDS_MAX = 60
SCRIPT = """
import subprocess, sys, time
sys.dont_write_bytecode = True
from tern_doctor import groups
with groups.started([sys.executable, '-c', 'import time; time.sleep(600)'], stdout=subprocess.DEVNULL) as process:
    print(process.pid, flush=True)
    time.sleep(600)
"""


class Groups(unittest.TestCase):
    def test_programs_of_a_killed_script_end(self):
        with subprocess.Popen([sys.executable, '-c', SCRIPT], cwd=SCRIPTS, stdout=subprocess.PIPE, text=True) as script:
            try:
                program = os.pidfd_open(int(script.stdout.readline()))
            finally:
                script.kill()
            ended, _, _ = select.select([program], [], [], SECONDS_MAX)
            if not ended:
                signal.pidfd_send_signal(program, signal.SIGKILL)
            os.close(program)
            self.assertTrue(ended)


if __name__ == '__main__':
    unittest.main()
