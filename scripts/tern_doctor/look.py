"""Reads files and runs commands, and keeps a list of the files that it may not read."""
import os
import shutil
import subprocess

COMMAND_SECONDS_MAX = 10


class Look:
    """The machine's /proc, /sys, /boot and so on; or a copy of them under `root`. Commands and system calls give no
    information about a copy (`is_live` is False then).
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
        """None: the file does not exist, or cannot be read; a lack of permission is noted."""
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
        """Sorted names in a folder; empty if the folder does not exist."""
        try:
            return sorted(os.listdir(self.path(path)))
        except OSError:
            return []

    def has(self, path):
        return os.path.exists(self.path(path))

    def link(self, path):
        """The last part of a symbolic link's target, as sysfs names drivers; None: the link does not exist."""
        try:
            return os.path.basename(os.readlink(self.path(path)))
        except OSError:
            return None

    def run(self, *words):
        """(exit code, standard output, standard error); None: the program does not exist here, or it does not end."""
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
    """The numbers in a kernel's list, such as 0,2-4."""
    numbers = []
    for part in (text or '').replace('\n', '').split(','):
        first, _, last = part.strip().partition('-')
        if first.isdigit():
            numbers += range(int(first), int(last if last.isdigit() else first) + 1)
    return numbers
