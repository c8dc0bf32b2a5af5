package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/raft/v3"
	"golang.org/x/sys/unix"
)

// lockDirectory makes sure that one process at a time has its data in dir. etcd itself would wait
// for the other to go away, without a word.
func lockDirectory(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock etcd's directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := make([]byte, 16)
		n, _ := f.Read(holder)
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			pid, _ := strconv.Atoi(strings.TrimSpace(string(holder[:n]))) // 0 if it has not written it yet
			return nil, &HeldError{PID: pid, dir: dir}
		}
		return nil, fmt.Errorf("cannot lock %s: %w", f.Name(), err)
	}
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprintln(f, os.Getpid())
	}
	return f, nil
}

// HeldError says which process uses the data in a directory.
type HeldError struct {
	PID int
	dir string
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("process %d runs a cluster on %s already; stop it, or choose another --root", e.PID, e.dir)
}

// Lock keeps other processes from using the etcd with its data in dir/etcd until it is closed. Its
// error names the one that does.
func Lock(dir string) (io.Closer, error) {
	dir = filepath.Join(dir, "etcd")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return lockDirectory(dir)
}

// whole says whether both halves of etcd's data are there, or none. With a database but no log,
// etcd would begin a new log, and skip all writes until its index has come to the database's. A
// database with no writes is all that a first start leaves which was cut short, or could not reach
// the other members.
func whole(dir string) error {
	db := filepath.Join(dir, "member", "snap", "db")
	info, err := os.Stat(db)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if logs, _ := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal")); len(logs) > 0 {
		return opens(db)
	}
	if info.Size() == 0 {
		return nil
	}
	return inspect(db, true, func(tx *bolt.Tx) error {
		if index := field(tx, schema.Meta.Name(), schema.MetaConsistentIndexKeyName); len(bytes.Trim(index, "\x00")) > 0 {
			return errors.New("its write-ahead log is missing")
		}
		return nil
	})
}

// opens says whether the database can be opened and is no newer than this etcd.
func opens(db string) error { return inspect(db, true, notNewer) }

// inspect reads the database with f, without changing it. With walk it goes through all pages but
// those of values first, and panics where they make no sense: in a goroutine of etcd's own that
// would end the process.
func inspect(db string, walk bool, f func(*bolt.Tx) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // a file that was cut is mapped beyond its end
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("its database: %v", r)
		}
	}()
	opened, err := bolt.Open(db, 0o600, &bolt.Options{ReadOnly: true, PreLoadFreelist: walk})
	if err != nil {
		return err
	}
	return errors.Join(opened.View(f), opened.Close())
}

// compare finds a log whose end is lost, which looks to etcd like one that ends sooner: a leader
// commits the whole log first, so then the database cannot be ahead. If it is, etcd would skip all
// writes until its log has come to where the database is. It is called when there is a leader.
//
// The first commit that etcd tells of is no such moment: it may be an entry of an earlier leader,
// read from the log up to where the log says that it is committed, and that is written with the
// next entry. Nor is the answer to a read: the only member of a cluster answers with what is
// committed so far.
func (s *Server) compare(ctx context.Context) {
	again := time.NewTicker(campaignEvery)
	defer again.Stop()
	for {
		written, ok := s.written()
		if !ok {
			return
		}
		if logged, all := committed(); all {
			// Raft's state may be that of another server, if one was started just now.
			if logged = max(logged, s.etcd.Server.CommittedIndex()); written > logged {
				s.behind <- fmt.Errorf("its write-ahead log ends at entry %d, and its database is at %d", logged, written)
			}
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}

// written is the last entry that the database has, unless it was closed.
func (s *Server) written() (index uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, false
	}
	index, _ = schema.ReadConsistentIndex(s.etcd.Server.Backend().ReadTx())
	return index, true
}

// committed returns the last entry that is committed, and whether that is the end of the log that
// the leader has found.
func committed() (index uint64, all bool) {
	status, ok := raftStatus()
	return status.Commit, ok && status.RaftState == raft.StateLeader && status.Commit >= status.Progress[status.ID].Match
}

// startGuarded starts etcd and turns what would end the process into errors. After such an error
// goroutines of etcd's remain that wait for the one that ended; the process is expected to end too.
func startGuarded(c *settings, j *journal) (*member, error) {
	type outcome struct {
		etcd *member
		err  error
	}
	done := make(chan outcome, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				err, ok := r.(error)
				if !ok {
					err = fmt.Errorf("%v", r)
				}
				done <- outcome{err: err}
			}
		}()
		e, err := startMember(c)
		done <- outcome{e, err}
	}()
	select {
	case o := <-done:
		return o.etcd, o.err
	case err := <-j.died:
		return nil, err
	}
}

// damaged says what a start that failed with err means for who runs the cluster. p is nil for a
// member without peers.
func damaged(dir string, p *Peers, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) {
		return fmt.Errorf("etcd cannot use %s: %w", dir, err)
	}
	if errors.Is(err, ErrNewer) {
		return fmt.Errorf(
			"the cluster's data in %s cannot be used: %w; install the release that ran last again, or go back to a snapshot of before: 'coracle "+
				"snapshot restore FILE'", dir, err,
		)
	}
	// An older copy would lack entries that the member has acknowledged to the others, and an empty
	// directory also its vote. One that goes on without the others has only itself to agree with.
	if p != nil && !p.Force {
		return fmt.Errorf(
			"this control-plane node's copy of the cluster's data in %s cannot be read, it seems damaged (%w); the other control-plane nodes have "+
				"the data: run 'coracle node remove %s' on one of them and 'coracle leave --force' here, and join again; do not put an older copy back",
			dir, err, p.Name,
		)
	}
	return fmt.Errorf(
		"the cluster's data in %s cannot be read, it seems damaged (%w); put a copy of the directory back, or move it away to begin with an "+
			"empty cluster", dir, err,
	)
}
