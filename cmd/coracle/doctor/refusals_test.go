package doctor

import (
	"strings"
	"testing"
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
				refusals, err := readRefusals("ours", places.beforeJoin())
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
