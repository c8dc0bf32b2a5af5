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
	return firewalled{ranges: ranges, own: "ours", pod: side{name: "cor0123456789ab", group: &group}, uplink: side{name: "eth0", index: 2, group: new(uint32)}}
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
	mine := []Firewall{{"", "inet mine", "f"}}
	docker := []Firewall{{"docker", "ip filter", "FORWARD"}}
	for name, tc := range map[string]struct {
		nft  string   // rules of table inet mine, unless it says another table
		run  []string // commands
		want []Firewall
	}{
		"none":                               {},
		"ours":                               {nft: "table inet coracle0 { " + forwardChain("drop") + " }\ntable inet ours { " + forwardChain("drop") + " }"},
		"one that accepts":                   {nft: forwardChain("accept") + " chain in { type filter hook input priority filter; policy drop; };"},
		"policy drop":                        {nft: forwardChain("drop"), want: mine},
		"policy drop, of another priority":   {nft: "chain f { type filter hook forward priority 200; policy drop; }; chain g { type filter hook forward priority -200; policy accept; accept; };", want: mine},
		"policy drop of a bridge":            {nft: "table bridge mine { " + forwardChain("drop") + " }"},
		"a last rule that rejects":           {nft: forwardChain("accept", replies, "reject"), want: mine},
		"a last rule that drops":             {nft: forwardChain("accept", replies, "counter drop"), want: mine},
		"accepts by range":                   {nft: forwardChain("drop", replies, both)},
		"accepts by range, replies are lost": {nft: forwardChain("drop", both), want: mine},
		"accepts one family":                 {nft: forwardChain("drop", replies, "ip saddr 10.85.0.0/16 accept"), want: mine},
		"accepts a larger range":             {nft: forwardChain("drop", replies, "ip saddr 10.0.0.0/8 accept; ip6 saddr fd00::/8 accept")},
		"accepts another range":              {nft: forwardChain("drop", replies, "ip saddr 10.86.0.0/16 accept; ip6 saddr fd85::/64 accept"), want: mine},
		"accepts by the links' name":         {nft: forwardChain("drop", replies, `iifname "cor*" accept`)},
		"accepts by the links' group":        {nft: forwardChain("drop", replies, "meta iifgroup & 0xc0000000 == 0x40000000 accept")},
		"accepts by the uplink":              {nft: forwardChain("drop", replies, `oifname "eth0" accept`), want: mine}, // pods do not reach each other
		"accepts all but the uplink":         {nft: forwardChain("drop", replies, `iifname != "eth0" accept`)},
		"accepts by a set":                   {nft: "set pods { type ipv4_addr; flags interval; elements = { 10.64.0.0/10, 192.168.0.0/16 }; }; " + forwardChain("drop", replies, "ip saddr @pods accept; ip6 saddr { fd84::/64, fd85::/64 } accept")},
		"drops by a set":                     {nft: "set bad { type ipv4_addr; flags interval; elements = { 203.0.113.0/24 }; }; " + forwardChain("accept", "ip saddr @bad drop")},
		"drops pods by a set":                {nft: "set bad { type ipv4_addr; flags interval; elements = { 10.85.0.0-10.85.0.255 }; }; " + forwardChain("accept", "ip saddr @bad drop"), want: mine},
		"names the range to drop it":         {nft: forwardChain("drop", replies, "ip saddr 10.85.0.0/16 drop; ip6 saddr fd85::/64 drop"), want: mine},
		"names the range elsewhere":          {nft: "chain post { type nat hook postrouting priority srcnat; ip saddr 10.85.0.0/16 masquerade; ip6 saddr fd85::/64 masquerade; }; " + forwardChain("drop", replies), want: mine},
		"accepts in a chain":                 {nft: "chain pods { " + both + "; }; " + forwardChain("drop", replies, "jump pods")},
		"accepts after a chain that returns": {nft: "chain pods { return; drop; }; " + forwardChain("drop", replies, "jump pods", both)},
		"rejects in a chain":                 {nft: "chain no { reject; }; " + forwardChain("accept", replies, "goto no"), want: mine},
		"accepts by a map":                   {nft: "chain pods { accept; }; " + forwardChain("drop", replies, `iifname vmap { "eth0" : drop, "cor0123456789ab" : goto pods }`)},
		"drops by a map":                     {nft: forwardChain("accept", "ct state vmap { established : accept, related : accept, new : drop }"), want: mine},
		"accepts the rest by a map":          {nft: forwardChain("drop", replies, `iifname vmap { "eth0" : drop, * : accept }`)},
		"drops the rest by a map":            {nft: forwardChain("accept", replies, `iifname vmap { "eth0" : accept, * : drop }`), want: mine},
		"a range, and the rest, by a map":    {nft: forwardChain("accept", replies, "ip saddr vmap { 203.0.113.0/24 : drop, 10.85.0.0/16 : accept, * : drop }")},
		"drops the rest of ranges by a map":  {nft: forwardChain("accept", replies, "ip saddr vmap { 203.0.113.0/24 : accept, * : drop }"), want: mine},
		"accepts a port by a map":            {nft: forwardChain("drop", replies, "tcp dport vmap { 443 : accept, 25 : drop }"), want: mine},
		"accepts a range's port by a map":    {nft: forwardChain("drop", replies, "ip saddr 10.85.0.0/16 tcp dport vmap { 443 : accept, 25 : drop }; ip6 saddr fd85::/64 tcp dport vmap { 443 : accept, 80-90 : accept }")},
		"drops a port by a map":              {nft: forwardChain("accept", "tcp dport vmap { 25 : drop }")},
		"accepts by the state":               {nft: forwardChain("drop", "ct state vmap { established : accept, related : accept, invalid : drop }", "ct state new accept")},
		"accepts a port":                     {nft: forwardChain("drop", replies, "tcp dport 443 accept"), want: mine},
		"accepts a port of the range":        {nft: forwardChain("drop", replies, "ip saddr 10.85.0.0/16 tcp dport 443 accept; ip6 saddr fd85::/64 tcp dport 443 accept")},
		"drops what is not TCP":              {nft: forwardChain("accept", "meta l4proto != { tcp, udp, icmp, icmpv6 } drop", "tcp flags & (fin|syn|rst|ack) == 0 drop", "ip frag-off & 0x1fff != 0 drop")},
		"drops what the kernel cannot track": {nft: forwardChain("accept", "ct state invalid drop", "fib saddr . iif oif missing drop")},
		"iptables, FORWARD":                  {run: []string{"iptables-nft -P FORWARD DROP"}, want: []Firewall{{"", "ip filter", "FORWARD"}}},
		"iptables, a last rule": {
			run:  []string{"iptables-nft -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "iptables-nft -A FORWARD -j REJECT --reject-with icmp-host-prohibited"},
			want: []Firewall{{"", "ip filter", "FORWARD"}},
		},
		"iptables, let through": {run: []string{
			"iptables-nft -P FORWARD DROP", "iptables-nft -A FORWARD -m state --state RELATED,ESTABLISHED -j ACCEPT", "iptables-nft -A FORWARD -i cor+ -m comment --comment pods -j ACCEPT",
		}},
		"docker": {run: slices.Concat(dockers), want: docker},
		"docker, as doctor proposes": {run: slices.Concat(dockers, []string{
			"iptables-nft -I DOCKER-USER -s 10.85.0.0/16 -j ACCEPT", "iptables-nft -I DOCKER-USER -d 10.85.0.0/16 -j ACCEPT",
		})},
		"docker, with half of it": {run: slices.Concat(dockers, []string{"iptables-nft -I DOCKER-USER -d 10.85.0.0/16 -j ACCEPT"}), want: docker},
		"ufw, IPv6": {
			run:  []string{"ip6tables-nft -N ufw6-before-forward", "ip6tables-nft -A FORWARD -j ufw6-before-forward", "ip6tables-nft -P FORWARD DROP"},
			want: []Firewall{{"ufw", "ip6 filter", "FORWARD"}},
		},
		"firewalld": {nft: firewalld, want: []Firewall{{"firewalld", "inet firewalld", "filter_FORWARD"}}},
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
	"iptables-nft -N DOCKER", "iptables-nft -N DOCKER-FORWARD", "iptables-nft -N DOCKER-USER", "iptables-nft -N DOCKER-CT", "iptables-nft -P FORWARD DROP",
	"iptables-nft -A FORWARD -j DOCKER-USER", "iptables-nft -A FORWARD -j DOCKER-FORWARD", "iptables-nft -A DOCKER-FORWARD -j DOCKER-CT",
	"iptables-nft -A DOCKER-FORWARD -i docker0 -j ACCEPT", "iptables-nft -A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
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

// Without what is known of pods, a chain that drops whatever they may be is found all the same, and
// one that may let them through is not.
func TestReadFirewallsOfOtherPlugins(t *testing.T) {
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
			r := newRuleset(c, chains[0].Table, chains)
			if set != "" {
				r.sets[set] = nil
			}
			w := nodeWith(podRanges...)
			if drops, sure := r.dropAny(chains[0], forwarded(podRanges[0], false, w.pod, w.uplink)); !drops || sure != (set == "") {
				t.Errorf("%s: drops %t, sure %t", rules, drops, sure)
			}
		})
	}
	c, err := nftables.New(nftables.WithTestDial(func([]mdnetlink.Message) ([]mdnetlink.Message, error) { return nil, unix.EPERM }))
	if err != nil {
		t.Fatal(err)
	}
	drop := nftables.ChainPolicyDrop
	table := &nftables.Table{Name: "mine", Family: nftables.TableFamilyINet}
	r := newRuleset(c, table, nil)
	if drops, sure := r.drops(&nftables.Chain{Name: "f", Table: table, Policy: &drop}, packet{}); !drops || sure || len(r.unread) != 1 {
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
		"policy": {[]string{"iptables-legacy -P FORWARD DROP"}, []Firewall{{"iptables-legacy", "ip filter", "FORWARD"}}},
		"a last rule": {
			[]string{"ip6tables-legacy -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "ip6tables-legacy -A FORWARD -j REJECT"},
			[]Firewall{{"iptables-legacy", "ip6 filter", "FORWARD"}},
		},
		"let through": {run: []string{
			"iptables-legacy -P FORWARD DROP", "iptables-legacy -A FORWARD -m state --state RELATED,ESTABLISHED -j ACCEPT",
			"iptables-legacy -A FORWARD -i cor+ -m comment --comment pods -j ACCEPT",
		}},
		"as doctor proposes": {run: []string{
			"iptables-legacy -P FORWARD DROP", "iptables-legacy -I FORWARD -s 10.85.0.0/16 -j ACCEPT", "iptables-legacy -I FORWARD -d 10.85.0.0/16 -j ACCEPT",
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
		"another chain's policy":    {"-P INPUT DROP\n-P FORWARD ACCEPT\n-P OUTPUT ACCEPT\n", "iptables-legacy", false},
		"its policy":                {"-P INPUT ACCEPT\n-P FORWARD DROP\n", "iptables-legacy", true},
		"docker":                    {"-P FORWARD DROP\n-N DOCKER-USER\n-A FORWARD -j DOCKER-USER\n-A DOCKER-USER -j RETURN\n", "docker", true},
		"ufw":                       {"-P FORWARD DROP\n-N DOCKER\n-N ufw-before-forward\n", "ufw", true},
		"a range":                   {"-P FORWARD DROP\n" + replies + "-A FORWARD -s 10.85.0.0/16 -j ACCEPT\n", "iptables-legacy", false},
		"a larger range":            {"-P FORWARD DROP\n" + replies + "-A FORWARD -s 10.0.0.0/8 -j ACCEPT\n", "iptables-legacy", false},
		"a range without replies":   {"-P FORWARD DROP\n-A FORWARD -s 10.85.0.0/16 -j ACCEPT\n", "iptables-legacy", true},
		"a last rule":               {"-P FORWARD ACCEPT\n" + replies + "-A FORWARD -j REJECT --reject-with icmp-host-prohibited\n", "iptables-legacy", true},
		"a last rule for others":    {"-P FORWARD ACCEPT\n-A FORWARD ! -i cor+ -o docker0 -j DROP\n", "iptables-legacy", false},
		"a chain":                   {"-P FORWARD DROP\n-N pods\n" + replies + "-A FORWARD -g pods\n-A pods -i cor+ -m comment --comment \"of pods -j DROP\" -j ACCEPT\n", "iptables-legacy", false},
		"a port":                    {"-P FORWARD DROP\n" + replies + "-A FORWARD -p tcp -m tcp --dport 443 -j ACCEPT\n", "iptables-legacy", true},
		"a port of the range":       {"-P FORWARD DROP\n" + replies + "-A FORWARD -s 10.85.0.0/16 -p tcp -m tcp --dport 443 -j ACCEPT\n", "iptables-legacy", false},
		"a chain that calls itself": {"-P FORWARD DROP\n-N a\n-A FORWARD -j a\n-A a -j a\n", "iptables-legacy", true},
		"what no program prints":    {"-A\n-P FORWARD\n-A FORWARD -s\n-A FORWARD -j\n\"\n-A FORWARD --comment \"\n", "iptables-legacy", false},
	} {
		l := parseLegacy(tc.rules)
		if manager, drops := l.manager(), l.drop(nodeWith(podRanges...), false); manager != tc.manager || drops != tc.drops {
			t.Errorf("%s: %s, %v", name, manager, drops)
		}
	}
}
