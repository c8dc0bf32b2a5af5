package routes

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func addrs(texts ...string) (all []netip.Addr) {
	for _, t := range texts {
		all = append(all, netip.MustParseAddr(t))
	}
	return all
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, t := range texts {
		all = append(all, netip.MustParsePrefix(t))
	}
	return all
}

func TestRoundTrip(t *testing.T) {
	r := New(addrs("10.0.0.1", "::ffff:10.0.0.2", "fd00::1"), prefixes("fd85::/64", "10.85.0.7/24"),
		prefixes("192.0.2.1/32", "192.0.2.1/32"))
	want := Routes{Version: 1, NextHops: addrs("10.0.0.1", "fd00::1"), Prefixes: prefixes("10.85.0.0/24", "192.0.2.1/32", "fd85::/64")}
	if !reflect.DeepEqual(r, want) {
		t.Fatalf("%+v instead of %+v", r, want)
	}
	data, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(strings.NewReader(string(data)))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

// A node without IPv6 cannot be the next hop of its IPv6 networks.
func TestFamilyWithoutNextHop(t *testing.T) {
	if r := New(addrs("10.0.0.1"), prefixes("10.85.0.0/24", "fd85::/64"), nil); !reflect.DeepEqual(r.Prefixes, prefixes("10.85.0.0/24")) {
		t.Errorf("%v", r.Prefixes)
	}
	if r := New(nil, prefixes("10.85.0.0/24"), nil); len(r.Prefixes) != 0 {
		t.Errorf("%v", r.Prefixes)
	}
}

func TestTooManyPrefixes(t *testing.T) {
	var all []netip.Prefix
	for k := range most + 1 {
		all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(k >> 16), byte(k >> 8), byte(k)}), 32))
	}
	pods := prefixes("192.0.2.0/24") // behind all others
	r := New(addrs("10.0.0.1"), pods, all)
	if len(r.Prefixes) != most || r.LeftOut != 2 || r.Prefixes[most-1] != pods[0] {
		t.Errorf("%d prefixes, %d too many, the last is %s", len(r.Prefixes), r.LeftOut, r.Prefixes[len(r.Prefixes)-1])
	}
	if data, err := r.Encode(); err != nil || len(data) > longest {
		t.Errorf("the longest file has %d bytes: %v", len(data), err)
	}
}

func TestBadFiles(t *testing.T) {
	file := func(hops, prefixes string) string {
		return fmt.Sprintf(`{"version": 1, "nextHops": [%s], "prefixes": [%s]}`, hops, prefixes)
	}
	for name, c := range map[string]struct{ file, says string }{
		"empty":             {"", "EOF"},
		"cut off":           {`{"version": 1, "nextHops": ["10.`, "unexpected EOF"},
		"other version":     {`{"version": 2}`, "version 2 is unknown"},
		"unknown key":       {`{"version": 1, "more": 1}`, `unknown field "more"`},
		"second document":   {file("", "") + "{}", "something follows"},
		"default route":     {file(`"10.0.0.1"`, `"0.0.0.0/0"`), "no default route"},
		"host bits":         {file(`"10.0.0.1"`, `"10.85.0.1/24"`), "is no network"},
		"no next hop":       {file(`"10.0.0.1"`, `"fd85::/64"`), "no next hop"},
		"two of one family": {file(`"10.0.0.1", "10.0.0.2"`, ""), "one plain address of each family"},
		"zone":              {file(`"fe80::1%eth0"`, ""), "one plain address of each family"},
		"mapped":            {file(`"::ffff:10.0.0.1"`, ""), "one plain address of each family"},
		"no address":        {file(`"0.0.0.0"`, ""), "one plain address of each family"},
		"too long":          {strings.Repeat(" ", longest+1), "more than"},
		"too many":          {file(`"10.0.0.1"`, strings.Repeat(`"10.85.0.0/24",`, most)+`"10.85.0.0/24"`), "are more than"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Decode(strings.NewReader(c.file)); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v instead of %q", err, c.says)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(`{"version": 1, "nextHops": ["10.0.0.1"], "prefixes": ["10.85.0.0/24"]}`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := Decode(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, p := range r.Prefixes {
			if !r.NextHop(p.Addr()).IsValid() {
				t.Errorf("%s has no next hop", p)
			}
		}
	})
}
