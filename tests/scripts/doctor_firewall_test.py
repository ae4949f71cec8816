#!/usr/bin/env python3
"""Tests of what scripts/doctor makes of a firewall's rules."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'scripts'))
sys.dont_write_bytecode = True
from tern_doctor import firewall  # noqa: E402


def nft(*expressions, policy='accept', more=(), hook='input'):
    """A ruleset as nft --json prints it: one base chain with these rules."""
    return [{'table': {'family': 'inet', 'name': 'filter'}},
            {'chain': {'family': 'inet', 'table': 'filter', 'name': hook, 'type': 'filter', 'hook': hook,
                       'policy': policy}},
            *({'chain': {'family': 'inet', 'table': 'filter', 'name': name}} for name, _ in more),
            *({'rule': {'family': 'inet', 'table': 'filter', 'chain': hook, 'expr': one}} for one in expressions),
            *({'rule': {'family': 'inet', 'table': 'filter', 'chain': name, 'expr': one}} for name,
              rules_of in more for one in rules_of)]


def dport(right, op='=='):
    return {'match': {'op': op, 'left': {'payload': {'protocol': 'udp', 'field': 'dport'}}, 'right': right}}


STATE = {'match': {'op': 'in', 'left': {'ct': {'key': 'state'}}, 'right': ['established', 'related']}}
SOURCE = {'match': {'op': '==', 'left': {'payload': {'protocol': 'ip', 'field': 'saddr'}}, 'right': '10.0.0.1'}}
LOOPBACK = {'match': {'op': '==', 'left': {'meta': {'key': 'iifname'}}, 'right': 'lo'}}
TAKE, DROP = {'accept': None}, {'drop': None}


class Firewalls(unittest.TestCase):
    def verdict(self, ruleset, port=31850):
        return firewall.nft_verdict(ruleset, 'input', port, 'ens3')[0]

    def test_policies(self):
        self.assertEqual(self.verdict([]), 'accept')
        self.assertEqual(self.verdict(nft()), 'accept')
        self.assertEqual(self.verdict(nft(policy='drop')), 'drop')
        self.assertEqual(self.verdict(nft([STATE, TAKE], [LOOPBACK, TAKE], policy='drop')), 'drop')
        self.assertEqual(self.verdict(nft(policy='drop', hook='output')), 'accept')
        self.assertEqual(firewall.nft_verdict(nft(policy='drop'), 'input', 1)[1], 'inet filter input')

    def test_ports(self):
        for right in (31850, {'set': [22, 31850]}, {'range': [31000, 32000]}, {'set': [{'range': [31850, 31851]}]}):
            self.assertEqual(self.verdict(nft([dport(right), TAKE], policy='drop')), 'accept')
            self.assertEqual(self.verdict(nft([dport(right), DROP])), 'drop')
            self.assertEqual(self.verdict(nft([dport(right), DROP]), 53), 'accept')
        self.assertEqual(self.verdict(nft([dport(31850, '!='), DROP])), 'accept')
        self.assertEqual(self.verdict(nft([dport(53), {'counter': {}}, DROP],
                                          [dport(31850), {'counter': {}}, {'reject': None}])), 'drop')

    def test_what_is_not_understood_is_not_guessed(self):
        self.assertEqual(self.verdict(nft([SOURCE, TAKE], policy='drop')), 'unknown')
        self.assertEqual(self.verdict(nft([SOURCE, DROP])), 'unknown')
        self.assertEqual(self.verdict(nft([SOURCE, {'counter': {}}])), 'accept')
        self.assertEqual(self.verdict(nft([{'xt': {}}, TAKE], policy='drop')), 'unknown')
        self.assertEqual(self.verdict(nft([dport('@ports'), TAKE], policy='drop')), 'unknown')

    def test_jumps(self):
        more = [('ports', [[dport(31850), TAKE]])]
        self.assertEqual(self.verdict(nft([{'jump': {'target': 'ports'}}], policy='drop', more=more)), 'accept')
        self.assertEqual(self.verdict(nft([{'jump': {'target': 'ports'}}], policy='drop', more=more), 53), 'drop')
        loop = [('ports', [[{'jump': {'target': 'ports'}}]])]
        self.assertEqual(self.verdict(nft([{'jump': {'target': 'ports'}}], more=loop)), 'accept')

    def test_verdict_maps(self):
        def vmap(key, *pairs):
            return {'vmap': {'key': key, 'data': {'set': [list(pair) for pair in pairs]}}}
        port = {'payload': {'protocol': 'udp', 'field': 'dport'}}
        state = vmap({'ct': {'key': 'state'}}, ('invalid', DROP), ('established', TAKE), ('related', TAKE))
        self.assertEqual(self.verdict(nft([state])), 'accept')
        self.assertEqual(self.verdict(nft([state], policy='drop')), 'drop')
        self.assertEqual(self.verdict(nft([vmap(port, (31850, DROP))])), 'drop')
        self.assertEqual(self.verdict(nft([vmap(port, (53, DROP), ({'range': [31850, 31851]}, TAKE))], policy='drop')),
                         'accept')
        more = [('ports', [[dport(31850), DROP]])]
        self.assertEqual(self.verdict(nft([vmap(port, (31850, {'jump': {'target': 'ports'}}))], more=more)), 'drop')
        source = {'payload': {'protocol': 'ip', 'field': 'saddr'}}
        self.assertEqual(self.verdict(nft([vmap(source, ('10.0.0.1', DROP))])), 'unknown')
        self.assertEqual(self.verdict(nft([{'vmap': {'key': port, 'data': '@verdicts'}}])), 'unknown')

    def test_statements_that_may_end_the_matter(self):
        self.assertEqual(self.verdict(nft([{'xt': {'type': 'target', 'name': 'REJECT'}}])), 'unknown')
        self.assertEqual(self.verdict(nft([dport(31850), {'queue': {'num': 1}}])), 'unknown')
        self.assertEqual(self.verdict(nft([dport(53), {'queue': {'num': 1}}])), 'accept')
        self.assertEqual(self.verdict(nft([{'limit': {}}, {'log': None}])), 'accept')
        self.assertEqual(self.verdict(nft([{'limit': {}}, DROP])), 'unknown')

    def test_interfaces(self):
        def iifname(right, op='=='):
            return {'match': {'op': op, 'left': {'meta': {'key': 'iifname'}}, 'right': right}}
        for right in ('ens3', 'ens*', {'set': ['eth*', 'ens*']}):
            self.assertEqual(self.verdict(nft([iifname(right), DROP])), 'drop')
            self.assertEqual(self.verdict(nft([iifname(right, '!='), DROP])), 'accept')
        self.assertEqual(self.verdict(nft([iifname('eth*'), DROP])), 'accept')

    def test_ways_back_to_the_calling_chain(self):
        def verdict(*rules_of_chain, kind='jump'):
            return self.verdict(nft([{kind: {'target': 'chain'}}], [DROP], more=[('chain', rules_of_chain)]))
        self.assertEqual(verdict([dport(53), TAKE]), 'drop')
        self.assertEqual(verdict([dport(53), TAKE], kind='goto'), 'accept')
        self.assertEqual(verdict([{'return': None}], [TAKE]), 'drop')
        self.assertEqual(verdict([SOURCE, {'return': None}], [TAKE]), 'unknown')

    def test_iptables(self):
        def verdict(*lines, policy='DROP', port=31850):
            return firewall.iptables_verdict(['*filter', f':INPUT {policy} [0:0]', ':FORWARD DROP [0:0]', *lines,
                                              'COMMIT'], 'input', port)[0]
        self.assertEqual(verdict(), 'drop')
        self.assertEqual(verdict(policy='ACCEPT'), 'accept')
        self.assertEqual(verdict('-A INPUT -i lo -j ACCEPT', '-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT'), 'drop')
        self.assertEqual(verdict('-A INPUT -p udp -m udp --dport 31850 -j ACCEPT'), 'accept')
        self.assertEqual(verdict('-A INPUT -p udp -m multiport --dports 53,31000:32000 -j ACCEPT'), 'accept')
        self.assertEqual(verdict('-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT'), 'drop')
        self.assertEqual(verdict('-A INPUT -p udp -m udp --dport 31850 -j REJECT --reject-with icmp-port-unreachable',
                                 policy='ACCEPT'), 'drop')
        self.assertEqual(verdict('-A INPUT -s 10.0.0.0/8 -p udp -j ACCEPT'), 'unknown')
        self.assertEqual(verdict('-A INPUT -j ufw-before-input'), 'unknown')
        self.assertEqual(verdict('-A INPUT -p udp -m udp --dport 31850 -j LOG'), 'drop')
        self.assertEqual(verdict('-A INPUT ! -i lo -j DROP', policy='ACCEPT'), 'unknown')
        self.assertEqual(verdict('-A INPUT -p udp -m udp ! --dport 53 -j DROP', policy='ACCEPT'), 'unknown')
        self.assertEqual(verdict('-A INPUT -m conntrack ! --ctstate ESTABLISHED -j DROP', policy='ACCEPT'), 'unknown')
        self.assertEqual(verdict('-A INPUT -j DROP-strangers', policy='ACCEPT'), 'unknown')
        self.assertEqual(verdict('-A INPUT -g strangers', policy='ACCEPT'), 'unknown')

    def test_iptables_has_several_tables(self):
        def table(name, policy, *lines):
            return [f'*{name}', f':INPUT {policy} [0:0]', *lines, 'COMMIT']
        lines = table('nat', 'ACCEPT') + table('mangle', 'ACCEPT', '-A INPUT -j ACCEPT') + table('filter', 'DROP')
        self.assertEqual(firewall.iptables_verdict(lines, 'input', 31850), ('drop', 'INPUT'))
        lines = table('filter', 'ACCEPT', '-A INPUT -j ACCEPT') + table('mangle', 'ACCEPT', '-A INPUT -j DROP')
        self.assertEqual(firewall.iptables_verdict(lines, 'input', 31850), ('drop', 'INPUT'))
        self.assertEqual(firewall.iptables_verdict(table('nat', 'DROP'), 'input', 31850)[0], 'accept')


if __name__ == '__main__':
    unittest.main()
