package client

import (
	"encoding/binary"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/coracle-project/coracle/shim/keeper"
	"github.com/coracle-project/coracle/shim/sock"
)

// fakeKeeper answers each request with success and a number, and records the requests.
type fakeKeeper struct {
	value uint32

	mu  sync.Mutex
	ops []uint32
}

// The requests, see keeper/process/keeper.h.
const (
	opPut       = 1
	opSupervise = 5
	opForget    = 6
	opWho       = 7
)

func (f *fakeKeeper) asked() []uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.ops)
}

// fakeClient is a Client with a keeper that answers each request with value, and a link whose shim
// has a socket.
func fakeClient(t *testing.T, value uint32) (*Client, *link, *fakeKeeper) {
	t.Helper()
	dir := t.TempDir()
	served, err := keeper.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeKeeper{value: value}
	var work sync.WaitGroup
	serve := func(conn net.Conn) {
		defer conn.Close()
		for b := make([]byte, 1000); ; {
			if n, err := conn.Read(b); err != nil || n == 0 {
				return
			}
			f.mu.Lock()
			f.ops = append(f.ops, binary.NativeEndian.Uint32(b))
			f.mu.Unlock()
			answer := binary.NativeEndian.AppendUint32(make([]byte, 4), f.value)
			if _, err := conn.Write(append(answer, "1\x00"...)); err != nil { // INFO's answer begins with a pid
				return
			}
		}
	}
	work.Go(func() {
		for {
			conn, err := served.Accept()
			if err != nil {
				return
			}
			work.Go(func() { serve(conn) })
		}
	})
	k, err := keeper.Dial(dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{Binary: "/no/such", StateDir: dir, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	c.keeper.set(k)
	t.Cleanup(func() {
		c.keeper.close()
		served.Close()
		work.Wait()
	})
	l := newLink("node", &c.cfg)
	l.attention.timer = time.AfterFunc(time.Hour, func() {})
	t.Cleanup(l.attention.end)
	if err := os.Mkdir(l.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := sock.Listen(l.dir, sock.Shim, "unix")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return c, l, f
}

// Regression: a shim that was started while repair waited for its turn is left alone. With one shim
// per pod and many pods at once, it was killed together with its requests.
func TestRepairLeavesNewShimAlone(t *testing.T) {
	c, l, k := fakeClient(t, 0)
	before, err := os.Stat(filepath.Join(l.dir, sock.Shim))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.repair(t.Context(), l, true); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(filepath.Join(l.dir, sock.Shim))
	if err != nil || !os.SameFile(before, after) || slices.Contains(k.asked(), opPut) {
		t.Errorf("the socket was replaced: %v, requests to the keeper %v", err, k.asked())
	}
}

// A shim that has replaced the silent one while replace waited for its turn is left alone.
func TestReplaceLeavesNewShimAlone(t *testing.T) {
	const now, silent = 4_000_001, 4_000_002
	c, l, k := fakeClient(t, now)
	if err := c.replace(t.Context(), l, silent); err != nil {
		t.Fatal(err)
	}
	if asked := k.asked(); !slices.Contains(asked, opWho) || slices.Contains(asked, opPut) {
		t.Errorf("requests to the keeper %v", asked)
	}
}

// A connection to a keeper that is being made when the Client is closed does not leave the daemon
// supervised: it would be started again after its orderly end.
func TestKeeperOfClosedClientForgetsDaemon(t *testing.T) {
	c, _, k := fakeClient(t, 0)
	c.cfg.Daemon = &Respawn{Path: "/no/such", Args: []string{"daemon"}}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	closed := c.keeper.get()
	if err := c.dialKeeper(); err == nil {
		t.Error("connected")
	}
	asked := k.asked()
	supervised := slices.Index(asked, opSupervise)
	if supervised < 0 || !slices.Contains(asked[supervised:], opForget) || c.keeper.get() != closed {
		t.Errorf("requests to the keeper %v", asked)
	}
}
