package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/pki"
)

// testMember is a member on loopback, with credentials of the authority of its bundle.
type testMember struct {
	*Server
	name, dir, url string
	files          pki.EtcdFiles
	board          *health.Board
	log            *slog.Logger
	alone          chan struct{} // gets a value whenever it is alone
}

func newTestMember(t *testing.T, name string, b *pki.Bundle) *testMember {
	t.Helper()
	files, err := b.EtcdPeer([]string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return &testMember{name: name, dir: shortDir(t), url: "https://" + l.Addr().String(), files: files}
}

func (m *testMember) start(ctx context.Context) (err error) {
	m.board = &health.Board{}
	o := m.options()
	o.MembersHealth = m.board.Add("members")
	if m.alone != nil {
		o.alone, o.Alone = time.Nanosecond, func() error {
			select {
			case m.alone <- struct{}{}:
			default:
			}
			return nil
		}
	}
	m.Server, err = Start(ctx, o)
	return err
}

func (m *testMember) options() Options {
	return Options{Dir: m.dir, State: filepath.Join(m.dir, "run"), PeerCA: m.files.CACert, PeerPair: m.files.Pair, Log: m.log}
}

func (m *testMember) mustStart(t *testing.T) {
	t.Helper()
	if err := m.start(t.Context()); err != nil {
		t.Fatalf("%s: %v", m.name, err)
	}
}

func (m *testMember) put(ctx context.Context, key string) error {
	c := m.Client()
	defer c.Close()
	_, err := c.Put(ctx, key, m.name)
	return err
}

func (m *testMember) has(ctx context.Context, t *testing.T, key string) {
	t.Helper()
	c := m.Client()
	defer c.Close()
	if got, err := c.Get(ctx, key); err != nil || got.Count != 1 {
		t.Errorf("%s does not have %s: %v, %v", m.name, key, got, err)
	}
}

func testBundle(t *testing.T) *pki.Bundle {
	t.Helper()
	b, err := pki.Ensure(t.TempDir(), "https://127.0.0.1:6443", []string{"127.0.0.1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Regression: a member with others was told to put a copy of its data back, or to begin with none:
// it would have forgotten what it had acknowledged to the others.
func TestDamagedDataOfAMemberWithPeers(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, member string){
		"database": func(t *testing.T, member string) { scramble(t, filepath.Join(member, "snap", "db")) },
		"log": func(t *testing.T, member string) {
			logs, _ := filepath.Glob(filepath.Join(member, "wal", "*.wal"))
			for _, log := range logs {
				scramble(t, log)
			}
		},
		"no log": func(t *testing.T, member string) { _ = os.RemoveAll(filepath.Join(member, "wal")) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newTestMember(t, "one", testBundle(t))
			m.takesPeers(t)
			m.mustStart(t)
			if err := m.put(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			m.Close()
			damage(t, filepath.Join(m.dir, "etcd", "member"))
			err := m.start(t.Context())
			if err == nil {
				m.Close()
			}
			if want := "run 'coracle node remove one' on one of them and 'coracle leave --force' here"; err == nil ||
				!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "move it away") {
				t.Errorf("error %v, want %s", err, want)
			}
		})
	}
}

// joinTo has m join the cluster that has the member to.
func (m *testMember) joinTo(t *testing.T, to *testMember) {
	t.Helper()
	for range 2 { // the second is that of a machine that was cut off after the first
		m.addTo(t, to)
	}
	m.mustStart(t)
}

// addTo has m added to the cluster of a member, without a start.
func (m *testMember) addTo(t *testing.T, to *testMember) {
	t.Helper()
	p, err := to.Add(t.Context(), m.name, m.url)
	if err == nil {
		err = p.Write(m.dir)
	}
	if err != nil {
		t.Fatalf("add %s: %v", m.name, err)
	}
}

// takesPeers has a lone member be one that others can join.
func (m *testMember) takesPeers(t *testing.T) {
	t.Helper()
	if err := (Peers{Name: m.name, URL: m.url}).Write(m.dir); err != nil {
		t.Fatal(err)
	}
}

func TestThreeMembers(t *testing.T) {
	b := testBundle(t)
	one, two, three := newTestMember(t, "one", b), newTestMember(t, "two", b), newTestMember(t, "three", b)
	all := []*testMember{one, two, three}
	defer func() {
		for _, m := range all {
			if m.Server != nil {
				m.Close()
			}
		}
	}()
	ctx := t.Context()

	one.mustStart(t)
	if err := one.put(ctx, "alone"); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Add(ctx, "two", two.url); !errors.Is(err, ErrAlone) {
		t.Errorf("a member without a port takes another one: %v", err)
	}
	if ticks := one.etcd.config.TickMs; ticks != 1000 {
		t.Errorf("a lone member has a clock of %d ms", ticks)
	}
	one.Close()
	one.takesPeers(t)
	one.mustStart(t)
	if c := one.etcd.config; c.TickMs != 100 || c.ElectionTicks != 5 {
		t.Errorf("a member with peers has a clock of %d ms, and elects after %d ticks", c.TickMs, c.ElectionTicks)
	}
	if _, err := one.Add(ctx, "one", two.url); !errors.Is(err, ErrMemberTaken) {
		t.Errorf("a second member of the name is added: %v", err)
	}
	for _, nowhere := range []string{"https://0.0.0.0:2380", "https://[::]:2380"} {
		if _, err := one.Add(ctx, "two", nowhere); err == nil || len(one.Members()) != 1 {
			t.Errorf("a member at %s is added: %v", nowhere, err)
		}
	}
	two.joinTo(t, one)
	three.joinTo(t, two) // by a member that does not lead
	for _, m := range three.Members() {
		if m.Learner {
			t.Errorf("%+v has no vote", m)
		}
	}
	three.has(ctx, t, "alone")

	// The leader goes; the others go on, and have all.
	leads := slices.IndexFunc(all, func(m *testMember) bool {
		return slices.ContainsFunc(three.Members(), func(n Member) bool { return n.Leader && n.Name == m.name })
	})
	gone := all[leads]
	if err := gone.put(ctx, "before"); err != nil {
		t.Fatal(err)
	}
	gone.Close()
	rest := slices.Delete(slices.Clone(all), leads, leads+1)
	all = rest
	for i, m := range rest {
		eventually(t, "a member writes without the leader", func() bool { // a write in the middle of an election fails
			return m.put(ctx, fmt.Sprint("after-", i)) == nil
		})
		m.has(ctx, t, "before")
	}
	if err := rest[0].Remove(ctx, "four"); !errors.Is(err, ErrNoMember) {
		t.Errorf("removing a member that is not there: %v", err)
	}
	gone.refusesForce(t, "2 of 3 control-plane nodes answer, and are a quorum without this one: ")
	if err := rest[0].Remove(ctx, gone.name); err != nil {
		t.Errorf("removing a member that is gone: %v", err)
	}
	for range 2 { // at first it does not know, and the others tell it
		if err := gone.start(ctx); !errors.Is(err, ErrRemoved) {
			t.Fatalf("a member that was removed while it was away starts again: %v", err)
		}
	}

	// Of two, one is no quorum. It says what to do, and can go on alone.
	last := rest[0]
	last.Close()
	last.refusesForce(t, rest[1].name+" at "+rest[1].url+" of the other control-plane nodes answers, and is a quorum together with this one")
	want := "other control-plane nodes run the cluster: " + rest[1].name + " at " + rest[1].url
	if err := CheckAlone(ctx, last.options()); err == nil || err.Error() != want {
		t.Errorf("other data may be put in the place of its own: %v, want %q", err, want)
	}
	last.mustStart(t)
	rest[1].Close()
	all = rest[:1]
	refused, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := last.put(refused, "lost"); err == nil {
		t.Error("one of two members writes alone")
	}
	eventually(t, "the last member tells that there is no quorum", func() bool {
		s := last.board.States()[0]
		return !s.Healthy && strings.Contains(s.Message, "no quorum: 1 of 2") && strings.Contains(s.Message, rest[1].name+" at "+rest[1].url) &&
			strings.Contains(s.Message, "--force-new-cluster")
	})
	last.Close()
	if err := CheckForce(ctx, last.options()); err != nil {
		t.Errorf("the last member must not go on alone: %v", err)
	}
	if err := CheckAlone(ctx, last.options()); err != nil {
		t.Errorf("the last member must not be given other data: %v", err)
	}
	p, err := ReadPeers(last.dir)
	if err != nil {
		t.Fatal(err)
	}
	p.Force = true
	if err := p.Write(last.dir); err != nil {
		t.Fatal(err)
	}
	last.mustStart(t)
	if err := last.put(ctx, "alone-again"); err != nil {
		t.Error(err)
	}
	last.has(ctx, t, "after-1")
	if p, err = ReadPeers(last.dir); err != nil || p != nil || !last.Last() {
		t.Errorf("the other members would be dropped again: %+v, %v", p, err)
	}
	if err := last.Remove(ctx, last.name); !errors.Is(err, ErrLastMember) {
		t.Errorf("removing the last member: %v", err)
	}
}

// refusesForce expects that the member must not go on without the others.
func (m *testMember) refusesForce(t *testing.T, want string) {
	t.Helper()
	if err := CheckForce(t.Context(), m.options()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s goes on without the others: %v, want %q", m.name, err, want)
	}
}

// Regression: a member that was removed while it ran ended with "etcd has stopped", and its next
// start waited for ever; a learner that had applied its own removal panicked.
func TestRemovedWhileItRuns(t *testing.T) {
	b := testBundle(t)
	one, two := newTestMember(t, "one", b), newTestMember(t, "two", b)
	one.takesPeers(t)
	one.mustStart(t)
	defer one.Close()
	two.joinTo(t, one)
	if err := one.Remove(t.Context(), "two"); err != nil {
		t.Fatal(err)
	}
	<-two.Stopped()
	if err := two.End(); !errors.Is(err, ErrRemoved) {
		t.Errorf("it ended because of %v", err)
	}
	if err := two.takePart(t.Context()); !errors.Is(err, ErrRemoved) {
		t.Errorf("a member that is becoming a voter when it is removed: %v", err)
	}
	two.Close()
	for range 2 {
		if err := two.start(t.Context()); !errors.Is(err, ErrRemoved) {
			t.Fatalf("its next start: %v", err)
		}
	}
}

// A machine with a certificate of another authority, even the cluster's own, is no member.
func TestMembersOfAnotherAuthority(t *testing.T) {
	one, other := newTestMember(t, "one", testBundle(t)), newTestMember(t, "two", testBundle(t))
	one.takesPeers(t)
	logged := filepath.Join(t.TempDir(), "log")
	log, err := os.Create(logged)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	one.log = slog.New(slog.NewTextHandler(log, nil))
	one.mustStart(t)
	defer one.Close()
	other.addTo(t, one)
	if err := other.start(t.Context()); err == nil {
		other.Close()
		t.Fatal("it became a member")
	} else if want := "next to one at " + one.url; !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "damaged") {
		t.Errorf("it says %v, want %q", err, want)
	}
	eventually(t, "the member logs whom it has refused", func() bool {
		text, err := os.ReadFile(logged)
		return err == nil && strings.Contains(string(text), "refused a connection to the port for members") &&
			strings.Contains(string(text), "remote=127.0.0.1:")
	})
	if err := one.Remove(t.Context(), other.url); err != nil {
		t.Error(err)
	}
}

// Regression: a member whose first start did not reach the others could not be started again.
func TestAMemberThatDidNotReachTheOthers(t *testing.T) {
	b := testBundle(t)
	one, other := newTestMember(t, "one", b), newTestMember(t, "two", b)
	one.takesPeers(t)
	one.mustStart(t)
	other.addTo(t, one)
	one.Close()
	if err := other.start(t.Context()); err == nil || !strings.Contains(err.Error(), "next to one at "+one.url) {
		t.Fatalf("without the other member: %v", err)
	}
	one.mustStart(t)
	defer one.Close()
	other.mustStart(t)
	other.Close()
}

func TestWhatMembersSay(t *testing.T) {
	three := []Member{{Name: "a", URL: "https://1:2"}, {Name: "b", URL: "https://2:2", Leader: true}, {Name: "c", URL: "https://3:2"}}
	for name, c := range map[string]struct {
		answers       []bool
		leader        bool
		says, warning string
		fails         string
	}{
		"all": {[]bool{true, true, true}, true, "a, b (leads), c", "", ""},
		"one is down": {
			[]bool{true, true, false},
			true, "a, b (leads), c; c at https://3:2 does not answer",
			"c at https://3:2 does not answer: start it, or take it out", "",
		},
		"two are down":     {[]bool{true, false, false}, false, "", "", "no quorum: 1 of 3 control-plane nodes answer, and 2 have to"},
		"while they elect": {[]bool{true, false, true}, false, "", "", "no leader: 2 of 3 control-plane nodes answer, which is enough"},
	} {
		t.Run(name, func(t *testing.T) {
			says, warnings, err := describe(three, c.answers, c.leader)
			if says != c.says || !strings.HasPrefix(strings.Join(warnings, ""), c.warning) || (c.warning == "") != (len(warnings) == 0) {
				t.Errorf("%q, %q", says, warnings)
			}
			if (err != nil) != (c.fails != "") || err != nil && !strings.HasPrefix(err.Error(), c.fails) {
				t.Error(err)
			}
		})
	}
}

// Regression: a member stayed at the URL that it had joined with, whatever address its machine had,
// and said that its data were damaged when it could not listen there.
func TestMemberMoves(t *testing.T) {
	b := testBundle(t)
	one, two := newTestMember(t, "one", b), newTestMember(t, "two", b)
	one.takesPeers(t)
	one.mustStart(t)
	defer one.Close()
	two.joinTo(t, one)
	two.Close()

	taken, err := net.Listen("tcp", strings.TrimPrefix(two.url, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	want := "etcd cannot listen for its other members at " + two.url + ": "
	if err := two.start(t.Context()); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Fatalf("a start where the port is taken: %v, want %q", err, want)
	}
	p, err := ReadPeers(two.dir)
	if err != nil {
		t.Fatal(err)
	}
	to := newTestMember(t, "two", b).url
	if err := p.Move(two.dir, to); err != nil {
		t.Fatal(err)
	}
	two.mustStart(t)
	defer two.Close()
	eventually(t, "the others know the new URL", func() bool {
		return slices.ContainsFunc(one.Members(), func(m Member) bool { return m.Name == "two" && m.URL == to && !m.Learner })
	})
	if err := two.put(t.Context(), "moved"); err != nil {
		t.Error(err)
	}
	one.has(t.Context(), t, "moved")
}
