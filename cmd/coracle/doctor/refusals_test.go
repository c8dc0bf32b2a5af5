package doctor

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/cmd/coracled/config"
	"github.com/coracle-project/coracle/internal/testkit"
)

// What a machine's own firewall drops of what other machines need is named before it joins, with
// the port and the direction.
func TestRefusals(t *testing.T) {
	const usual = "iif lo accept; ct state established,related accept; tcp dport 22 accept"
	places := Places{
		Server: "https://192.0.2.2:6443", Ports: []Port{{Number: 10250, For: "calls of the kubelet"}},
	}
	const kubelet = "drops TCP port 10250 from other machines, such as 192.0.2.2, to this one: calls of the kubelet do not arrive"
	const pods = "drops UDP port 8472 from other machines"
	for name, tc := range map[string]struct {
		nft  string
		want []string
	}{
		"no firewall":                {nft: "table inet mine { }"},
		"ours":                       {nft: "table inet coracle-x { " + inputChain("drop") + " }"},
		"drops the port":             {nft: inputChain("accept", "udp dport 8472 drop"), want: []string{pods}},
		"policy drop":                {nft: inputChain("drop", usual), want: []string{kubelet, pods}},
		"accepts one":                {nft: inputChain("drop", usual, "tcp dport 10250 accept"), want: []string{pods}},
		"accepts both":               {nft: inputChain("drop", usual, "tcp dport 10250 accept; udp dport 8472 accept")},
		"accepts the other machines": {nft: inputChain("drop", usual, "ip saddr 192.0.2.0/24 accept")},
		"accepts other machines":     {nft: inputChain("drop", usual, "ip saddr 198.51.100.0/24 accept"), want: []string{kubelet, pods}},
		"accepts what is not known":  {nft: inputChain("drop", usual, "fib saddr . iif oif missing accept")},
		"of the other family":        {nft: "table ip6 mine { " + inputChain("drop") + " }"},
	} {
		t.Run(name, func(t *testing.T) {
			inNamespace(t, func(run func(stdin string, command ...string)) {
				for _, command := range []string{"ip link add near type bridge", "ip addr add 192.0.2.1/24 dev near", "ip link set near up"} {
					run("", strings.Fields(command)...)
				}
				rules := tc.nft
				if !strings.HasPrefix(rules, "table ") {
					rules = "table inet mine { " + rules + " }"
				}
				run(rules, "nft", "-f", "-")
				refusals, err := readRefusals(t.Context(), "ours", places.beforeJoin())
				if err != nil {
					t.Fatal(err)
				}
				var found []string
				for _, f := range checkRefusals(&Facts{Refusals: refusals}) {
					found = append(found, f.Message)
				}
				if len(found) != len(tc.want) {
					t.Fatalf("%q, want %q", found, tc.want)
				}
				for i, want := range tc.want {
					if !strings.Contains(found[i], want) {
						t.Errorf("%q, want %q", found[i], want)
					}
				}
			})
		})
	}
}

func TestRemediesOfRefusals(t *testing.T) {
	for manager, want := range map[string]string{
		"": "accept UDP port 8472", "ufw": "ufw allow 8472/udp", "firewalld": "--add-port=8472/udp",
	} {
		all := checkRefusals(&Facts{Refusals: []Refusal{{Port: Port{UDP: true, Number: 8472}, Manager: manager, Table: "inet t", Chain: "c"}}})
		if len(all) != 1 || !strings.Contains(all[0].Remedy, want) || !strings.Contains(all[0].Message, manager) {
			t.Errorf("%s: %+v", manager, all)
		}
	}
}

// Regression: only chains of nftables were looked at.
func TestRefusalsOfLegacy(t *testing.T) {
	from := netip.MustParseAddr("192.0.2.2")
	needed := []Port{
		{Number: 10250, From: from}, {UDP: true, Number: 8472, From: from}, {Number: 10250, From: netip.MustParseAddr("2001:db8::2")},
	}
	for name, tc := range map[string]struct {
		rules, manager string
		want           []uint16
	}{
		"accepts":        {"-P INPUT ACCEPT\n-P FORWARD DROP\n", "", nil},
		"its policy":     {"-P INPUT DROP\n", "iptables-legacy", []uint16{10250, 8472}},
		"accepts one":    {"-P INPUT DROP\n-A INPUT -p tcp -m tcp --dport 10250 -j ACCEPT\n", "iptables-legacy", []uint16{8472}},
		"a last rule":    {"-P INPUT ACCEPT\n-N ufw-a\n-A INPUT -p udp -j ACCEPT\n-A INPUT -j REJECT\n", "ufw", []uint16{10250}},
		"some ports":     {"-P INPUT DROP\n-A INPUT -p tcp -m multiport --dports 22,10250 -j ACCEPT\n", "iptables-legacy", []uint16{8472}},
		"other machines": {"-P INPUT DROP\n-N DOCKER\n-A INPUT -s 198.51.100.0/24 -j ACCEPT\n", "iptables-legacy", []uint16{10250, 8472}},
	} {
		found := legacyTable{legacyRules: parseLegacy(tc.rules)}.refuses(needed)
		if len(found) != len(tc.want) {
			t.Errorf("%s: %+v, want %d", name, found, tc.want)
			continue
		}
		for i, r := range found {
			if r.Number != tc.want[i] || r.Manager != tc.manager || r.Table != "ip filter" || r.Chain != "INPUT" {
				t.Errorf("%s: %+v", name, r)
			}
		}
	}
	if out, err := exec.Command("unshare", "-n", "iptables-legacy", "-S").CombinedOutput(); err != nil {
		testkit.Untested(t, "ports that iptables-legacy drops, in the kernel: %v: %s", err, out)
		return
	}
	inNamespace(t, func(run func(stdin string, command ...string)) {
		run("", "iptables-legacy", "-A", "INPUT", "-p", "tcp", "--dport", "10250", "-j", "DROP")
		if found, err := readRefusals(t.Context(), "ours", needed); err != nil || len(found) != 1 || found[0].Number != 10250 {
			t.Errorf("%+v, %v", found, err)
		}
	})
}

// Other machines ask this one for layers of images, unless its coracled passes none on.
func TestPortOfLayers(t *testing.T) {
	c := config.Default()
	p := Places{Server: "https://192.0.2.2:6443"}
	if all := p.sharing(c).needed(nil); len(all) != 1 || all[0].Number != 10266 || all[0].UDP {
		t.Errorf("%+v", all)
	}
	c.Image.ShareBetweenNodes = false
	if all := p.sharing(c).needed(nil); len(all) != 0 {
		t.Errorf("where none are passed on: %+v", all)
	}
}
