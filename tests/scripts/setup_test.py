#!/usr/bin/env python3
"""scripts/setup with stand-ins for dpkg-query, apt-get and others, so that it installs nothing."""
import os
import subprocess
import tempfile
import unittest

from fakes import write_program

SETUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'scripts', 'setup')
LOCKED = 'E: Could not get lock /var/lib/apt/lists/lock. It is held by process 4711 (apt-get)'


class Setup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        write_program(self.path('id'), ['0\n'], '')
        write_program(self.path('dpkg'), ['amd64\n'], '')
        write_program(self.path('sleep'), [''], '')

    def path(self, name):
        return os.path.join(self.folder, name)

    def write_apt_get(self, failures, message):
        """An apt-get whose first updates fail with this message. It notes its calls."""
        with open(self.path('apt-get'), 'w', encoding='utf-8') as file:
            file.write(f'''#!/bin/sh
for word; do case $word in update | install) echo "$word" >>"$0.calls"; break ;; esac; done
[ "$word" = update ] && [ "$(grep -c update "$0.calls")" -le {failures} ] && echo '{message}' >&2 && exit 100
exit 0
''')
        os.chmod(self.path('apt-get'), 0o755)

    def run_setup(self):
        """The standard output and the calls of apt-get."""
        environment = {**os.environ, 'PATH': self.folder + ':' + os.environ['PATH']}
        done = subprocess.run([SETUP, 'bench'], env=environment, capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        if not os.path.exists(self.path('apt-get.calls')):
            return done.stdout, []
        with open(self.path('apt-get.calls'), encoding='utf-8') as file:
            return done.stdout, file.read().split()

    def states(self, *states):
        """dpkg-query expands the format once for each architecture of the package. Each state is 'ARCHITECTURE STATE'."""
        with open(self.path('dpkg-query'), 'w', encoding='utf-8') as file:
            file.write('#!/bin/sh\nfor word; do case $word in -f=*) format=${word#-f=} ;; esac; done\n')
            for state in states:
                architecture, status = state.split()
                file.write("printf \"$(printf %s \"$format\" | "
                           f"sed 's/${{Architecture}}/{architecture}/; s/${{db:Status-Status}}/{status}/')\"\n")
        os.chmod(self.path('dpkg-query'), 0o755)

    def test_packages_of_this_architecture_and_of_all_are_installed(self):
        self.write_apt_get(0, '')
        for states in (('amd64 installed',), ('amd64 installed', 'i386 installed'), ('i386 not-installed', 'amd64 installed'),
                       ('all installed',)):
            self.states(*states)
            output, calls = self.run_setup()
            self.assertIn('everything for bench is installed', output)
            self.assertEqual(calls, [])

    def test_packages_that_are_not_here_or_of_another_architecture_are_missing(self):
        for states in (('amd64 not-installed',), ('amd64 config-files', 'i386 installed'), ('i386 installed',), ()):
            self.write_apt_get(0, '')
            self.states(*states)
            self.assertEqual(self.run_setup()[1], ['update', 'install'])
            os.remove(self.path('apt-get.calls'))

    def test_update_waits_for_a_lock(self):
        self.states('amd64 not-installed')
        self.write_apt_get(2, LOCKED)
        self.assertEqual(self.run_setup()[1], ['update', 'update', 'update', 'install'])

    def test_update_that_fails_otherwise_is_not_repeated(self):
        self.states('amd64 not-installed')
        self.write_apt_get(5, 'E: Could not resolve a name')
        self.assertEqual(self.run_setup()[1], ['update', 'install'])


if __name__ == '__main__':
    unittest.main()
