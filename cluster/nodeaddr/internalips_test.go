package nodeaddr

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestInternalIPs(t *testing.T) {
	var many []string
	for i := range MostInternalIPs + 1 {
		many = append(many, fmt.Sprintf("192.0.2.%d", i+1))
	}
	for name, test := range map[string]struct {
		given string
		want  string
		err   string
	}{
		"none":                   {},
		"one":                    {given: "192.0.2.1", want: "192.0.2.1"},
		"both families, in turn": {given: "2001:db8::1 192.0.2.1", want: "2001:db8::1 192.0.2.1"},
		"private ones":           {given: "10.0.0.1 fd00::1", want: "10.0.0.1 fd00::1"},
		"twice the same":         {given: "192.0.2.1 192.0.2.1", want: "192.0.2.1"},
		"as many as there may be": {
			given: strings.Join(many[:MostInternalIPs], " "), want: strings.Join(many[:MostInternalIPs], " "),
		},
		"more": {
			given: strings.Join(many, " "), want: strings.Join(many[:MostInternalIPs], " "),
			err: "it has 17 InternalIPs, and 16 are taken of a node at most",
		},
		"more, of one address": {
			given: strings.Repeat(" 192.0.2.1", MostInternalIPs+1), want: "192.0.2.1",
			err: "it has 17 InternalIPs, and 16 are taken of a node at most",
		},
		"a name":                   {given: "localhost 192.0.2.1", want: "192.0.2.1", err: `its InternalIP "localhost" is no address`},
		"an empty one":             {given: "- 192.0.2.1", want: "192.0.2.1", err: `its InternalIP "" is no address`},
		"a network":                {given: "192.0.2.1/24", err: `its InternalIP "192.0.2.1/24" is no address`},
		"a port":                   {given: "192.0.2.1:80", err: `its InternalIP "192.0.2.1:80" is no address`},
		"zeros in front":           {given: "192.0.2.010", err: `is no address`},
		"a terminal's escapes":     {given: "\x1b[2J", err: `its InternalIP "\x1b[2J" is no address`},
		"a long one":               {given: strings.Repeat("a", 1000), err: `its InternalIP "` + strings.Repeat("a", 100) + `" is no address`},
		"loopback, and a good one": {given: "192.0.2.1 127.0.0.1", want: "192.0.2.1", err: "its address 127.0.0.1 is none"},
		"loopback":                 {given: "127.3.2.1", err: "its address 127.3.2.1 is none"},
		"loopback, IPv6":           {given: "::1", err: "its address ::1 is none"},
		"unspecified":              {given: "0.0.0.0", err: "its address 0.0.0.0 is none"},
		"unspecified, IPv6":        {given: "::", err: "its address :: is none"},
		"multicast":                {given: "224.0.0.5", err: "its address 224.0.0.5 is none"},
		"multicast, IPv6":          {given: "ff02::1", err: "its address ff02::1 is none"},
		"broadcast":                {given: "255.255.255.255", err: "its address 255.255.255.255 is none"},
		"link-local":               {given: "169.254.1.1", err: "its address 169.254.1.1 is none"},
		"link-local, IPv6":         {given: "fe80::1", err: "its address fe80::1 is none"},
		"an interface's":           {given: "fe80::1%eth0", err: `its address fe80::1, with zone "eth0", is none`},
		"an interface's, global":   {given: "2001:db8::1%eth0", err: `its address 2001:db8::1, with zone "eth0", is none`},
		"escapes in a zone":        {given: "fe80::1%\x1b[2J", err: `its address fe80::1, with zone "\x1b[2J", is none`},
		"a long zone":              {given: "fe80::1%" + strings.Repeat("a", 1000), err: `with zone "` + strings.Repeat("a", 20) + `", is none`},
		"IPv4 in IPv6":             {given: "::ffff:192.0.2.1", err: "its address ::ffff:192.0.2.1 is none"},
		"the first error counts":   {given: "x 127.0.0.1 192.0.2.1", want: "192.0.2.1", err: `its InternalIP "x" is no address`},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeHostName, Address: "node"}, {Type: corev1.NodeExternalIP, Address: "198.51.100.1"},
			}}}
			for _, text := range strings.Fields(test.given) {
				node.Status.Addresses = append(node.Status.Addresses,
					corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: strings.TrimPrefix(text, "-")})
			}
			addrs, err := InternalIPs(node)
			var got []string
			for _, a := range addrs {
				got = append(got, a.String())
			}
			if !slices.Equal(got, strings.Fields(test.want)) {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got error %v, want %q", err, test.err)
			}
		})
	}
}
