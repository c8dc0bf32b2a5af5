// Package shim is the parent of containers: one process for all pods of a node (or
// one per pod) that creates containers through package runtime in process, keeps
// their stdio, writes their CRI logs, and knows how they ended.
//
// It serves containerd's Runtime v2 Task API (containerd.task.v3.Task over ttrpc), so
// that containerd can use it too, and next to it the small coracle.shim.v1.Shim service
// (shim/api).
//
// # Nothing depends on the shim's life
//
// A container does not notice when its shim is killed: its stdio are named FIFOs that
// it holds open for reading and writing itself. The keeper (shim/keeper) has copies of
// the pidfd, of the FIFOs and of the terminal, and starts the next shim at once; that
// one reads the records in its state directory, takes the copies, and goes on. Bytes on
// their way into a log are neither lost nor written twice (see stage).
//
//	StateDir/
//	  shim.sock          the ttrpc socket of the current shim
//	  c/<id>/            one container: container.json, FIFOs, stages, execs
//
// # Waiting
//
// The shim never polls and holds no thread while it waits: pidfds, FIFOs, terminals
// and sockets are all in Go's network poller.
package shim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/api"
	"github.com/coracle-project/coracle/shim/containerlog"
	"github.com/coracle-project/coracle/shim/keeper"
	"github.com/coracle-project/coracle/shim/sock"
)

// Config is what a shim needs. Paths are absolute.
type Config struct {
	StateDir string
	Engine   runtime.Engine
	// KeeperDir is where the keeper's socket is; empty if there is no keeper.
	KeeperDir string
	// Name is the name under which the keeper supervises this shim.
	Name string
	Log  *slog.Logger
}

// Service is a shim. It serves both of its APIs.
type Service struct {
	cfg            Config
	log            *slog.Logger
	hold           *hold
	events         events
	oom            oomKills
	calls          calls
	garbage, pages afterwards
	owners         owners
	share          *containerlog.Share
	execs          atomic.Int64 // of all containers
	// serving ends when Serve returns.
	serving context.Context
	stop    context.CancelFunc
	done    chan struct{} // closed when Shutdown requests the end
	once    sync.Once

	mu         sync.Mutex
	containers map[string]*container
	unmanaged  map[string]*unmanaged
	creating   map[string]chan struct{} // closed when the creation has ended
}

// New makes a Service; Adopt and Serve do the work.
func New(cfg Config) *Service {
	serving, stop := context.WithCancel(context.Background())
	return &Service{
		serving: serving, stop: stop,
		cfg: cfg, log: cfg.Log,
		hold:       &hold{dir: cfg.KeeperDir, log: cfg.Log},
		garbage:    afterwards{delay: garbageDelay, do: giveBack},
		pages:      afterwards{first: pagesStart, delay: pagesDelay, do: func() { dropPages(cfg.Log) }},
		share:      containerlog.NewShare(),
		done:       make(chan struct{}),
		containers: make(map[string]*container),
		unmanaged:  make(map[string]*unmanaged),
		creating:   make(map[string]chan struct{}),
	}
}

// Serve answers requests on l until ctx ends or a client asks for the shutdown.
// Containers run on.
func (s *Service) Serve(ctx context.Context, l net.Listener) error {
	srv, err := ttrpc.NewServer(ttrpc.WithServerHandshaker(ttrpc.UnixSocketRequireSameUser()),
		ttrpc.WithUnaryServerInterceptor(s.intercept))
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	s.garbage.busy() // a start is work
	s.pages.busy()
	task.RegisterTTRPCTaskService(srv, s)
	api.RegisterShimService(srv, s)

	// Calls in progress outlive ctx: Serve waits for them.
	asked := ctx
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	background.Go(func() { s.retry(ctx) })
	background.Go(s.dropStale)
	background.Go(func() { s.hold.watch(ctx, func() { s.holdAll(l) }) })
	background.Go(func() {
		select {
		case <-asked.Done():
		case <-s.done:
		case <-ctx.Done():
		}
		s.calls.finish(lastCalls)
		cancel()
		srv.Close()
	})
	err = srv.Serve(ctx, l)
	cancel()
	background.Wait()
	s.garbage.stop()
	s.pages.stop()
	s.stop()
	s.owners.work.Wait()
	s.letGo()
	if errors.Is(err, ttrpc.ErrServerClosed) {
		return nil
	}
	return err
}

// intercept converts errors to codes, once for all methods, and counts the calls in progress.
func (s *Service) intercept(ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo,
	method ttrpc.Method,
) (any, error) {
	called := path.Base(info.FullMethod)
	if !asking[called] {
		s.garbage.busy()
		s.pages.busy()
	}
	if !lasting[called] {
		if !s.calls.begin() {
			return nil, toStatus(errEnding)
		}
		defer s.calls.end()
	}
	res, err := method(ctx, unmarshal)
	if errors.Is(err, context.Canceled) && s.calls.finishing() {
		err = errEnding // the caller did not give up
	}
	return res, toStatus(err)
}

// holdAll puts everything into a new keeper, and nothing else is left in it.
func (s *Service) holdAll(l net.Listener) {
	if u, ok := l.(*net.UnixListener); ok {
		if f, err := u.File(); err == nil {
			// If the name is no longer ours, the daemon has made another listener, and the next
			// shim must get that one.
			if named, err := sock.Named(f, s.cfg.StateDir, sock.Shim); err != nil || named {
				_ = s.hold.put("pass/"+s.cfg.Name, map[string]*os.File{"listen": f})
			}
			f.Close()
		}
	}
	for _, c := range s.all() {
		_ = c.holdFiles()
		for _, e := range c.allExecs() {
			_ = e.holdFiles()
		}
	}
	s.dropStale() // it may be the same keeper again
}

// letGo closes all files, so that the goroutines that wait on them end. It waits at most lastCalls:
// a log's disk may hang, and the process ends anyway.
func (s *Service) letGo() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		var work sync.WaitGroup
		for _, c := range s.all() {
			work.Go(c.close)
		}
		work.Wait()
	}()
	select {
	case <-closed:
	case <-time.After(lastCalls):
		s.log.Error("cannot close files of containers in time")
	}
	if k := s.hold.keeper(); k != nil {
		k.Close()
	}
}

func (s *Service) all() []*container {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*container, 0, len(s.containers))
	for _, c := range s.containers {
		all = append(all, c)
	}
	return all
}

func (s *Service) get(id string) (*container, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.containers[id]; c != nil {
		return c, nil
	}
	if u := s.unmanaged[id]; u != nil {
		return nil, u.err()
	}
	return nil, fmt.Errorf("container %s: %w", id, runtime.ErrNotFound)
}

// reserve takes id for a container to be created; add or forget ends that.
func (s *Service) reserve(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.unmanaged[id]; u != nil {
		return fmt.Errorf("%w: %w", u.err(), runtime.ErrExists)
	}
	if s.containers[id] != nil || s.creating[id] != nil {
		return fmt.Errorf("container %s: %w", id, runtime.ErrExists)
	}
	s.creating[id] = make(chan struct{})
	return nil
}

func (s *Service) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.createdLocked(id)
	delete(s.containers, id)
	delete(s.unmanaged, id)
}

func (s *Service) add(c *container) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addLocked(c)
}

// addHeldBy adds a container unless the keeper is no longer holder. After that, holdAll gives the
// container's files to each new keeper. If a new keeper came before, its holdAll may have missed
// the container.
func (s *Service) addHeldBy(holder *keeper.Keeper, c *container) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hold.keeper() != holder {
		return false
	}
	s.addLocked(c)
	return true
}

func (s *Service) addLocked(c *container) {
	s.createdLocked(c.id)
	s.containers[c.id] = c
	delete(s.unmanaged, c.id)
}

func (s *Service) createdLocked(id string) {
	if done := s.creating[id]; done != nil {
		close(done)
		delete(s.creating, id)
	}
}

// created waits for the end of a creation under way, if there is one.
func (s *Service) created(ctx context.Context, id string) error {
	s.mu.Lock()
	done := s.creating[id]
	s.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("container %s is being created: %w", id, context.Cause(ctx))
	}
}

// settleTimeout is how long a creation is waited for whose caller is gone: its processes
// are killed, but it may hang in the kernel.
const settleTimeout = 2 * time.Second

// settle waits for the end of all creations that are under way now.
func (s *Service) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	s.mu.Lock()
	ids := slices.Collect(maps.Keys(s.creating))
	s.mu.Unlock()
	for _, id := range ids {
		if err := s.created(ctx, id); err != nil {
			s.log.Warn("listed without a container", "err", err)
		}
	}
}

func (s *Service) dirOf(id string) string { return filepath.Join(s.cfg.StateDir, "c", id) }
