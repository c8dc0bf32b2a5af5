// Command coracle-lazy shows layers that are being pulled lazily: a FUSE server, for all such
// layers of a node, that coracled has the keeper start when the first is wanted. It is not for
// users. Package image/lazy has the whole story.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/coracle-project/coracle/image/lazy/server"
	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/internal/logfile"
)

func main() {
	fault.Main()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "coracle-lazy:", err)
		os.Exit(1)
	}
}

// gcPercent is less than Go's 100, since most of the memory is what is kept of chunks.
const gcPercent = 50

func run() error {
	keeperDir := flag.String("keeper", "", "directory of the keeper's socket")
	name := flag.String("name", "", "what the keeper calls this program")
	fd := flag.Uint("listen-fd", 0, "descriptor of the socket to serve")
	flag.Parse()
	if *keeperDir == "" || *name == "" || *fd == 0 || flag.NArg() > 0 {
		return errors.New("coracled starts this program, with -keeper, -name and -listen-fd")
	}
	out, err := logfile.Stderr(filepath.Join(*keeperDir, filepath.Base(*name), filepath.Base(*name)+".log"))
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(out, nil))
	slog.SetDefault(log) // and for package log, which go-fuse uses
	debug.SetGCPercent(gcPercent)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// It is not inherited by anything that we start.
	syscall.CloseOnExec(int(*fd))
	socket := os.NewFile(uintptr(*fd), "socket")
	l, err := net.FileListener(socket)
	if err != nil {
		return fmt.Errorf("listen on descriptor %d: %w", *fd, err)
	}
	h, err := newHolder(*keeperDir, *name, socket, log)
	if err != nil {
		return err
	}
	s := server.New(h, log)
	h.takeOver(s)
	go h.watch(ctx, s)
	return serve(ctx, l, s)
}

// serve answers coracled until ctx ends. Mounts stay: who comes next goes on with them.
func serve(ctx context.Context, l net.Listener, s *server.Server) error {
	srv := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	s.Close()
	return srv.Close()
}
