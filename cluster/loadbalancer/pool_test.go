package loadbalancer

import (
	"net/netip"
	"strings"
	"testing"
)

func pool(t testing.TB, texts ...string) Pool {
	t.Helper()
	p, err := ParsePool(texts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPoolsHaveTheirAddresses(t *testing.T) {
	for _, test := range []struct {
		texts string // separated by spaces
		want  string // its first addresses, at most four of each family
	}{
		{"192.168.1.240/28", "192.168.1.240 192.168.1.241 192.168.1.242 192.168.1.243"},
		{"192.168.1.253-192.168.2.2", "192.168.1.253 192.168.1.254 192.168.2.1 192.168.2.2"},
		{"192.168.1.7", "192.168.1.7"},
		{"192.168.1.7/32", "192.168.1.7"},
		{"192.168.1.9 192.168.1.7-192.168.1.8", "192.168.1.9 192.168.1.7 192.168.1.8"},
		{"192.168.1.255-192.168.2.0 10.0.0.1", "10.0.0.1"},
		{"2001:db8::/126 10.0.0.1", "10.0.0.1 2001:db8:: 2001:db8::1 2001:db8::2 2001:db8::3"},
		{"255.255.255.255/32", ""},
	} {
		p, err := ParsePool(strings.Fields(test.texts))
		if test.want == "" {
			if err == nil {
				t.Errorf("%s is taken", test.texts)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", test.texts, err)
			continue
		}
		var got []string
		for _, ipv6 := range []bool{false, true} {
			n := 0
			for a := p.Next(ipv6, netip.Addr{}); a.IsValid() && n < 4; a = p.Next(ipv6, a) {
				if !p.Contains(a) {
					t.Errorf("%s gives %s and does not contain it", test.texts, a)
				}
				got = append(got, a.String())
				n++
			}
			if p.Has(ipv6) != (n > 0) {
				t.Errorf("%s: Has(%v) is %v", test.texts, ipv6, p.Has(ipv6))
			}
		}
		if all := strings.Join(got, " "); all != test.want {
			t.Errorf("%s has %s, want %s", test.texts, all, test.want)
		}
	}
}

func TestPoolsThatAreRefused(t *testing.T) {
	for texts, want := range map[string]string{
		"":                            "is no range",
		"network":                     "is no range",
		"192.168.1.1/33":              "is no range",
		"192.168.1.1-":                "is no range",
		"192.168.1.1-2001:db8::1":     "is no range",
		"::ffff:10.0.0.1":             "is no range",
		"fe80::1%eth0":                "is no range",
		"192.168.1.9/28":              "192.168.1.0/28 is the network",
		"192.168.1.9-192.168.1.7":     "192.168.1.7-192.168.1.9",
		"192.168.1.0/24,192.168.1.7":  "overlaps 192.168.1.0-192.168.1.255",
		"127.0.0.1":                   "127.0.0.0/8",
		"10.0.0.1-224.0.0.1":          "127.0.0.0/8",
		"239.0.0.0/8":                 "224.0.0.0/3",
		"fe80::/64":                   "fe80::/10",
		"2001:db8::1-ff02::1":         "fe80::/10",
		"::1":                         "::/127",
		"0.0.0.0/0":                   "0.0.0.0/8",
		"::/0":                        "::/127",
		"169.254.1.1-169.254.1.2":     "169.254.0.0/16",
		"10.0.0.1-10.0.0.2,127.9.9.9": "127.0.0.0/8",
	} {
		if _, err := ParsePool(strings.Split(texts, ",")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", texts, err, want)
		}
	}
}

func TestPoolsOverlapNetworks(t *testing.T) {
	p := pool(t, "10.0.1.0-10.0.2.7", "fd00::/120")
	for network, want := range map[string]bool{
		"10.0.0.0/24": false, "10.0.1.0/24": true, "10.0.2.0/29": true, "10.0.2.8/29": false, "10.0.0.0/8": true, "0.0.0.0/0": true,
		"fd00::100/120": false, "fd00::80/121": true, "::/0": true, "10.0.2.7/32": true,
	} {
		if got := p.Overlaps(netip.MustParsePrefix(network)); got != want {
			t.Errorf("%s: %v, want %v", network, got, want)
		}
	}
}

// Whatever is typed, a pool is refused or gives out addresses that it contains, in order, and ends.
func FuzzPool(f *testing.F) {
	for _, text := range []string{
		"10.0.0.0/8", "2001:db8::/32", "10.0.0.1-10.0.0.9", "::1", "10.0.0.255-10.0.1.0", "1.2.3.4%x", "-",
		"0.0.0.0/0",
	} {
		f.Add(text, "10.0.0.7")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		p, err := ParsePool([]string{a, b})
		if err != nil {
			return
		}
		for _, ipv6 := range []bool{false, true} {
			last := netip.Addr{}
			for range 300 {
				next := p.Next(ipv6, last)
				if !next.IsValid() {
					break
				}
				if !p.Contains(next) || next.Is6() != ipv6 || next == last || next.IsLoopback() || next.IsMulticast() || next.IsUnspecified() ||
					!p.Overlaps(netip.PrefixFrom(next, next.BitLen())) {
					t.Fatalf("%q, %q gives %s after %s", a, b, next, last)
				}
				last = next
			}
		}
	})
}
