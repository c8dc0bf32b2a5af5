package speaker

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/osrg/gobgp/v4/api"

	"github.com/coracle-project/coracle/cluster/bgp/routes"
)

func TestParsePeer(t *testing.T) {
	for text, want := range map[string]Peer{
		"10.0.0.254 as=64500":            {Address: netip.MustParseAddr("10.0.0.254"), AS: 64500, Port: 179},
		"  fd00::fe   port=1179 as=1 ":   {Address: netip.MustParseAddr("fd00::fe"), AS: 1, Port: 1179},
		"fe80::1%eth0 as=4200000000":     {Address: netip.MustParseAddr("fe80::1%eth0"), AS: 4200000000, Port: 179},
		"10.0.0.1 as=2 password-file=/p": {Address: netip.MustParseAddr("10.0.0.1"), AS: 2, Port: 179, PasswordFile: "/p"},
	} {
		if got, err := ParsePeer(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"":                                  "no address",
		"router as=1":                       `"router" is no address`,
		"0.0.0.0 as=1":                      "is no address of a router",
		"ff02::1 as=1":                      "is no address of a router",
		"::ffff:10.0.0.1 as=1":              "is no address of a router",
		"fe80::1 as=1":                      "needs its interface",
		"10.0.0.1":                          "as is missing",
		"10.0.0.1 as=":                      "is no number of an AS",
		"10.0.0.1 as=0":                     "is no number of an AS",
		"10.0.0.1 as=23456":                 "is no number of an AS",
		"10.0.0.1 as=65535":                 "is no number of an AS",
		"10.0.0.1 as=4294967295":            "is no number of an AS",
		"10.0.0.1 as=4294967296":            "is no number of an AS",
		"10.0.0.1 as=1 as=2":                "duplicate as",
		"10.0.0.1 as=1 port=0":              "is no port",
		"10.0.0.1 as=1 port=65536":          "is no port",
		"10.0.0.1 as=1 password=x":          `unknown "password=x"`,
		"10.0.0.1 as=1 password-file=x":     "is no absolute path",
		"10.0.0.1 as=1 10.0.0.2":            `unknown "10.0.0.2"`,
		"10.0.0.1:179 as=1":                 "is no address of a router",
		"10.0.0.0/24 as=1":                  "is no address of a router",
		"10.0.0.1 as=1 " + "password-file=": "is no absolute path",
	} {
		if _, err := ParsePeer(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v instead of %q", text, err, want)
		}
	}
}

func FuzzParsePeer(f *testing.F) {
	f.Add("10.0.0.254 as=64500 port=179 password-file=/p")
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := ParsePeer(text); err == nil && (!p.Address.IsValid() || p.AS == 0 || p.Port == 0) {
			t.Errorf("%+v", p)
		}
	})
}

func TestPasswords(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	others := "/etc/hostname" // root's
	if os.Geteuid() == 0 {
		others = file("others", "secret", 0o600)
		if err := os.Chown(others, 1, 1); err != nil {
			t.Fatal(err)
		}
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := Peers([]string{"10.0.0.1 as=1 password-file=" + file("good", "secret word\n", 0o400), "10.0.0.2 as=1"})
	if err != nil || all[0].password != "secret word" || all[1].password != "" {
		t.Errorf("%+v, %v", all, err)
	}
	for path, want := range map[string]string{
		file("open", "secret", 0o640):                               "may be read by others: chmod 600",
		file("empty", "\n", 0o600):                                  "has no password",
		file("long", strings.Repeat("x", longestPassword+1), 0o600): "has no password",
		file("lines", "a\nb\n", 0o600):                              "has no password",
		dir:                                                         "is no regular file",
		others:                                                      "belongs to another user: chown",
		fifo:                                                        "is no regular file",
		filepath.Join(dir, "gone"):                                  "no such file",
	} {
		if _, err := Peers([]string{"10.0.0.1 as=1 password-file=" + path}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v instead of %q", path, err, want)
		}
	}
	if _, err := Peers([]string{"10.0.0.1 as=1", "10.0.0.1 as=2"}); err == nil || !strings.Contains(err.Error(), "there are two") {
		t.Errorf("the same peer twice: %v", err)
	}
	if _, err := Peers(nil); err == nil {
		t.Error("no peer is good enough")
	}
}

// Each reason says what to do.
func TestReasons(t *testing.T) {
	s := &session{Peer: Peer{Address: netip.MustParseAddr("10.0.0.1"), AS: 64500, Port: 179}, as: 64512}
	for want, got := range map[string]string{
		"this node refuses the session: code 2(open) subcode 3": s.rejected(2, 3),
		"it refuses the session":                                s.reason(api.PeerState_DISCONNECT_REASON_INVALID_MSG, ""),
		"another AS of this node than 64512":                    s.rejected(5, 1),
		"its AS is not 64500: correct as=":                      s.rejected(2, 2),
		"its AS is not 64500":                                   s.reason(api.PeerState_DISCONNECT_REASON_BAD_PEER_AS, "bad-peer-as"),
		"it refuses this node's AS 64512": s.reason(api.PeerState_DISCONNECT_REASON_NOTIFICATION_RECEIVED,
			"notification-received code 2(open) subcode 2(bad peer as)"),
		"it has ended the session: code 6(cease)":   s.reason(api.PeerState_DISCONNECT_REASON_NOTIFICATION_RECEIVED, "notification-received code 6(cease)"),
		"nothing was heard from it for 30s":         s.reason(api.PeerState_DISCONNECT_REASON_HOLD_TIMER_EXPIRED, ""),
		"start the router, or correct port=":        s.unreachable("dial tcp 10.0.0.1:179: connect: connection refused"),
		"or expects a password":                     s.unreachable("dial tcp 10.0.0.1:179: i/o timeout"),
		"connect to 10.0.0.1:179: no route to host": s.unreachable("dial tcp 0.0.0.0:0->10.0.0.1:179: connect: no route to host"),
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q instead of %q", got, want)
		}
	}
	s.password, s.PasswordFile = "x", "/p"
	if got := s.unreachable("i/o timeout"); !strings.Contains(got, "its password for this node is not that of /p") {
		t.Errorf("%q", got)
	}
}

func TestRouterID(t *testing.T) {
	for want, hops := range map[string][]netip.Addr{
		"10.0.0.1":     {netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.0.0.1")},
		"10.104.70.95": {netip.MustParseAddr("fd00::1")},
	} {
		if id, err := routerID(routes.New(hops, nil, nil)); err != nil || id.String() != want {
			t.Errorf("%v: %s, %v", hops, id, err)
		}
	}
	if _, err := routerID(routes.New(nil, nil, nil)); err == nil {
		t.Error("a node without addresses has a router ID")
	}
}
