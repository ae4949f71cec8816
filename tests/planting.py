"""Plants bugs in copies of the tree and makes a program that has them.

The objects of the program that depend on a patched file are compiled again, with the commands of the original build, and
linked with the build's other objects. A patch of a header may have a line "Compiles: SOURCE..." with the sources that use the
changed part: only these sources are compiled again, and the other dependent objects are used as they are. A patch of a bug
that late seeds find may have a line "Seed: N": the seeds from N on run before those below.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
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
    """The commands by which a build folder has made tests/PROGRAM, from `folders` of the tree and the named CMake targets."""

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
        """The objects that depend on the changed files. If `sources` is not empty, only the objects of these sources."""
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
        # --fuzz=0, so that a patch of changed code fails instead of planting another bug.
        out = run(["patch", "-p1", "--fuzz=0", "--no-backup-if-mismatch", "-i", str(self.patch)], cwd=self.tree)
        return re.findall(r"^patching file '?([^'\n]+?)'?$", out, re.MULTILINE)

    def words(self, key):
        """The words of the patch's line "KEY: WORD..."; none if it has no such line."""
        line = re.search(rf"^{key}: (.*)$", self.patch.read_text(), re.MULTILINE)
        return line.group(1).split() if line else []

    def compile(self, name):
        output = self.work / "objects" / name
        output.parent.mkdir(parents=True, exist_ok=True)
        arguments = []
        for argument in self.build.commands[name]:
            for folder in ("apps", "include", "src", "tests"):
                argument = re.sub(rf"^(-I)?{re.escape(str(ROOT / folder))}(?=/|$)", rf"\1{self.tree / folder}", argument)
            arguments.append(argument)
        arguments[arguments.index("-o") + 1] = str(output)
        run(arguments, cwd=self.build.folder)
        return output

    def make(self):
        link, extra = self.build.link, []
        for name in self.build.objects_of(self.copy(), self.words("Compiles")):
            output = str(self.compile(name))
            if f" {name} " in link:
                link = link.replace(f" {name} ", f" {output} ")
            else:  # an object of a library: it must come before the library
                extra.append(output)
        program = self.work / self.build.program
        run(link.replace(self.build.output, f"{' '.join(extra)} -o {program} "), cwd=self.build.folder, shell=True)
        return program

    def find(self, search):
        """`search(program)` returns how the bug was found, or raises Failed."""
        start = time.monotonic()
        program = self.make()
        made = time.monotonic()
        finding = search(program)
        for folder in (self.tree, self.work / "objects"):
            shutil.rmtree(folder)
        return (f"{finding} ({made - start:.1f} s to make it, {time.monotonic() - made:.1f} s to run)"
                .replace(str(self.tree) + "/", ""))


def check(planted, search):
    """Searches for all of the bugs and prints how each was found. Returns the number of missed bugs.

    As many at a time as the machine has CPUs, or as CMAKE_BUILD_PARALLEL_LEVEL says.
    """
    missed = 0
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", os.cpu_count()))) as pool:
        futures = {bug: pool.submit(bug.find, lambda program, bug=bug: search(bug, program)) for bug in planted}
        for bug, future in futures.items():
            try:
                print(f"{bug.name}: {future.result()}", flush=True)
            except Failed as failure:
                missed += 1
                print(f"{bug.name}: FAILED: {failure}", flush=True)
    print(f"{len(planted) - missed} of {len(planted)} planted bugs found")
    return missed


def check_by_seeds(here, program, targets, folders):
    """The main function of HERE/check BUILD_DIR SEEDS [PATCH...]: a seed from 1 to SEEDS must find each bug."""
    if len(sys.argv) < 3:
        sys.exit(f"usage: {sys.argv[0]} BUILD_DIR SEEDS [PATCH...]")
    build, seeds = Build(sys.argv[1], program, targets, folders), int(sys.argv[2])
    patches = sorted(here.glob("*.patch"))
    if sys.argv[3:]:
        patches = [here / f"{name.removesuffix('.patch')}.patch" for name in sys.argv[3:]]

    def search(bug, planted):
        hint = bug.words("Seed")
        first = int((hint or [1])[0])
        for part in (f"{first}-{seeds}", f"1-{first - 1}"):
            done = subprocess.run([str(planted), f"--seeds={part}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, errors="replace")
            if done.returncode != 0 or first == 1:
                break
        if done.returncode == 0:
            raise Failed(f"not found by seeds 1 to {seeds}")
        seed = re.search(r"--seed=(\d+)", done.stderr)
        finding = re.search(r"^(BROKEN.*|.*CHECK failed.*|.*ERROR: .*|.*runtime error.*)$", done.stderr, re.MULTILINE)
        if seed is None or finding is None:
            raise Failed(f"ended with {done.returncode}, and not by an oracle's finding:\n{done.stderr}")
        if "was not decided" in finding.group(1):
            raise Failed(f"the checker gave up at seed {seed.group(1)}, which says nothing")
        stale = ", and the hint is stale" if hint and int(seed.group(1)) != first else ""
        return f"found by seed {seed.group(1)}{stale}: {finding.group(1)}"

    sys.exit(1 if check([Planted(build, patch) for patch in patches], search) else 0)
