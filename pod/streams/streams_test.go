package streams

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/coracle-project/coracle/pod/podtest"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/shim/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is when a wait gives up. Nothing is expected to take any part of it.
const patience = 2 * time.Minute

// printer is a shim whose commands print.
type printer struct {
	late sync.WaitGroup // output that is copied after the call has returned

	mu    sync.Mutex
	calls []string
}

func (p *printer) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, fmt.Sprintf(format, args...))
}

// asked is what the shim was asked to do, in order.
func (p *printer) asked() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

func (p *printer) Exec(ctx context.Context, r client.ExecRequest) (int32, error) {
	what := strings.Join(r.Process.Args, " ")
	if r.Process.Terminal {
		what += " on a terminal"
	}
	p.note("exec in %s/%s: %s", r.PodID, r.ID, what)
	switch r.Process.Args[0] {
	case "late":
		<-ctx.Done()
		p.late.Go(func() { r.Streams.Stdout.Write(make([]byte, 1<<20)) })
		return 0, ctx.Err()
	case "flood":
		chunk := make([]byte, 1<<20)
		for range 20 {
			r.Streams.Stdout.Write(chunk)
		}
	case "env":
		fmt.Fprint(r.Streams.Stdout, strings.Join(r.Process.Env, "\n"))
	case "sleep":
		<-ctx.Done()
		return 0, ctx.Err()
	default:
		r.Streams.Stdout.Write([]byte("few"))
	}
	return 3, nil
}

func (p *printer) Attach(_ context.Context, podID, id string, _ client.Streams) error {
	p.note("attach to %s/%s", podID, id)
	return nil
}

func (p *printer) ReopenLog(_ context.Context, podID, id string) error {
	p.note("reopen log of %s/%s", podID, id)
	return nil
}

// bench is a server with a ready pod and a running container.
type bench struct {
	*Server
	node      *podtest.Node
	shim      *printer
	podID, id string
}

// newBench makes a bench whose pod has the network namespace at netns.
func newBench(t *testing.T, netns string) *bench {
	t.Helper()
	n := podtest.NewNode(t)
	p := n.Pod(func(r *state.PodRecord) { r.Namespaces.Net = netns })
	c := n.Container(p)
	b := &bench{node: n, shim: &printer{}, podID: p.ID, id: c.ID}
	b.Server = New(n.Pods, n.Containers, b.shim, n.Life, n.Dirs.Containers().Path)
	return b
}

// kept is how many bytes all calls of ExecSync keep now.
func (b *bench) kept() int {
	b.output.mu.Lock()
	defer b.output.mu.Unlock()
	return b.output.used
}
