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
	// reopen is the pause before the next try to open a file that could not be opened: nothing tells
	// when it can.
	reopen = 10 * time.Second
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
	said     string           // what was logged last of the file
}

func newAnnouncing(o speaker.Options) *announcing {
	a := &announcing{options: o}
	a.file = a.board.Add("BGP")
	a.options.Board = &a.board
	return a
}

// announce announces what the file in dir says until ctx ends.
func announce(ctx context.Context, dir string, o speaker.Options) error {
	a := newAnnouncing(o)
	if err := a.open(ctx, dir); err != nil {
		return err
	}
	defer a.close()
	if err := giveUpRoot(); err != nil {
		return fmt.Errorf("give up root's rights: %w", err)
	}
	defer time.AfterFunc(calm, func() { slim(o.Log) }).Stop()
	return a.run(ctx)
}

// run announces until ctx ends, or announcing fails. The supervisor starts the program again then,
// so peers keep the routes.
func (a *announcing) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	mux := http.NewServeMux()
	mux.Handle(health.Path, health.Handler(&a.board))
	serving := make(chan error, 1)
	go func() { serving <- health.Serve(ctx, a.listener, mux) }()
	err := a.follow(ctx)
	cancel() // the socket has nothing more to tell
	return errors.Join(err, a.end(err != nil), <-serving)
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
		later, err := a.read(ctx)
		if err != nil {
			return err
		}
		for changed := false; !changed; {
			select {
			case <-ctx.Done():
				return nil
			case e := <-a.changes.Events:
				changed = filepath.Base(e.Name) == routes.File
			case <-later:
				changed = true
			case err := <-a.changes.Errors: // events may be lost
				a.options.Log.Warn("watch the routes", "err", err)
				changed = true
			}
		}
	}
}

// read announces what the file says now. What was announced before stays if the file is missing,
// damaged or cannot be opened; later tells when to open it again, nil if a change of it tells.
func (a *announcing) read(ctx context.Context) (later <-chan time.Time, err error) {
	f, err := a.dir.Open(routes.File)
	if errors.Is(err, fs.ErrNotExist) {
		a.wait("the cluster's process has not written the routes of this node yet")
		return nil, nil
	}
	if err != nil {
		a.fails(err)
		return time.After(reopen), nil
	}
	defer func() { _ = f.Close() }()
	r, err := routes.Decode(f)
	if err != nil {
		a.fails(fmt.Errorf("%s is damaged: %w", routes.File, err))
		return nil, nil
	}
	switch {
	case a.speaker != nil:
		err = a.speaker.Set(r)
	case len(r.NextHops) == 0:
		a.wait("the node is not registered yet")
		return nil, nil
	default:
		a.speaker = speaker.New(a.options)
		err = a.speaker.Start(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	a.said = ""
	a.file.Works(fmt.Sprintf("AS %d announces %s", a.options.AS, health.Count(len(r.Prefixes), "route")))
	return nil, nil
}

// fails is for a file that does not say what to announce. That is logged once until it does.
func (a *announcing) fails(err error) {
	a.file.Fails(err)
	if a.said != err.Error() {
		a.said = err.Error()
		a.options.Log.Error("routes are not announced", "err", err)
	}
}

func (a *announcing) wait(why string) {
	if a.speaker == nil {
		a.file.Fails(errors.New(why))
	}
}

// end ends the sessions. Peers keep the routes if another process follows: if restart says so, or
// the file for it is there.
func (a *announcing) end(restart bool) error {
	if a.speaker == nil {
		return nil
	}
	how := speaker.Withdraw
	if _, err := a.dir.Stat(keepFile); err == nil || restart {
		how = speaker.Keep
	}
	a.options.Log.Info("sessions end", "peersKeepRoutes", how == speaker.Keep)
	return a.speaker.Stop(how)
}

// slim returns to the kernel what the start has needed.
func slim(log *slog.Logger) {
	debug.FreeOSMemory()
	if err := programpages.Drop(); err != nil {
		log.Debug("more of the program than it uses stays in memory", "err", err)
	}
}
