"""The verdict of this host's firewall on a UDP packet that begins a conversation. If a rule is not understood, the
answer is UNKNOWN; the code never guesses.
"""
import json
import re

ACCEPT, DROP, UNKNOWN = 'accept', 'drop', 'unknown'


def facts_of(look):
    """'nft': the ruleset as a list of objects; 'iptables': lines of the legacy iptables-save. None: it could not be
    read."""
    found = {'nft': None, 'iptables': None}
    done = look.run('nft', '--json', 'list', 'ruleset')
    if done and done[0] == 0:
        try:
            found['nft'] = [entry for entry in json.loads(done[1] or '{}').get('nftables', [])
                            if 'metainfo' not in entry]
        except ValueError:
            pass
    legacy = look.run('iptables-legacy-save')
    if legacy and legacy[0] == 0:
        found['iptables'] = legacy[1].splitlines()
    if look.is_live and found['nft'] is None and found['iptables'] is None:
        look.note_unseen('the rules of the firewall: nft list ruleset needs root' if done
                         else 'the rules of the firewall: nft (package nftables) is not installed')
    return found


# --- nftables --------------------------------------------------------------------------------------------------------

def is_in(value, right):
    """Whether a value matches an nft expression; None: the expression is not understood."""
    if isinstance(right, str) and right.startswith('@'):  # a named set, whose elements are not in this rule
        return None
    if isinstance(right, str) and right.endswith('*'):  # the beginning of an interface's name
        return str(value).startswith(right[:-1])
    if isinstance(right, (int, str)):
        return right == value
    if isinstance(right, list):
        right = {'set': right}
    if isinstance(right, dict) and 'range' in right and isinstance(value, int):
        low, high = right['range']
        return low <= value <= high if isinstance(low, int) and isinstance(high, int) else None
    if isinstance(right, dict) and isinstance(right.get('set'), list):
        answers = [is_in(value, one) for one in right['set']]
        return True if True in answers else None if None in answers else False
    return None


def matches(match, packet):
    """True, False, or None: not understood."""
    left, right = match.get('left'), match.get('right')
    answer = None
    if isinstance(left, dict) and 'payload' in left:
        protocol, field = left['payload'].get('protocol'), left['payload'].get('field')
        if protocol in ('tcp', 'icmp', 'icmpv6', 'sctp'):
            return False
        if protocol in ('udp', 'th') and field == 'dport':
            answer = is_in(packet['port'], right)
    elif isinstance(left, dict) and 'meta' in left:
        key = left['meta'].get('key')
        if key == 'l4proto':
            answer = is_in('udp', right)
        elif key == packet['interface_key'] and packet['interface']:
            answer = is_in(packet['interface'], right)
        elif key in ('iifname', 'oifname', 'iif', 'oif') and right == 'lo':
            answer = False  # the other host's address is not one of this host
    elif isinstance(left, dict) and left.get('ct', {}).get('key') == 'state':
        answer = is_in('new', right)
    if answer is not None and match.get('op') == '!=':
        return not answer
    return answer if match.get('op') in ('==', 'in', '!=') else None


# Statements that leave the packet to the next statement, always or for some packets.
PASSING = ('continue', 'counter', 'ct helper', 'dup', 'log', 'mangle', 'notrack', 'set')
LIMITING = ('ct count', 'limit', 'quota')
RETURN = 'return'


def verdict_of_map(value, chain, chains, packet, depth):
    """The verdict of the first element that matches the packet's key; None: no element matches."""
    data = value.get('data')
    if not isinstance(data, dict) or not isinstance(data.get('set'), list):  # a named map
        return UNKNOWN
    for key, statement in data['set']:
        answer = matches({'op': '==', 'left': value.get('key'), 'right': key}, packet)
        if answer is not False:
            return verdict_of(statement, chain, chains, packet, depth) if answer else UNKNOWN
    return None


def verdict_of(statement, chain, chains, packet, depth):
    """ACCEPT, DROP, UNKNOWN, RETURN to the calling chain; None: the next statement decides."""
    kind, value = next(iter(statement.items()), ('continue', None))
    if kind in PASSING:
        return None
    if kind == 'accept':
        return ACCEPT
    if kind in ('drop', 'reject'):
        return DROP
    if kind == 'return':
        return RETURN
    if kind in ('jump', 'goto'):
        target = (chain[0], chain[1], value.get('target'))
        verdict = verdict_of_rules(target, chains, packet, depth + 1) if depth < 16 else None
        return verdict or (RETURN if kind == 'goto' else None)
    return verdict_of_map(value, chain, chains, packet, depth) if kind == 'vmap' else UNKNOWN


def verdict_of_rules(chain, chains, packet, depth=0):
    """The verdict of a chain's rules; None: no rule gives one. If a rule that is not understood could decide, the
    verdict is UNKNOWN."""
    is_uncertain = False
    for rule in chains.get(chain, {}).get('rules', ()):
        is_sure = True
        for statement in rule:
            if 'match' in statement:
                answer = matches(statement['match'], packet)
                if answer is False:
                    break
                is_sure = is_sure and answer is True
                continue
            if any(kind in statement for kind in LIMITING):
                is_sure = False
                continue
            verdict = verdict_of(statement, chain, chains, packet, depth)
            if verdict and is_sure:
                return UNKNOWN if is_uncertain else None if verdict == RETURN else verdict
            if verdict:
                is_uncertain = True
                break
    return UNKNOWN if is_uncertain else None


def nft_verdict(ruleset, hook, port, interface=None, family='ip'):
    """(ACCEPT, DROP or UNKNOWN, the 'family table chain' that decides or ''). Every base chain of the hook must
    accept."""
    chains = {}
    for entry in ruleset:
        if 'chain' in entry:
            chain = entry['chain']
            chains[chain['family'], chain['table'], chain['name']] = {**chain, 'rules': []}
    for entry in ruleset:
        if 'rule' in entry:
            rule = entry['rule']
            chains.get((rule['family'], rule['table'], rule['chain']),
                       {'rules': []})['rules'].append(rule.get('expr', []))
    packet = {'port': port, 'interface': interface, 'interface_key': 'iifname' if hook == 'input' else 'oifname'}
    found = (ACCEPT, '')
    for name, chain in chains.items():
        if chain.get('hook') != hook or chain.get('type', 'filter') != 'filter' or name[0] not in ('inet', family):
            continue
        verdict = verdict_of_rules(name, chains, packet) or (DROP if chain.get('policy') == 'drop' else ACCEPT)
        if verdict == DROP:
            return DROP, ' '.join(name)
        if verdict == UNKNOWN:
            found = UNKNOWN, ' '.join(name)
    return found


# --- iptables --------------------------------------------------------------------------------------------------------

def verdict_of_table(lines, chain, port):
    """The verdict of one table's chain. A rule is understood if it has no negation and names only protocol, ports,
    state and target."""
    policy, is_uncertain = None, False
    for line in lines:
        head = re.match(rf':{chain} (\w+)', line)
        if head:
            policy = head.group(1)
        target = re.search(r' -[jg] (\S+)', line)
        if not line.startswith(f'-A {chain} ') or not target or target.group(1) in ('LOG', 'NFLOG'):
            continue
        is_negated = ' ! ' in line
        ports = re.search(r' --dports? (\S+)', line)
        protocol = re.search(r' -p (\w+)', line)
        state = re.search(r' --(?:ct)?state (\S+)', line)
        if not is_negated:
            if protocol and protocol.group(1) not in ('udp', 'all'):
                continue
            if state and 'NEW' not in state.group(1).split(','):
                continue
            if ports and not any(int(low) <= port <= int(high or low)
                                 for low, high in re.findall(r'(\d+)(?::(\d+))?', ports.group(1))):
                continue
            if ' -i lo ' in line or ' -o lo ' in line:
                continue
        rest = re.sub(r' -j \S+.*| -m \S+| --dports? \S+| -p \w+| --(ct)?state \S+|^-A \w+', '', line)
        if is_negated or rest.strip() or target.group(1) not in ('ACCEPT', 'DROP', 'REJECT'):
            is_uncertain = True
        elif is_uncertain:
            return UNKNOWN
        else:
            return ACCEPT if target.group(1) == 'ACCEPT' else DROP
    return UNKNOWN if is_uncertain else DROP if policy == 'DROP' else ACCEPT


def iptables_verdict(lines, hook, port):
    """The verdict of iptables-save. Every table that has the chain must accept; nat only changes addresses."""
    chain, table, tables = hook.upper(), '', {}
    for line in lines:
        if line.startswith('*'):
            table = line[1:].strip()
        tables.setdefault(table, []).append(line)
    verdicts = [verdict_of_table(of_table, chain, port) for name, of_table in tables.items() if name != 'nat']
    return next(one for one in (DROP, UNKNOWN, ACCEPT) if one in [*verdicts, ACCEPT]), chain
