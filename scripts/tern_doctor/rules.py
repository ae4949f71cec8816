"""The table of rules, which turn facts into findings. A finding is one sentence and the one command that fixes the
problem. The rules are in transport_rules.py and machine_rules.py; they use facts, and do not access the machine.
"""
import collections
import shlex

STOP, HINT = 'stop', 'hint'  # the transport cannot run; it runs, but less well, or less far, than it could

# about    a transport's name, or 'machine'
# command  fixes the problem, in a shell; the reader must replace PROGRAM, ADDRESS and other words in capitals
Finding = collections.namedtuple('Finding', 'about level text command')

RULES = []  # (about, function of facts that yields (level, text, command))


def rule(*abouts):
    def add(function):
        RULES.extend((about, function) for about in abouts)
        return function
    return add


def judge(facts):
    """Findings in the order of the table. tern's own result counts for more than a rule: if tern has opened an endpoint
    over a transport, no rule stops it. If a rule knows the reason of a failure, tern's message is left out.
    """
    build = facts['build']
    findings = []
    for about, function in RULES:
        findings += [Finding(about, *result) for result in function({**facts, 'about': about})]
    opened = set(build['built'] or ()) - set(build['refused']) if build['program'] and not build['problem'] else set()
    findings = [one._replace(level=HINT) if one.about in opened else one for one in findings]
    explained = {one.about for one in findings if one.level == STOP}
    for name in sorted(set(build['refused']) - explained - {'dpdk'}):  # dpdk has no device until the user names one
        sentence, colon, remedy = build['refused'][name].partition(': ')
        findings.append(Finding(name, STOP, f'tern says: {sentence}.',
                                remedy if colon else shlex.join([build['program'], '--list_transports'])))
    return findings


# --- Facts that rules use --------------------------------------------------------------------------------------------

def may(facts, capability):
    return capability in facts['user']['capabilities'] or capability in facts['build'].get('capabilities', ())


def usable_interfaces(facts):
    """The interfaces that lead to other hosts."""
    return [one for one in facts['interfaces'] if one['is_up'] and one['addresses'] and not one['is_loopback']]


def in_bytes(count):
    """A size in the usual form: 64 kB, 8 MB."""
    return f'{count >> 20} MB' if count >= 1 << 20 and count % (1 << 20) == 0 else f'{count / 1024:.0f} kB'
