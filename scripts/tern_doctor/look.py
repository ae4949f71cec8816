"""Reads files and runs commands, and keeps a list of what it was not allowed to see."""
import os
import shutil
import subprocess

COMMAND_SECONDS_MAX = 10


class Look:
    """The machine's /proc, /sys, /boot and so on; or a copy of them under `root`, of which commands and system calls
    cannot say anything (`is_live` is False then).
    """

    def __init__(self, root='/'):
        self.root = root
        self.is_live = os.path.realpath(root) == '/'
        self.unseen = []

    def path(self, path):
        return os.path.join(self.root, path.lstrip('/'))

    def note_unseen(self, what):
        if what not in self.unseen:
            self.unseen.append(what)

    def bytes(self, path):
        """None: there is no such file, or it cannot be read, which is noted if it is a matter of permission."""
        try:
            with open(self.path(path), 'rb') as file:
                return file.read()
        except PermissionError:
            self.note_unseen(f'{path} may not be read by this user')
        except OSError:
            pass
        return None

    def text(self, path):
        content = self.bytes(path)
        return None if content is None else content.decode(errors='replace').strip()

    def number(self, path):
        try:
            return int(self.text(path) or '', 0)
        except ValueError:
            return None

    def names(self, path):
        """Sorted names in a folder; none if there is no such folder."""
        try:
            return sorted(os.listdir(self.path(path)))
        except OSError:
            return []

    def has(self, path):
        return os.path.exists(self.path(path))

    def link(self, path):
        """The last part of where a symbolic link leads, as sysfs names drivers; None: there is none."""
        try:
            return os.path.basename(os.readlink(self.path(path)))
        except OSError:
            return None

    def run(self, *words):
        """(exit code, standard output, standard error); None: there is no such program here, or it does not end."""
        if not self.is_live:
            return None
        program = shutil.which(words[0]) or shutil.which(words[0], path='/usr/sbin:/sbin:/usr/bin:/bin')
        if program is None:
            return None
        try:
            done = subprocess.run([program, *words[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  errors='replace', timeout=COMMAND_SECONDS_MAX, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.returncode, done.stdout, done.stderr


def list_of(text):
    """Numbers of a kernel's list, as 0,2-4."""
    numbers = []
    for part in (text or '').replace('\n', '').split(','):
        first, _, last = part.strip().partition('-')
        if first.isdigit():
            numbers += range(int(first), int(last if last.isdigit() else first) + 1)
    return numbers
