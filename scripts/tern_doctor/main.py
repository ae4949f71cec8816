"""Reports which of tern's transports run on this machine and on which device, what is missing, and the command that
fixes it; then tries each transport with a second of RPCs.

  tern-doctor                       every transport, on this machine
  tern-doctor --to HOST[:PORT]      the path to a tern server: ports, MTU, loss, round trip. On that host:
                                    tern-latency --role=server --transport=udp --server=0.0.0.0:31850

It changes no setting, needs neither root nor a build tree, and reports which facts it could not read.
Exit code: 0 a transport runs; with --to: the server answers or, if tern's programs are missing, no obstacle was found;
1 no transport runs; 2 wrong usage.
"""
import argparse
import os
import sys
import types

from . import firewall, groups, machine, machine_rules, network, path, path_rules, proof, report, rules
from . import transport_rules, transports
from .look import Look

RUNS, MAY_RUN, STOPPED, NOT_BUILT = 'runs', 'may run', 'does not run', 'not built'


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(prog='tern-doctor', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--to', metavar='HOST[:PORT]',
                        help=f'try the path to a tern server; port {path.DEFAULT_PORT} by default')
    parser.add_argument('--transport', metavar='NAME,...', default='', help='only these; with --to: udp by default')
    parser.add_argument('--transport_options', metavar='NAME=VALUE,...', default='',
                        help='for the trials, as tern\'s programs take them; with a single --transport')
    parser.add_argument('--server_transport_options', metavar='NAME=VALUE,...', default='',
                        help='options that differ for the server\'s end')
    parser.add_argument('--port', type=int,
                        help=f'the port of a server here, for the firewall\'s rules; default {path.DEFAULT_PORT}')
    parser.add_argument('--seconds', type=float, default=1, help='length of each trial; default 1')
    parser.add_argument('--no-trials', action='store_true', help='look and judge, start nothing but --list_transports')
    parser.add_argument('--build-dir', metavar='DIR',
                        help='the build whose programs are tried; default: build/release beside this script, else '
                             'tern-latency as it is installed')
    parser.add_argument('--json', action='store_true', help='one JSON object, with all facts')
    parser.add_argument('--root', default='/', metavar='DIR',
                        help='read a copy of /proc, /sys and so on under DIR; implies --no-trials')
    options = parser.parse_args(arguments)
    try:
        options.to = path.parse_host(options.to) if options.to is not None else None
    except ValueError as error:
        parser.error(str(error))
    if not 0 < options.seconds <= 3600:
        parser.error('--seconds must be more than 0 and at most 3600')
    if not os.path.isdir(options.root):
        parser.error(f'--root={options.root} is not a directory')
    refuse_ignored(parser, options)
    if options.build_dir and not os.path.isdir(options.build_dir):
        parser.error(f'--build-dir={options.build_dir} is not a directory')
    options.port = path.DEFAULT_PORT if options.port is None else options.port
    if not 0 < options.port < 65536:
        parser.error('--port must be 1 to 65535')
    options.transport = [name for name in options.transport.split(',') if name]
    for name in ('transport_options', 'server_transport_options'):
        if getattr(options, name) and len(options.transport) != 1:
            parser.error(f'--{name} works only with a single --transport')
    return parser, options


def refuse_ignored(parser, options):
    """Reports two options of which one would have no effect."""
    is_copy = os.path.realpath(options.root) != '/'
    without_trials = '--no-trials' if options.no_trials else '--root' if is_copy else None
    for name, value, other in (('--to', options.to, '--root' if is_copy else None),
                               ('--build-dir', options.build_dir, '--root' if is_copy else None),
                               ('--port', options.port is not None, '--to=HOST:PORT' if options.to else None),
                               ('--server_transport_options', options.server_transport_options,
                                '--to' if options.to else without_trials),
                               ('--transport_options', options.transport_options, without_trials)):
        if value and other:
            parser.error(f'{name} does not work with {other}')


def look_at(look, options, here):
    """All facts except those of trials and of the path."""
    if look.is_live:
        build = transports.installation(options.build_dir, here)
        build['capabilities'] = machine.capabilities_of_file(build['program']) if build['program'] else []
    else:  # another machine's files give no information about the build here
        build = {'program': None, 'problem': '', 'built': None, 'needs': {}, 'refused': {}, 'capabilities': []}
    return {**machine.facts_of(look, transports.DEBIAN_PACKAGES), **network.facts_of(look), 'build': build,
            'firewall': firewall.facts_of(look), 'ports': [options.to[1] if options.to else options.port]}


def try_all(look, names, facts, options):
    """The results of trials by transport. Adds the placement of CPUs and the stolen time to the facts."""
    build, found = facts['build'], {}
    before = machine.cpu_ticks(look)
    for name in names:
        if name in (build['built'] or ()):
            report.show_progress(f'{options.seconds:g} s of RPCs over {name}')
            found[name] = proof.prove(build['program'], name, options.seconds, options.transport_options,
                                      options.server_transport_options)
    after = machine.cpu_ticks(look)
    if before and after and after[0] > before[0]:
        facts['steal_share'] = (after[1] - before[1]) / (after[0] - before[0])
    facts['placements_ns'] = [trip for one in found.values() for trip in one.get('placements_ns', ())]
    return found


def verdict_of(name, facts, findings, trial):
    """A verdict such as RUNS, and the remaining findings; a trial counts for more than the rules."""
    mine = [one for one in findings if one.about == name]
    built = facts['build']['built']
    if built is not None and name not in built:
        return NOT_BUILT, [one for one in mine if one.level == rules.STOP]
    if trial and trial['is_proven']:
        return RUNS, [one._replace(level=rules.HINT) for one in mine]
    is_stopped = any(one.level == rules.STOP for one in mine)
    if was_tried(trial) and not (is_stopped and name in facts['build']['refused']):  # which has the same message
        return STOPPED, [*mine, rules.Finding(name, rules.STOP, f'The trial failed: {trial["why"]}.', trial['command'])]
    return STOPPED if is_stopped else MAY_RUN, mine


def was_tried(trial):
    return bool(trial) and not trial.get('is_untried')


def main(arguments, here):
    groups.exit_on_signals()  # ends programs and removes namespaces
    try:
        return examine(arguments, here)
    except KeyboardInterrupt:
        report.show_progress('')
        print('tern-doctor: interrupted', file=sys.stderr)
        return 130


def examine(arguments, here):
    parser, options = parse_arguments(arguments)
    look = Look(options.root)
    report.show_progress('looking')
    facts = look_at(look, options, here)
    build = facts['build']
    known = transports.known_transports(build)
    unknown = sorted(set(options.transport) - {one.name for one in known})
    if unknown:
        report.show_progress('')
        parser.error(f'--transport={unknown[0]} is unknown; choose from: {", ".join(one.name for one in known)}')
    names = [one.name for one in known if one.name in (options.transport or [one.name])]
    can_try = look.is_live and not options.no_trials and bool(build['program']) and not build['problem']
    if look.is_live and not build['program']:
        look.note_unseen('whether RPCs pass: tern\'s programs are neither built nor installed here (--build-dir DIR '
                         'names a build)')

    # With --to, path.py makes the trials.
    trials = try_all(look, names, facts, options) if can_try and not options.to else {}
    way = None
    if options.to and look.is_live:
        report.show_progress(f'the path to {options.to[0]}')
        wanted = types.SimpleNamespace(program=build['program'] if can_try else None, seconds=options.seconds,
                                       transports=options.transport or ['udp'],
                                       transport_options=options.transport_options)
        way = path.facts_of(look, facts, *options.to, wanted)
    findings = rules.judge(facts)
    path_findings = path_rules.judge(way, facts) if way else []
    results = []
    for one in known:
        if one.name in names:
            verdict, mine = verdict_of(one.name, facts, findings, trials.get(one.name))
            results.append({'name': one.name, 'what': one.what, 'verdict': verdict,
                            'devices': transport_rules.devices(facts, one.name),
                            'trial': trials.get(one.name), 'findings': [finding._asdict() for finding in mine]})
    if way:
        runs = not any(one.level == rules.STOP for one in path_findings)
    elif any(was_tried(trial) for trial in trials.values()):
        runs = any(result['verdict'] == RUNS for result in results)
    else:
        runs = any(result['verdict'] == MAY_RUN for result in results)
    report.show_progress('')
    report.show({'runs': runs, 'transports': results,
                 'machine_in_words': machine_rules.describe(facts),
                 'machine': [one._asdict() for one in findings if one.about == 'machine'],
                 'path': way and {**way, 'findings': [one._asdict() for one in path_findings]},
                 'unseen': look.unseen, 'facts': facts}, options.json)
    return 0 if runs else 1


if __name__ == '__main__':
    sys.exit('run scripts/doctor, or tern-doctor')
