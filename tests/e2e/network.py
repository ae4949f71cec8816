"""Network namespaces that tests make and remove again. The names carry the pid, so that what a killed test has left is known
for it. Wants root and iproute2.
"""
import os
import re
import shutil
import subprocess

PREFIX = 'tern-e2e-'  # as in namespaces.h


def ip(*words):
    subprocess.run(['ip', *words], check=True, capture_output=True)


def remove_stale():
    """Removes the namespaces of ended processes and their files."""
    for folder, remove_one in (('/run/netns', remove), ('/etc/netns', remove_files)):
        os.makedirs(folder, exist_ok=True)
        for name in os.listdir(folder):
            pid = re.match(PREFIX + r'(\d+)-', name)
            if pid and not os.path.exists(f'/proc/{pid.group(1)}'):
                remove_one(name)


def files_of(name):
    """The folder whose files replace those of /etc in a namespace."""
    return os.path.join('/etc/netns', name)


def remove_files(name):
    shutil.rmtree(files_of(name), ignore_errors=True)


def remove(name):
    subprocess.run(['ip', 'netns', 'del', name], check=False, capture_output=True)


def name_of(what):
    """A namespace of this process."""
    return f'{PREFIX}{os.getpid()}-{what}'
