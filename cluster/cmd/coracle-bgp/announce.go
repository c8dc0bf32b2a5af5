package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/coracle-project/coracle/cluster/bgp/routes"
	"github.com/coracle-project/coracle/cluster/bgp/speaker"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/internal/programpages"
)

const (
	// keepFile in the directory says that another process follows this one: peers keep the routes.
	keepFile = "keep"
	// socketFile is where `coracle status` asks.
	socketFile = "health.sock"
	// calm is how long after the start memory is given back.
	calm = 10 * time.Second
)

// announcing is one run of the program.
type announcing struct {
	dir      *os.Root // by which it is read without root's rights
	changes  *fsnotify.Watcher
	listener net.Listener
	board    health.Board
	file     *health.Part
	options  speaker.Options
	speaker  *speaker.Speaker // nil until there is something to announce
}

// announce announces what the file in dir says until ctx ends.
func announce(ctx context.Context, dir string, o speaker.Options) error {
	a := &announcing{options: o}
	a.file = a.board.Add("BGP")
	a.options.Board = &a.board
	if err := a.open(ctx, dir); err != nil {
		return err
	}
	defer a.close()
	if err := giveUpRoot(); err != nil {
		return fmt.Errorf("give up root's rights: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle(health.Path, health.Handler(&a.board))
	serving := make(chan error, 1)
	go func() { serving <- health.Serve(ctx, a.listener, mux) }()
	defer time.AfterFunc(calm, slim).Stop()
	err := a.follow(ctx)
	return errors.Join(err, a.end(), <-serving)
}

// open opens all that only root can.
func (a *announcing) open(ctx context.Context, dir string) (err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // whatever the umask was; the directory above is root's alone
		return err
	}
	if err := os.Remove(filepath.Join(dir, keepFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	if a.dir, err = os.OpenRoot(dir); err != nil {
		return err
	}
	if a.changes, err = fsnotify.NewWatcher(); err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	if err := a.changes.Add(dir); err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	if a.listener, err = health.Listen(ctx, filepath.Join(dir, socketFile)); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return nil
}

func (a *announcing) close() {
	if a.dir != nil {
		_ = a.dir.Close()
	}
	if a.changes != nil {
		_ = a.changes.Close()
	}
	if a.listener != nil {
		_ = a.listener.Close()
	}
}

// follow announces what the file says each time that it changes, until ctx ends.
func (a *announcing) follow(ctx context.Context) error {
	for {
		if err := a.read(ctx); err != nil {
			return err
		}
		for changed := false; !changed; {
			select {
			case <-ctx.Done():
				return nil
			case e := <-a.changes.Events:
				changed = filepath.Base(e.Name) == routes.File
			case err := <-a.changes.Errors: // events may be lost
				a.options.Log.Warn("watch the routes", "err", err)
				changed = true
			}
		}
	}
}

// read announces what the file says now. What was announced before stays if the file is missing or
// damaged.
func (a *announcing) read(ctx context.Context) error {
	f, err := a.dir.Open(routes.File)
	if errors.Is(err, fs.ErrNotExist) {
		a.wait("the cluster's process has not written the routes of this node yet")
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	r, err := routes.Decode(f)
	if err != nil {
		err = fmt.Errorf("%s is damaged: %w", routes.File, err)
		a.options.Log.Error("routes are not announced", "err", err)
		a.file.Fails(err)
		return nil
	}
	switch {
	case a.speaker != nil:
		err = a.speaker.Set(r)
	case len(r.NextHops) == 0:
		a.wait("the node is not registered yet")
		return nil
	default:
		a.speaker = speaker.New(a.options)
		err = a.speaker.Start(ctx, r)
	}
	if err != nil {
		return err
	}
	a.file.Works(fmt.Sprintf("AS %d announces %d routes", a.options.AS, len(r.Prefixes)))
	return nil
}

func (a *announcing) wait(why string) {
	if a.speaker == nil {
		a.file.Fails(errors.New(why))
	}
}

// end ends the sessions.
func (a *announcing) end() error {
	if a.speaker == nil {
		return nil
	}
	how := speaker.Withdraw
	if _, err := a.dir.Stat(keepFile); err == nil {
		how = speaker.Keep
	}
	a.options.Log.Info("sessions end", "peersKeepRoutes", how == speaker.Keep)
	return a.speaker.Stop(how)
}

// slim returns to the kernel what the start has needed.
func slim() {
	debug.FreeOSMemory()
	if err := programpages.Drop(); err != nil {
		slog.Debug("more of the program than it uses stays in memory", "err", err)
	}
}
