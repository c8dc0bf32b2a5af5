package streams

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"go.uber.org/goleak"

	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/ocispec"
	"github.com/coracle-project/coracle/pod/record"
	"github.com/coracle-project/coracle/pod/reserve"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
	"github.com/coracle-project/coracle/shim/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is when a wait gives up. Nothing is expected to take any part of it.
const patience = 2 * time.Minute

// printer is a shim whose commands print.
type printer struct {
	Shim
	late sync.WaitGroup // output that is copied after the call has returned
}

func (p *printer) Exec(ctx context.Context, r client.ExecRequest) (int32, error) {
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
	default:
		r.Streams.Stdout.Write([]byte("few"))
	}
	return 3, nil
}

// bench is a server with a ready pod and a running container.
type bench struct {
	*Server
	shim      *printer
	podID, id string
}

// newBench makes a bench whose pod has the network namespace at netns.
func newBench(t *testing.T, netns string) *bench {
	t.Helper()
	b := &bench{shim: &printer{}, podID: table.NewID(), id: table.NewID()}
	dir := t.TempDir()
	r := reserve.New(dir, slog.New(slog.DiscardHandler))
	pod := state.PodRecord{ID: b.podID, Phase: state.PodReady}
	pod.Namespaces.Net = netns
	pods := table.New("pod", (*state.PodRecord).Visible)
	pods.Add("p", table.NewEntry(b.podID, record.Dir[state.PodRecord]{}, r, pod, func(_, _ *state.PodRecord) {}))
	container := state.ContainerRecord{ID: b.id, PodID: b.podID, Phase: state.ContainerRunning}
	containers := table.New("container", (*state.ContainerRecord).Visible)
	containers.Add("c", table.NewEntry(b.id, record.Dir[state.ContainerRecord]{}, r, container, func(_, _ *state.ContainerRecord) {}))
	bundle, err := json.Marshal(specs.Spec{Process: &specs.Process{Args: []string{"run"}}})
	ok(t, err)
	ok(t, os.Mkdir(filepath.Join(dir, b.id), 0o700))
	ok(t, os.WriteFile(filepath.Join(dir, b.id, ocispec.FileName), bundle, 0o600))
	l := life.New()
	t.Cleanup(l.End)
	b.Server = New(pods, containers, b.shim, l, dir)
	return b
}

// kept is how many bytes all calls of ExecSync keep now.
func (b *bench) kept() int {
	b.output.mu.Lock()
	defer b.output.mu.Unlock()
	return b.output.used
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
