"""Plants bugs in copies of the tree and makes a program that has them.

Whatever in a build of the program depends on a file that a patch changes is compiled anew, as it was compiled there, and
linked with everything else as it is. Where a patch changes a header, its text may name the sources that use what it changes,
in a line "Compiles: SOURCE...": then only those of the dependent sources are compiled anew, and the others keep what they have.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Failed(Exception):
    pass


def run(command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        raise Failed(f"{command if isinstance(command, str) else ' '.join(command)}\n{done.stdout}")
    return done.stdout


class Build:
    """How a build folder has made tests/PROGRAM, out of `folders` of the tree and the CMake targets named."""

    def __init__(self, folder, program, targets, folders):
        self.folder, self.program, self.folders = pathlib.Path(folder).resolve(), program, folders
        prefixes = tuple(f"{target}/" for target in targets)
        self.commands = {}  # by object
        for entry in json.loads((self.folder / "compile_commands.json").read_text()):
            arguments = shlex.split(entry["command"])
            name = arguments[arguments.index("-o") + 1]
            if name.startswith(prefixes):
                self.commands[name] = arguments
        self.dependents = {}  # of a file of the tree: objects
        name = None
        for line in run(["ninja", "-C", str(self.folder), "-t", "deps"]).splitlines():
            if line.startswith("    "):
                if name in self.commands:
                    path = pathlib.Path(os.path.normpath(self.folder / line.strip()))
                    if path.is_relative_to(ROOT):
                        self.dependents.setdefault(str(path.relative_to(ROOT)), set()).add(name)
            else:
                name = line.split(":")[0]
        self.output = f"-o tests/{program} "
        self.link = run(["ninja", "-C", str(self.folder), "-t", "commands", f"tests/{program}"]).splitlines()[-1]
        if self.link.count(self.output) != 1:
            raise Failed(f"no link command of {program}: {self.link}")

    def objects_of(self, changed, sources):
        """Those that depend on files that were changed; and only those of these sources, if there are any."""
        names = set()
        for path in changed:
            if path not in self.dependents:
                raise Failed(f"nothing in {self.program} depends on {path}")
            names |= self.dependents[path]
        if not sources:
            return sorted(names)
        found = {source: [name for name in names if name.endswith(f"/{source}.o")] for source in sources}
        for source, of_source in found.items():
            if len(of_source) != 1:
                raise Failed(f"{source} is not a source of {self.program} that depends on {' or '.join(changed)}")
        return sorted(name for of_source in found.values() for name in of_source)


class Planted:
    """One bug: its copy of the tree, and the program that has it."""

    def __init__(self, build, patch):
        self.build, self.patch, self.name = build, patch, patch.stem
        self.work = build.folder / "planted" / build.program / self.name
        self.tree = self.work / "tree"

    def copy(self):
        shutil.rmtree(self.work, ignore_errors=True)
        for folder in self.build.folders:
            shutil.copytree(ROOT / folder, self.tree / folder)
        # Exactly: a patch of code that has changed says so, instead of planting another bug.
        out = run(["patch", "-p1", "--fuzz=0", "--no-backup-if-mismatch", "-i", str(self.patch)], cwd=self.tree)
        return re.findall(r"^patching file '?([^'\n]+?)'?$", out, re.MULTILINE)

    def compile(self, name):
        output = self.work / "objects" / name
        output.parent.mkdir(parents=True, exist_ok=True)
        arguments = []
        for argument in self.build.commands[name]:
            for folder in ("include", "src", "tests"):
                argument = re.sub(rf"^(-I)?{re.escape(str(ROOT / folder))}(?=/|$)", rf"\1{self.tree / folder}", argument)
            arguments.append(argument)
        arguments[arguments.index("-o") + 1] = str(output)
        run(arguments, cwd=self.build.folder)
        return output

    def make(self):
        link, extra = self.build.link, []
        sources = re.search(r"^Compiles: (.*)$", self.patch.read_text(), re.MULTILINE)
        for name in self.build.objects_of(self.copy(), sources.group(1).split() if sources else []):
            output = str(self.compile(name))
            if f" {name} " in link:
                link = link.replace(f" {name} ", f" {output} ")
            else:  # a library's: before that is looked into
                extra.append(output)
        program = self.work / self.build.program
        run(link.replace(self.build.output, f"{' '.join(extra)} -o {program} "), cwd=self.build.folder, shell=True)
        return program

    def find(self, search):
        """`search(program)` says how the bug was found, or fails."""
        start = time.monotonic()
        program = self.make()
        made = time.monotonic()
        finding = search(program)
        for folder in (self.tree, self.work / "objects"):
            shutil.rmtree(folder)
        return (f"{finding} ({made - start:.1f} s to make it, {time.monotonic() - made:.1f} s to run)"
                .replace(str(self.tree) + "/", ""))


def check(planted, search):
    """Finds all of the bugs; prints how. The number of those that were missed."""
    missed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = {bug: pool.submit(bug.find, lambda program, bug=bug: search(bug, program)) for bug in planted}
        for bug, future in futures.items():
            try:
                print(f"{bug.name}: {future.result()}", flush=True)
            except Failed as failure:
                missed += 1
                print(f"{bug.name}: FAILED: {failure}", flush=True)
    print(f"{len(planted) - missed} of {len(planted)} planted bugs found")
    return missed
