"""The table of rules: facts in, findings out. A finding is one sentence and the one command that mends it. Rules are in
transport_rules.py and machine_rules.py; they look at facts, and not at the machine.
"""
import collections

STOP, HINT = 'stop', 'hint'  # the transport cannot run; it runs, but less well, or less far, than it could

# about    a transport's name, or 'machine'
# command  mends it, in a shell; PROGRAM, ADDRESS and other words in capitals are the reader's
Finding = collections.namedtuple('Finding', 'about level text command')

RULES = []  # (about, function of facts that yields (level, text, command))


def rule(*abouts):
    def add(function):
        RULES.extend((about, function) for about in abouts)
        return function
    return add


def judge(facts):
    """Findings in the order of the table. tern's own word counts for more than a rule's: what it has opened an endpoint
    over is not stopped by what we have seen, or not seen; and where a rule knows why, what tern says adds nothing.
    """
    build = facts['build']
    findings = []
    for about, function in RULES:
        findings += [Finding(about, *result) for result in function({**facts, 'about': about})]
    opened = set(build['built'] or ()) - set(build['refused']) if build['program'] and not build['problem'] else set()
    findings = [one._replace(level=HINT) if one.about in opened else one for one in findings]
    explained = {one.about for one in findings if one.level == STOP}
    for name in sorted(set(build['refused']) - explained - {'dpdk'}):  # which has no device until one is named
        sentence, colon, remedy = build['refused'][name].partition(': ')
        findings.append(Finding(name, STOP, f'tern says: {sentence}.',
                                remedy if colon else f'{build["program"]} --list_transports'))
    return findings


# --- What rules ask --------------------------------------------------------------------------------------------------

def may(facts, capability):
    return capability in facts['user']['capabilities'] or capability in facts['build'].get('capabilities', ())


def usable_interfaces(facts):
    """Those that lead to other hosts."""
    return [one for one in facts['interfaces'] if one['is_up'] and one['addresses'] and not one['is_loopback']]


def in_bytes(count):
    """As people say it: 64 kB, 8 MB."""
    return f'{count >> 20} MB' if count >= 1 << 20 and count % (1 << 20) == 0 else f'{count / 1024:.0f} kB'
