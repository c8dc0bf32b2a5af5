package integration

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/integration/faultproxy"
	"github.com/coracle-project/coracle/internal/testkit"
)

// Whatever is killed, a container that runs from a lazy layer goes on, and reads on.
func TestLazyKilled(t *testing.T) {
	killLazy := func(n *node) { n.t.Helper(); killAll(n, n.Lazies()) }
	for _, v := range []victim{
		{"coracled", killDaemon},
		{"coracle-lazy", killLazy},
		{"keeper", killKeeper},
		{"coracled then coracle-lazy", func(n *node) { killDaemon(n); killLazy(n) }},
		{"coracled then keeper", func(n *node) { killDaemon(n); killKeeper(n) }},
	} {
		t.Run(v.name, func(t *testing.T) {
			r := newLazyRig(t)
			n := r.node(t, testkit.Options{NoSupervise: true})
			r.warm(n)
			check := n.noLeaks()
			p, c := r.start(n)
			for round := range 2 { // reads of files 0 and 1, then 2 and 3
				if !r.reads(c, 2*round) {
					t.Error("cannot read before")
				}
				v.kill(n)
				if n.PID() == 0 {
					if err := n.Start(); err != nil {
						t.Fatal(err)
					}
				}
				n.ready()
				if !r.reads(c, 2*round+1) {
					t.Error("cannot read after")
				}
				within(t, time.Minute, "coracle-lazy is there", func() bool { return len(n.Lazies()) == 1 })
			}
			r.release()
			landed(n)
			v.kill(n)
			if n.PID() == 0 {
				if err := n.Start(); err != nil {
					t.Fatal(err)
				}
			}
			n.ready()
			r.end(p, c, 4)
			check()
		})
	}
}

// coracled dies while it makes an ordinary layer of a lazy one, and the next goes on.
func TestLazyKilledAtEachFaultPoint(t *testing.T) {
	for _, point := range testkit.FaultPointsOf(t, testkit.DaemonExe, "image.lazy.") {
		t.Run(point, func(t *testing.T) {
			r := newLazyRig(t)
			faults := testkit.NewFaults(t)
			n := r.node(t, testkit.Options{Faults: true, Env: faults.Env()})
			r.warm(n)
			check := n.noLeaks()
			p, c := r.start(n)
			gone, err := testkit.WatchExit(n.PID())
			if err != nil {
				t.Fatal(err)
			}
			faults.Arm(point, "kill")
			r.release()
			select {
			case <-gone:
			case <-time.After(time.Minute):
				t.Fatal("the fault point was not reached")
			}
			n.ready()
			landed(n)
			r.end(p, c, 0)
			check()
		})
	}
}

// end reads a file of a layer that is unpacked now, which the registry has no part in any more, and
// removes all.
func (r *lazyRig) end(p *pod, c *container, file int) {
	p.n.t.Helper()
	r.spoil(func(*http.Request) faultproxy.Fault { return faultproxy.Fault{Reset: true} })
	if !r.reads(c, file) {
		p.n.t.Error("cannot be read when it is unpacked")
	}
	p.remove()
	r.remove(p.n)
}

// A read that waits for the registry when the process is killed gets its answer from the next.
func TestLazyKilledWhileReading(t *testing.T) {
	r := newLazyRig(t)
	n := r.node(t, testkit.Options{})
	p, c := r.start(n)
	asked, hold := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(asked) })
	r.spoil(func(req *http.Request) faultproxy.Fault {
		if !isBlob(req) {
			return faultproxy.Fault{}
		}
		once()
		return faultproxy.Fault{Hold: hold}
	})
	read := make(chan bool, 1)
	go func() { read <- r.reads(c, 3) }()
	<-asked
	killAll(n, n.Lazies())
	r.spoil(nil)
	close(hold)
	if !<-read {
		t.Error("the read failed")
	}
	p.remove()
}

// With the keeper and the process gone at once no one has the mount any more: what runs from it
// ends or gets errors and can be taken down, and the layer is pulled again.
func TestLazyLost(t *testing.T) {
	r := newLazyRig(t)
	n := r.node(t, testkit.Options{NoSupervise: true})
	p, _ := r.start(n)
	killDaemon(n)
	killKeeper(n)
	killAll(n, n.Lazies())
	r.release()
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	n.ready()
	p.remove()
	// The image went with its layer, and comes again.
	_, c := r.start(n)
	if !r.reads(c, 0) {
		t.Error("cannot be read when pulled again")
	}
	landed(n)
}

// While the registry is away, what is here can be read, what is not is an error, and all can be
// taken down.
func TestLazyRegistryAway(t *testing.T) {
	for name, away := range map[string]faultproxy.Fault{
		"reset":  {Reset: true},
		"denied": {Status: http.StatusUnauthorized},
		"silent": {Hold: make(chan struct{})},
	} {
		t.Run(name, func(t *testing.T) {
			r := newLazyRig(t)
			n := r.node(t, testkit.Options{})
			r.warm(n)
			check := n.noLeaks()
			p, c := r.start(n)
			if !r.reads(c, 0) {
				t.Error("cannot be read with the registry there")
			}
			r.spoil(func(*http.Request) faultproxy.Fault { return away })
			if !r.reads(c, 0) {
				t.Error("what was read cannot be read again")
			}
			if r.reads(c, 1) {
				t.Error("what is not here can be read")
			}
			log, err := os.ReadFile(filepath.Join(n.State, "shim", "lazy", "lazy.log"))
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{r.ref, r.Host(), "noise1"} {
				if !strings.Contains(string(log), want) {
					t.Errorf("the log of coracle-lazy does not name %s:\n%s", want, log)
				}
			}
			r.spoil(nil)
			if !r.reads(c, 1) {
				t.Error("cannot be read with the registry back")
			}
			r.spoil(func(*http.Request) faultproxy.Fault { return away })
			p.remove()
			r.remove(n)
			check()
		})
	}
}

// A chunk that is not what the table of contents says is an error, not content.
func TestLazyCorruptChunk(t *testing.T) {
	r := newLazyRig(t)
	n := r.node(t, testkit.Options{})
	p, c := r.start(n)
	if !r.reads(c, 1) { // and with it the program that reads is here
		t.Error("cannot be read")
	}
	r.spoil(func(req *http.Request) faultproxy.Fault {
		if isBlob(req) {
			return faultproxy.Fault{Break: faultproxy.Corrupt, At: 1000}
		}
		return faultproxy.Fault{}
	})
	if r.reads(c, 0) {
		t.Error("a corrupt chunk can be read")
	}
	r.spoil(nil)
	if !r.reads(c, 0) {
		t.Error("cannot be read when the registry is right again")
	}
	p.remove()
}

// A blob that is not what its digest says does not become a layer, and its image goes.
func TestLazyCorruptBlob(t *testing.T) {
	r := newLazyRig(t)
	n := r.node(t, testkit.Options{})
	p, _ := r.start(n)
	r.spoil(func(req *http.Request) faultproxy.Fault {
		if isBlob(req) {
			return faultproxy.Fault{Break: faultproxy.Corrupt, At: 300}
		}
		return faultproxy.Fault{}
	})
	r.release()
	within(t, time.Minute, "the image is dropped", func() bool {
		list, err := n.Images.ListImages(n.ctx(), &cri.ListImagesRequest{Filter: &cri.ImageFilter{Image: &cri.ImageSpec{Image: r.ref}}})
		return err == nil && len(list.GetImages()) == 0
	})
	if got := wholeDirs(n); len(got) > 0 {
		t.Errorf("layers %v", got)
	}
	p.remove()
}
