package doctor

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit"
)

var podRanges = []netip.Prefix{netip.MustParsePrefix("10.85.0.0/16"), netip.MustParsePrefix("fd85::/64")}

// nodeWith is what is asked of firewalls of a node with this pod's link and uplink.
func nodeWith(ranges ...netip.Prefix) firewalled {
	group := uint32(0x40000001)
	return firewalled{
		ranges: ranges, own: "ours", pod: side{name: "cor0123456789ab", group: &group},
		uplink: side{name: "eth0", index: 2, group: new(uint32)},
	}
}

// nft has the rules of a chain of the hook forward.
func forwardChain(policy string, rules ...string) string {
	return "chain f { type filter hook forward priority filter; policy " + policy + "; " + strings.Join(append(rules, "};"), "; ")
}

// Rules as these programs make them, in the kernel: those that drop what pods send are found, and
// those that let it pass are not.
func TestReadFirewalls(t *testing.T) {
	const (
		replies = "ct state established,related accept"
		both    = "ip saddr 10.85.0.0/16 accept; ip6 saddr fd85::/64 accept"
	)
	mine := []Firewall{{Table: "inet mine", Chain: "f"}}
	docker := []Firewall{{Manager: "docker", Table: "ip filter", Chain: "FORWARD"}}
	for name, tc := range map[string]struct {
		nft  string   // rules of table inet mine, unless it says another table
		run  []string // commands
		want []Firewall
	}{
		"none": {},
		"ours": {nft: "table inet coracle0 { " + forwardChain("drop") + " }\ntable inet ours { " +
			forwardChain("drop") + " }"},
		"one that accepts": {nft: forwardChain("accept") +
			" chain out { type filter hook output priority filter; policy drop; };"},
		"policy drop": {nft: forwardChain("drop"), want: mine},
		"policy drop, of another priority": {
			nft: "chain f { type filter hook forward priority 200; policy drop; }; chain g { type filter hook forward priority -200; policy " +
				"accept; accept; };", want: mine,
		},
		"policy drop of a bridge":            {nft: "table bridge mine { " + forwardChain("drop") + " }"},
		"a last rule that rejects":           {nft: forwardChain("accept", replies, "reject"), want: mine},
		"a last rule that drops":             {nft: forwardChain("accept", replies, "counter drop"), want: mine},
		"accepts by range":                   {nft: forwardChain("drop", replies, both)},
		"accepts by range, replies are lost": {nft: forwardChain("drop", both), want: mine},
		"accepts one family":                 {nft: forwardChain("drop", replies, "ip saddr 10.85.0.0/16 accept"), want: mine},
		"accepts a larger range":             {nft: forwardChain("drop", replies, "ip saddr 10.0.0.0/8 accept; ip6 saddr fd00::/8 accept")},
		"accepts another range": {
			nft:  forwardChain("drop", replies, "ip saddr 10.86.0.0/16 accept; ip6 saddr fd85::/64 accept"),
			want: mine,
		},
		"accepts by the links' name":  {nft: forwardChain("drop", replies, `iifname "cor*" accept`)},
		"accepts by the links' group": {nft: forwardChain("drop", replies, "meta iifgroup & 0xc0000000 == 0x40000000 accept")},
		// pods do not reach each other
		"accepts by the uplink":      {nft: forwardChain("drop", replies, `oifname "eth0" accept`), want: mine},
		"accepts all but the uplink": {nft: forwardChain("drop", replies, `iifname != "eth0" accept`)},
		"accepts by a set": {
			nft: "set pods { type ipv4_addr; flags interval; elements = { 10.64.0.0/10, 192.168.0.0/16 }; }; " +
				forwardChain("drop", replies, "ip saddr @pods accept; ip6 saddr { fd84::/64, fd85::/64 } accept"),
		},
		"drops by a set": {nft: "set bad { type ipv4_addr; flags interval; elements = { 203.0.113.0/24 }; }; " +
			forwardChain("accept", "ip saddr @bad drop")},
		"drops pods by a set": {nft: "set bad { type ipv4_addr; flags interval; elements = { 10.85.0.0-10.85.0.255 }; }; " +
			forwardChain("accept", "ip saddr @bad drop"), want: mine},
		"names the range to drop it": {
			nft:  forwardChain("drop", replies, "ip saddr 10.85.0.0/16 drop; ip6 saddr fd85::/64 drop"),
			want: mine,
		},
		"names the range elsewhere": {
			nft: "chain post { type nat hook postrouting priority srcnat; ip saddr 10.85.0.0/16 masquerade; ip6 saddr fd85::/64 masquerade; }; " +
				forwardChain("drop", replies), want: mine,
		},
		"accepts in a chain":                 {nft: "chain pods { " + both + "; }; " + forwardChain("drop", replies, "jump pods")},
		"accepts after a chain that returns": {nft: "chain pods { return; drop; }; " + forwardChain("drop", replies, "jump pods", both)},
		"rejects in a chain":                 {nft: "chain no { reject; }; " + forwardChain("accept", replies, "goto no"), want: mine},
		"accepts by a map": {nft: "chain pods { accept; }; " +
			forwardChain("drop", replies, `iifname vmap { "eth0" : drop, "cor0123456789ab" : goto pods }`)},
		"drops by a map": {nft: forwardChain("accept",
			"ct state vmap { established : accept, related : accept, new : drop }"), want: mine},
		"accepts the rest by a map": {nft: forwardChain("drop", replies, `iifname vmap { "eth0" : drop, * : accept }`)},
		"drops the rest by a map":   {nft: forwardChain("accept", replies, `iifname vmap { "eth0" : accept, * : drop }`), want: mine},
		"a range, and the rest, by a map": {nft: forwardChain("accept", replies,
			"ip saddr vmap { 203.0.113.0/24 : drop, 10.85.0.0/16 : accept, * : drop }")},
		"drops the rest of ranges by a map": {
			nft:  forwardChain("accept", replies, "ip saddr vmap { 203.0.113.0/24 : accept, * : drop }"),
			want: mine,
		},
		"accepts a port by a map": {nft: forwardChain("drop", replies, "tcp dport vmap { 443 : accept, 25 : drop }"), want: mine},
		"accepts a range's port by a map": {nft: forwardChain("drop", replies,
			"ip saddr 10.85.0.0/16 tcp dport vmap { 443 : accept, 25 : drop }; ip6 saddr fd85::/64 tcp dport vmap { 443 : accept, 80-90 : accept }")},
		"drops a port by a map": {nft: forwardChain("accept", "tcp dport vmap { 25 : drop }")},
		"accepts by the state": {nft: forwardChain("drop",
			"ct state vmap { established : accept, related : accept, invalid : drop }", "ct state new accept")},
		"accepts a port": {nft: forwardChain("drop", replies, "tcp dport 443 accept"), want: mine},
		"accepts a port of the range": {nft: forwardChain("drop", replies,
			"ip saddr 10.85.0.0/16 tcp dport 443 accept; ip6 saddr fd85::/64 tcp dport 443 accept")},
		"drops what is not TCP": {nft: forwardChain("accept", "meta l4proto != { tcp, udp, icmp, icmpv6 } drop",
			"tcp flags & (fin|syn|rst|ack) == 0 drop", "ip frag-off & 0x1fff != 0 drop")},
		"drops what the kernel cannot track": {nft: forwardChain("accept", "ct state invalid drop", "fib saddr . iif oif missing drop")},
		"iptables, FORWARD": {
			run:  []string{"iptables-nft -P FORWARD DROP"},
			want: []Firewall{{Table: "ip filter", Chain: "FORWARD"}},
		},
		"iptables, a last rule": {
			run: []string{
				"iptables-nft -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
				"iptables-nft -A FORWARD -j REJECT --reject-with icmp-host-prohibited",
			},
			want: []Firewall{{Table: "ip filter", Chain: "FORWARD"}},
		},
		"iptables, let through": {run: []string{
			"iptables-nft -P FORWARD DROP", "iptables-nft -A FORWARD -m state --state RELATED,ESTABLISHED -j ACCEPT",
			"iptables-nft -A FORWARD -i cor+ -m comment --comment pods -j ACCEPT",
		}},
		"docker": {run: slices.Concat(dockers), want: docker},
		"docker, as doctor proposes": {run: slices.Concat(dockers, []string{
			"iptables-nft -I DOCKER-USER -s 10.85.0.0/16 -j ACCEPT", "iptables-nft -I DOCKER-USER -d 10.85.0.0/16 -j ACCEPT",
		})},
		"docker, with half of it": {run: slices.Concat(dockers, []string{"iptables-nft -I DOCKER-USER -d 10.85.0.0/16 -j ACCEPT"}), want: docker},
		"ufw, IPv6": {
			run: []string{
				"ip6tables-nft -N ufw6-before-forward", "ip6tables-nft -A FORWARD -j ufw6-before-forward",
				"ip6tables-nft -P FORWARD DROP",
			},
			want: []Firewall{{Manager: "ufw", Table: "ip6 filter", Chain: "FORWARD"}},
		},
		"firewalld": {nft: firewalld, want: []Firewall{{Manager: "firewalld", Table: "inet firewalld", Chain: "filter_FORWARD"}}},
		"firewalld, as doctor proposes": {nft: strings.ReplaceAll(firewalld, "# sources",
			"ip saddr 10.85.0.0/16 goto filter_FWD_trusted; ip6 saddr fd85::/64 goto filter_FWD_trusted; ")},
	} {
		t.Run(name, func(t *testing.T) {
			inNamespace(t, func(run func(stdin string, command ...string)) {
				if rules := tc.nft; rules != "" {
					if !strings.HasPrefix(rules, "table ") {
						rules = "table inet mine { " + rules + " }"
					}
					run(rules, "nft", "-f", "-")
				}
				for _, command := range tc.run {
					run("", strings.Fields(command)...)
				}
				found, _, err := readNFTables(nodeWith(podRanges...))
				if err != nil || !slices.Equal(found, tc.want) {
					t.Errorf("%+v, %v, want %+v", found, err, tc.want)
				}
				if name == "ufw, IPv6" { // pods without IPv6 do not meet it
					if found, _, err := readNFTables(nodeWith(podRanges[0])); err != nil || len(found) > 0 {
						t.Errorf("without IPv6: %+v, %v", found, err)
					}
				}
			})
		})
	}
}

// dockers are Docker's rules, shortened.
var dockers = []string{
	"iptables-nft -N DOCKER", "iptables-nft -N DOCKER-FORWARD", "iptables-nft -N DOCKER-USER", "iptables-nft -N DOCKER-CT",
	"iptables-nft -P FORWARD DROP",
	"iptables-nft -A FORWARD -j DOCKER-USER", "iptables-nft -A FORWARD -j DOCKER-FORWARD", "iptables-nft -A DOCKER-FORWARD -j DOCKER-CT",
	"iptables-nft -A DOCKER-FORWARD -i docker0 -j ACCEPT",
	"iptables-nft -A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
}

// firewalld is its table, shortened.
const firewalld = `table inet firewalld {
	chain filter_FORWARD { type filter hook forward priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		jump filter_FORWARD_ZONES
		reject with icmpx admin-prohibited
	}
	chain filter_FORWARD_ZONES { # sources
		iifname "eth0" goto filter_FWD_public
		goto filter_FWD_public
	}
	chain filter_FWD_public { jump filter_FWD_public_allow; reject with icmpx admin-prohibited; }
	chain filter_FWD_public_allow { oifname "eth0" ip daddr 203.0.113.0/24 accept; }
	chain filter_FWD_trusted { accept; }
}`

// inputChain has the rules of a chain of the hook input.
func inputChain(policy string, rules ...string) string {
	return strings.Replace(forwardChain(policy, rules...), "hook forward", "hook input", 1)
}

// served are tables of the cluster's API server and DNS, as cluster/nodeaddr makes them.
const served = `table inet coracle-addr-10.96.0.1 { }
table inet coracle-addr-10.96.0.1-443 {
	chain prerouting { type nat hook prerouting priority -110; ip daddr 10.96.0.1 tcp dport 443 dnat ip to 10.96.0.1:6443; }
}
table inet coracle-addr-10.96.0.10-53 {
	chain prerouting { type filter hook prerouting priority raw; ip daddr 10.96.0.10 goto arriving; }
	chain arriving { udp dport 53 udp dport set 334 notrack; tcp dport 53 tcp dport set 334 notrack; }
}
`

// What pods send to their node is followed through the hook input: a firewall there keeps them from
// the cluster's DNS and API server, which they reach at the node.
func TestReadFirewallsOfTheNode(t *testing.T) {
	const (
		api     = "the cluster's API server at port 6443 of 10.96.0.1"
		dns     = "the cluster's DNS at port 334 of 10.96.0.10"
		ports   = "ports of this node, such as the kubelet's and those of pods in its network"
		all     = api + ", " + dns + ", " + ports
		usual   = "iif lo accept; ct state established,related accept; ct state invalid drop; tcp dport 22 accept"
		both    = "ip saddr 10.85.0.0/16 accept; ip6 saddr fd85::/64 accept"
		foreign = "ip saddr 10.85.0.0/16 udp dport 334 accept; ip saddr 10.85.0.0/16 tcp dport { 6443, 10250 } accept; ip6 saddr fd85::/64 " +
			"tcp dport 10250 accept"
	)
	ufw := []string{
		"iptables-nft -N ufw-before-input", "iptables-nft -N ufw-not-local", "iptables-nft -N ufw-user-input", "iptables-nft -P INPUT DROP",
		"iptables-nft -A INPUT -j ufw-before-input", "iptables-nft -A INPUT -j ufw-user-input",
		"iptables-nft -A ufw-before-input -i lo -j ACCEPT",
		"iptables-nft -A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
		"iptables-nft -A ufw-before-input -p icmp --icmp-type echo-request -j ACCEPT", "iptables-nft -A ufw-before-input -j ufw-not-local",
		"iptables-nft -A ufw-not-local -m addrtype --dst-type LOCAL -j RETURN", "iptables-nft -A ufw-not-local -j DROP",
		"iptables-nft -A ufw-user-input -p tcp --dport 22 -j ACCEPT",
	}
	for name, tc := range map[string]struct {
		nft   string   // rules of table inet mine, unless it says another table
		run   []string // commands
		want  string
		owner Firewall // with all but what it keeps, if it is not table inet mine
	}{
		"none":                     {},
		"policy accept":            {nft: inputChain("accept", "ct state invalid drop")},
		"policy drop":              {nft: inputChain("drop"), want: all},
		"what servers let through": {nft: inputChain("drop", usual), want: all},
		"a last rule that rejects": {nft: inputChain("accept", usual, "reject"), want: all},
		"accepts by range":         {nft: inputChain("drop", usual, both)},
		"accepts by the link":      {nft: inputChain("drop", usual, `iifname "cor*" accept`)},
		"accepts the services":     {nft: inputChain("drop", usual, "udp dport 334 accept; tcp dport 6443 accept"), want: ports},
		"accepts ports of ranges":  {nft: inputChain("drop", usual, foreign)},
		"accepts what is tracked":  {nft: inputChain("drop", "ct state new accept"), want: dns},
		"accepts untracked":        {nft: inputChain("drop", "ct state { new, untracked } accept")},
		"accepts the API server":   {nft: inputChain("drop", usual, "ct status dnat accept"), want: dns + ", " + ports},
		// Regression: a rule that names the range for what is forwarded says nothing of this.
		"names the range elsewhere": {nft: strings.Replace(forwardChain("drop", both, "ct state established accept"), "chain f", "chain g", 1) +
			inputChain("drop", usual), want: all},
		"ufw":                     {run: ufw, want: all, owner: Firewall{Manager: "ufw", Table: "ip filter", Chain: "INPUT"}},
		"ufw, as doctor proposes": {run: slices.Concat(ufw, []string{"iptables-nft -A ufw-user-input -s 10.85.0.0/16 -j ACCEPT"})},
		"iptables where docker is": {
			run:  []string{"iptables-nft -N DOCKER", "iptables-nft -P INPUT DROP"},
			want: all, owner: Firewall{Manager: "iptables", Table: "ip filter", Chain: "INPUT"},
		},
		"firewalld": {
			nft: strings.NewReplacer("FORWARD", "INPUT", "hook forward", "hook input", "FWD", "IN", `oifname "eth0" ip daddr 203.0.113.0/24`,
				"tcp dport 22").Replace(firewalld),
			// It accepts what is translated.
			want: dns + ", " + ports, owner: Firewall{Manager: "firewalld", Table: "inet firewalld", Chain: "filter_INPUT"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inNamespace(t, func(run func(stdin string, command ...string)) {
				rules := tc.nft
				if rules != "" && !strings.HasPrefix(rules, "table ") {
					rules = "table inet mine { " + rules + " }"
				}
				run(served+rules, "nft", "-f", "-")
				for _, command := range tc.run {
					run("", strings.Fields(command)...)
				}
				w := nodeWith(podRanges...)
				w.services = readServices()
				found, _, err := readNFTables(w)
				if tc.want == "" {
					if err != nil || len(found) > 0 {
						t.Errorf("%+v, %v", found, err)
					}
					return
				}
				want := tc.owner
				if want.Table == "" {
					want.Table, want.Chain = "inet mine", "f"
				}
				want.Keeps = tc.want
				if err != nil || !slices.Equal(found, []Firewall{want}) {
					t.Errorf("%+v, %v, want %+v", found, err, want)
				}
			})
		})
	}
}

// Without facts about pods, a chain that drops all of them is still found, and one that may let
// some through is not. Facts about pods are not guessed.
func TestReadFirewallsOfOtherPlugins(t *testing.T) {
	for rules, families := range map[string][]string{
		inputChain("drop", "iif lo accept", "ct state established accept"):                 {""},
		inputChain("drop", "iif lo accept", "ct state established accept", "iif 3 accept"): nil,
		inputChain("accept", "meta nfproto ipv6 drop"):                                     {"IPv6"},
	} {
		inNamespace(t, func(run func(stdin string, command ...string)) {
			run("table inet mine { "+rules+" }", "nft", "-f", "-")
			found, _, err := readNFTables(firewalled{})
			if err != nil || len(found) != len(families) || len(found) == 1 && found[0].Family != families[0] {
				t.Errorf("%s: %+v, %v, want of %q", rules, found, err, families)
			}
			if len(families) == 1 && families[0] == "IPv6" {
				w := firewalled{services: []nodeService{{at: netip.MustParseAddrPort("[fd00:96::a]:334")}}}
				if found, _, err := readNFTables(w); err != nil || len(found) != 1 || found[0].Family != "" {
					t.Errorf("with services of IPv6: %+v, %v", found, err)
				}
			}
		})
	}
	for rules, want := range map[string]int{
		forwardChain("drop"): 1,
		forwardChain("drop", "ct state established accept"):                                                          1,
		forwardChain("drop", "ct state established accept", "ip saddr 10.0.0.0/8 accept"):                            1, // pods of IPv6
		forwardChain("drop", "ct state established accept", "ip saddr 10.0.0.0/8 accept; ip6 saddr fd00::/8 accept"): 0,
		forwardChain("drop", "accept"):                      0,
		forwardChain("accept", "ip daddr 203.0.113.1 drop"): 0,
	} {
		inNamespace(t, func(run func(stdin string, command ...string)) {
			run("table inet mine { "+rules+" }", "nft", "-f", "-")
			if found, _, err := readNFTables(firewalled{}); err != nil || len(found) != want {
				t.Errorf("%s: %+v, %v", rules, found, err)
			}
		})
	}
}

// What cannot be read is not taken for empty.
func TestFirewallsThatCannotBeRead(t *testing.T) {
	for rules, set := range map[string]string{
		"set some { type inet_proto; }; " + forwardChain("drop", "ct state established accept", "meta l4proto @some accept"):         "some",
		"map some { type inet_proto : verdict; }; " + forwardChain("drop", "ct state established accept", "meta l4proto vmap @some"): "some",
		"set some { type inet_proto; }; " + forwardChain("drop", "ct state established accept", "meta l4proto @some drop"):           "",
		"map some { type inet_proto : verdict; }; " + forwardChain("drop", "meta l4proto vmap @some"):                                "",
	} {
		inNamespace(t, func(run func(stdin string, command ...string)) {
			run("table inet mine { "+rules+" }", "nft", "-f", "-")
			c, err := nftables.New()
			if err != nil {
				t.Error(err)
				return
			}
			chains, err := c.ListChains()
			if err != nil || len(chains) != 1 {
				t.Errorf("%v, %v", chains, err)
				return
			}
			r := newRuleset(c, chains[0].Table)
			if set != "" {
				r.sets[set] = nil
			}
			w := nodeWith(podRanges...)
			for _, p := range forwarded(podRanges[0], false, w.pod, w.uplink)[:2] { // new connections
				if drops, sure := r.drops(chains[0], p.packet, map[string]bool{}); !drops || sure != (set == "") {
					t.Errorf("%s: drops %t, sure %t", rules, drops, sure)
				}
			}
		})
	}
	c, err := nftables.New(nftables.WithTestDial(func([]mdnetlink.Message) ([]mdnetlink.Message, error) { return nil, unix.EPERM }))
	if err != nil {
		t.Fatal(err)
	}
	drop := nftables.ChainPolicyDrop
	table := &nftables.Table{Name: "mine", Family: nftables.TableFamilyINet}
	r := newRuleset(c, table)
	if drops, sure := r.drops(&nftables.Chain{Name: "f", Table: table, Policy: &drop}, packet{}, map[string]bool{}); !drops || sure ||
		len(r.unread) != 1 {
		t.Errorf("of a chain that cannot be read: drops %t, sure %t, %v", drops, sure, r.unread)
	}
}

// Rules of iptables-legacy, in the kernel.
func TestReadLegacy(t *testing.T) {
	if out, err := exec.Command("unshare", "-n", "iptables-legacy", "-S").CombinedOutput(); err != nil {
		testkit.Untested(t, "firewalls made with iptables-legacy: %v: %s; TestJudgeLegacy has the rules as text", err, out)
		return
	}
	for name, tc := range map[string]struct {
		run  []string
		want []Firewall
	}{
		"none":   {},
		"policy": {[]string{"iptables-legacy -P FORWARD DROP"}, []Firewall{{Manager: "iptables-legacy", Table: "ip filter", Chain: "FORWARD"}}},
		"a last rule": {
			[]string{"ip6tables-legacy -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "ip6tables-legacy -A FORWARD -j REJECT"},
			[]Firewall{{Manager: "iptables-legacy", Table: "ip6 filter", Chain: "FORWARD"}},
		},
		"let through": {run: []string{
			"iptables-legacy -P FORWARD DROP", "iptables-legacy -A FORWARD -m state --state RELATED,ESTABLISHED -j ACCEPT",
			"iptables-legacy -A FORWARD -i cor+ -m comment --comment pods -j ACCEPT",
		}},
		"as doctor proposes": {run: []string{
			"iptables-legacy -P FORWARD DROP", "iptables-legacy -I FORWARD -s 10.85.0.0/16 -j ACCEPT",
			"iptables-legacy -I FORWARD -d 10.85.0.0/16 -j ACCEPT",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inNamespace(t, func(run func(stdin string, command ...string)) {
				for _, command := range tc.run {
					run("", strings.Fields(command)...)
				}
				if found, unread := readLegacy(t.Context(), nodeWith(podRanges...)); unread != "" || !slices.Equal(found, tc.want) {
					t.Errorf("%+v, %q, want %+v", found, unread, tc.want)
				}
			})
		})
	}
}

// Rules as "iptables-legacy -S" prints them.
func TestJudgeLegacy(t *testing.T) {
	const replies = "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"
	for name, tc := range map[string]struct {
		rules, manager string
		drops          bool
	}{
		"another chain's policy":  {"-P INPUT DROP\n-P FORWARD ACCEPT\n-P OUTPUT ACCEPT\n", "iptables-legacy", false},
		"its policy":              {"-P INPUT ACCEPT\n-P FORWARD DROP\n", "iptables-legacy", true},
		"docker":                  {"-P FORWARD DROP\n-N DOCKER-USER\n-A FORWARD -j DOCKER-USER\n-A DOCKER-USER -j RETURN\n", "docker", true},
		"ufw":                     {"-P FORWARD DROP\n-N DOCKER\n-N ufw-before-forward\n", "ufw", true},
		"a range":                 {"-P FORWARD DROP\n" + replies + "-A FORWARD -s 10.85.0.0/16 -j ACCEPT\n", "iptables-legacy", false},
		"a larger range":          {"-P FORWARD DROP\n" + replies + "-A FORWARD -s 10.0.0.0/8 -j ACCEPT\n", "iptables-legacy", false},
		"a range without replies": {"-P FORWARD DROP\n-A FORWARD -s 10.85.0.0/16 -j ACCEPT\n", "iptables-legacy", true},
		"a last rule": {
			"-P FORWARD ACCEPT\n" + replies + "-A FORWARD -j REJECT --reject-with icmp-host-prohibited\n",
			"iptables-legacy", true,
		},
		"a last rule for others": {"-P FORWARD ACCEPT\n-A FORWARD ! -i cor+ -o docker0 -j DROP\n", "iptables-legacy", false},
		"a chain": {"-P FORWARD DROP\n-N pods\n" + replies +
			"-A FORWARD -g pods\n-A pods -i cor+ -m comment --comment \"of pods -j DROP\" -j ACCEPT\n", "iptables-legacy", false},
		"a port": {
			"-P FORWARD DROP\n" + replies + "-A FORWARD -p tcp -m tcp --dport 443 -j ACCEPT\n", "iptables-legacy",
			true,
		},
		"a port of the range": {
			"-P FORWARD DROP\n" + replies + "-A FORWARD -s 10.85.0.0/16 -p tcp -m tcp --dport 443 -j ACCEPT\n",
			"iptables-legacy", false,
		},
		"a chain that calls itself": {"-P FORWARD DROP\n-N a\n-A FORWARD -j a\n-A a -j a\n", "iptables-legacy", true},
		"what no program prints":    {"-A\n-P FORWARD\n-A FORWARD -s\n-A FORWARD -j\n\"\n-A FORWARD --comment \"\n", "iptables-legacy", false},
	} {
		l := parseLegacy(tc.rules)
		if manager, drops := l.manager(), len(l.dropped(nodeWith(podRanges...), "FORWARD", false)) > 0; manager != tc.manager ||
			drops != tc.drops {
			t.Errorf("%s: %s, %v", name, manager, drops)
		}
	}
}

// Rules of the chain INPUT, likewise.
func TestJudgeLegacyInput(t *testing.T) {
	const (
		drop  = "-P INPUT DROP\n-P FORWARD ACCEPT\n"
		usual = "-A INPUT -i lo -j ACCEPT\n-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A INPUT -p tcp -m tcp --dport 22 " +
			"-j ACCEPT\n"
		ufw = "-N ufw-not-local\n-N ufw-user\n-A INPUT -j ufw-not-local\n-A INPUT -j ufw-user\n-A ufw-not-local -m addrtype --dst-type " +
			"LOCAL -j RETURN\n-A ufw-not-local -j DROP\n"
	)
	w := nodeWith(podRanges...)
	w.services = []nodeService{
		{name: "API", at: netip.MustParseAddrPort("10.96.0.1:6443")},
		{name: "DNS", at: netip.MustParseAddrPort("10.96.0.10:334"), dns: true},
	}
	for name, tc := range map[string]struct{ rules, want string }{
		"accepts":                  {"-P INPUT ACCEPT\n-P FORWARD DROP\n" + usual, ""},
		"its policy":               {drop, "API DNS ports"},
		"what servers let through": {drop + usual, "API DNS ports"},
		"a range":                  {drop + usual + "-A INPUT -s 10.85.0.0/16 -j ACCEPT\n", ""},
		"another chain's range":    {drop + usual + "-A FORWARD -s 10.85.0.0/16 -p tcp -m tcp --dport 443 -j ACCEPT\n", "API DNS ports"},
		"what is translated":       {drop + "-A INPUT -m conntrack --ctstate DNAT -j ACCEPT\n", "DNS ports"},
		"what is not tracked":      {drop + "-A INPUT -m conntrack --ctstate UNTRACKED -j ACCEPT\n", "API ports"},
		"a service's port":         {drop + "-A INPUT -p udp -m udp --dport 334 -j ACCEPT\n", "API ports"},
		"ufw":                      {drop + ufw, "API DNS ports"},
		"ufw, let through":         {drop + ufw + "-A ufw-user -s 10.85.0.0/16 -j ACCEPT\n", ""},
	} {
		var got []string
		for _, what := range parseLegacy(tc.rules).dropped(w, "INPUT", false) {
			got = append(got, strings.Fields(what)[0])
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: %q are dropped, want %s", name, got, tc.want)
		}
	}
}
