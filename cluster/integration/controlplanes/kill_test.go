//go:build ha

package controlplanes

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

// writer creates ConfigMaps through whichever machine answers, and knows which were acknowledged.
type writer struct {
	mu    sync.Mutex
	kube  map[string]kubernetes.Interface
	next  int
	acked []string
}

// write tries once, through the machine with a name.
func (w *writer) write(ctx context.Context, through string) error {
	w.mu.Lock()
	kube, name := w.kube[through], fmt.Sprintf("write-%d", w.next)
	w.next++
	w.mu.Unlock()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := kube.CoreV1().ConfigMaps("default").Create(ctx, object, metav1.CreateOptions{})
	if err == nil {
		w.mu.Lock()
		w.acked = append(w.acked, name)
		w.mu.Unlock()
	}
	return err
}

// complete looks for all acknowledged writes through a machine.
func (w *writer) complete(ctx context.Context, t *testing.T, m *machine) {
	t.Helper()
	there := map[string]bool{}
	testkit.Eventually(ctx, t, "list through "+m.Name, func() (bool, error) {
		config := must(clientcmd.BuildConfigFromFlags("", filepath.Join(m.Root, "kubeconfig")))
		list, err := must(kubernetes.NewForConfig(config)).CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for i := range list.Items {
			there[list.Items[i].Name] = true
		}
		return true, nil
	})
	for _, name := range w.acked {
		if !there[name] {
			t.Errorf("%s was acknowledged, and %s does not have it", name, m.Name)
		}
	}
}

// kills is a series of kills under the load of clients.
type kills struct {
	all    []*machine
	agent  *machine
	loads  *clients
	writes *writer
}

func newKills(t *testing.T, all []*machine, agent *machine, loads *clients, first int) *kills {
	t.Helper()
	k := &kills{all: all, agent: agent, loads: loads, writes: &writer{kube: map[string]kubernetes.Interface{}, next: first}}
	for _, m := range all {
		k.writes.kube[m.Name] = m.kube(t)
	}
	return k
}

// strike kills something of a machine, and returns how long it was until another machine's API
// server had acknowledged a write. Then back has the machine come back, also under load. All
// machines have what was acknowledged then, and the node without a control plane has a server.
func (k *kills) strike(ctx context.Context, t *testing.T, victim *machine, kill func() int, back func()) (away time.Duration, ended int) {
	t.Helper()
	var rest []string
	for _, m := range k.all {
		if m != victim {
			rest = append(rest, m.Name)
		}
	}
	calm := sync.OnceFunc(k.loads.load())
	defer calm()
	for range 5 {
		_ = k.writes.write(ctx, victim.Name)
	}
	ended = kill()
	died := time.Now()
	for i := 0; ; i++ {
		err := k.writes.write(ctx, rest[i%len(rest)])
		if err == nil {
			break
		}
		if time.Since(died) > patience {
			t.Fatalf("%s died, and the API is away: %v\n%s", victim.Name, err, k.all[0].Logs())
		}
	}
	away = time.Since(died)
	back()
	calm()
	awaitLease(ctx, t, k.writes.kube[rest[0]], k.agent.Name)
	for _, m := range k.all {
		awaitMembers(t, m, "one", "two", "three")
	}
	for _, m := range k.all {
		k.writes.complete(ctx, t, m)
	}
	return away, ended
}

// killOneByOne kills all processes of the machines in turn. The others answer soon, and no write
// that was acknowledged is lost. The node without a control plane renews its lease through another
// server.
func killOneByOne(ctx context.Context, t *testing.T, all []*machine, agent *machine, loads *clients) {
	t.Helper()
	k := newKills(t, all, agent, loads, 1)
	var away []time.Duration
	for trial := range *trials {
		victim := all[trial%len(all)]
		took, ended := k.strike(ctx, t, victim, victim.kill, func() { victim.Must(t, "up", "--timeout", patience.String()) })
		away = append(away, took)
		t.Logf("trial %d: %s died with %d processes, the API answered after %v", trial, victim.Name, ended, took.Round(time.Millisecond))
	}
	slices.Sort(away)
	median, slowest := away[len(away)/2], away[len(away)-1]
	t.Logf("%d kills: the API answered again after %v (median), %v (slowest); %d acknowledged writes", len(away), median.Round(time.Millisecond),
		slowest.Round(time.Millisecond), len(k.writes.acked))
	if slowest > answersWithin {
		t.Errorf("the API was away for %v, more than %v", slowest, answersWithin)
	}
}

// serves checks that a machine's own API server acknowledges writes.
func (k *kills) serves(ctx context.Context, t *testing.T, m *machine) {
	t.Helper()
	for began := time.Now(); ; {
		err := k.writes.write(ctx, m.Name)
		if err == nil {
			return
		}
		if time.Since(began) > answersWithin { // one may be slow on a busy machine
			t.Errorf("%s: its own API server does not answer: %v", m.Name, err)
			return
		}
	}
}

// killEachKind kills each kind of process of each machine. What has to hold after each: another
// machine's API server answers soon, what was acknowledged is there, and
//
//	coracle-kube  its supervisor starts it again; it is a member with a vote again
//	coracled      its keeper starts it again; the machine's own API server goes on
//	supervise     coracle-kube ends with it, and nothing starts it: up does
//
// The case of all processes at once is killOneByOne.
func killEachKind(ctx context.Context, t *testing.T, all []*machine, agent *machine, loads *clients) {
	t.Helper()
	k := newKills(t, all, agent, loads, 1_000_000)
	server := programNamed("coracle-kube")
	for _, kind := range []struct {
		name string
		argv func(words []string) bool
		// serves is whether the machine's own API server goes on, up whether only up starts it again.
		serves, up bool
	}{
		{"coracle-kube", server, false, false},
		{"coracled", programNamed("coracled"), true, false},
		{"supervise", func(words []string) bool { return len(words) > 1 && words[1] == "supervise" }, false, true},
	} {
		for _, victim := range all {
			servers := victim.pids(server)
			kill := func() (ended int) {
				return victim.killIf(func(p testkit.Process) bool {
					if ended > 0 || !kind.argv(p.Args) { // not the one that takes its place
						return false
					}
					ended++
					return true
				})
			}
			took, ended := k.strike(ctx, t, victim, kill, func() {
				if kind.up {
					victim.Must(t, "up", "--timeout", patience.String())
				}
				if kind.serves {
					k.serves(ctx, t, victim)
				}
				testkit.Eventually(ctx, t, victim.Name+" is well", func() (bool, error) {
					out, said, err := victim.Run("status")
					return err == nil, fmt.Errorf("%w\n%s%s", err, out, said)
				})
			})
			if now := victim.pids(server); kind.serves && !slices.Equal(now, servers) {
				t.Errorf("%s: its API server was process %v, and is %v since %s was killed", victim.Name, servers, now, kind.name)
			}
			if ended != 1 {
				t.Fatalf("%s: %d processes are %s", victim.Name, ended, kind.name)
			}
			t.Logf("%s: %s was killed, another API server answered after %v", victim.Name, kind.name, took.Round(time.Millisecond))
			if took > answersWithin {
				t.Errorf("%s: the API was away for %v, more than %v", victim.Name, took, answersWithin)
			}
			awaitLease(ctx, t, k.writes.kube[victim.Name], victim.Name)
		}
	}
}
