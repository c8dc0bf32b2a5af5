package etcd

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// shortDir returns a directory whose name leaves room for a socket's.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "etcd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func start(t *testing.T, dir string) *Server {
	t.Helper()
	s, err := Start(t.Context(), Options{Dir: dir, State: filepath.Join(dir, "run")})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStateSurvivesARestart(t *testing.T) {
	dir := shortDir(t)
	s := start(t, dir)
	client := s.Client()
	if _, err := client.Put(t.Context(), "a", "1"); err != nil {
		t.Fatal(err)
	}
	watch := client.Watch(t.Context(), "", clientv3.WithPrefix())
	if _, err := client.Put(t.Context(), "b", "2"); err != nil {
		t.Fatal(err)
	}
	if got := <-watch; len(got.Events) != 1 || string(got.Events[0].Kv.Value) != "2" {
		t.Errorf("watch saw %+v", got)
	}
	dialled, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := dialled.Get(t.Context(), "b"); err != nil || got.Count != 1 {
		t.Errorf("through the socket: %v, %v", got, err)
	}
	_ = dialled.Close()
	_ = client.Close()
	s.Close()

	s = start(t, dir)
	defer s.Close()
	client = s.Client()
	defer client.Close()
	if got, err := client.Get(t.Context(), "a"); err != nil || got.Count != 1 || string(got.Kvs[0].Value) != "1" {
		t.Errorf("after a restart: %v, %v", got, err)
	}
}

// What a killed etcd leaves: its log says that an entry is committed when it has the next to write,
// and the database may have that entry by then.
func TestKilledWhenTheDatabaseHasAll(t *testing.T) {
	dir := shortDir(t)
	s := start(t, dir)
	client := s.Client()
	for range 10 {
		if _, err := client.Put(t.Context(), "a", "1"); err != nil {
			t.Fatal(err)
		}
	}
	s.etcd.Server.KV().Commit()
	const killed = 10
	copies := make([]string, killed)
	for i := range copies {
		copies[i] = shortDir(t)
		if err := os.CopyFS(filepath.Join(copies[i], "etcd"), os.DirFS(filepath.Join(dir, "etcd"))); err != nil {
			t.Fatal(err)
		}
	}
	_ = client.Close()
	s.Close()
	for _, dir := range copies {
		s := start(t, dir)
		client := s.Client()
		if got, err := client.Get(t.Context(), "a"); err != nil || got.Count != 1 || got.Kvs[0].Version != 10 {
			t.Errorf("after the kill: %v, %v", got, err)
		}
		_ = client.Close()
		s.Close()
	}
}

func TestDirectoriesAreClosedToOthers(t *testing.T) {
	dir := shortDir(t)
	for _, d := range []string{filepath.Join(dir, "etcd"), filepath.Join(dir, "run")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if info, err := os.Stat(d); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("%s: mode %v, %v", d, info.Mode(), err)
			}
		}()
	}
	start(t, dir).Close()
}

func TestBadStarts(t *testing.T) {
	t.Run("another process has the directory", func(t *testing.T) {
		dir := shortDir(t)
		defer start(t, dir).Close()
		_, err := Start(t.Context(), Options{Dir: dir, State: filepath.Join(dir, "other")})
		if err == nil || !strings.Contains(err.Error(), "runs a cluster on") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("socket path too long", func(t *testing.T) {
		_, err := Start(t.Context(), Options{Dir: shortDir(t), State: filepath.Join(t.TempDir(), strings.Repeat("x", 100))})
		if err == nil || !strings.Contains(err.Error(), "shorter --state") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		dir := shortDir(t)
		if s, err := Start(ctx, Options{Dir: dir, State: filepath.Join(dir, "run")}); err == nil {
			s.Close() // it was ready at once
		}
	})
	for name, damage := range map[string]func(t *testing.T, member string){
		"damaged database": func(t *testing.T, member string) { scramble(t, filepath.Join(member, "snap", "db")) },
		"damaged page of the database": func(t *testing.T, member string) {
			scrambleAfter(t, filepath.Join(member, "snap", "db"), 2*int64(os.Getpagesize()))
		},
		"damaged log": func(t *testing.T, member string) {
			logs, _ := filepath.Glob(filepath.Join(member, "wal", "*.wal"))
			for _, log := range logs {
				scramble(t, log)
			}
		},
		"end of the log lost": func(t *testing.T, member string) {
			logs, _ := filepath.Glob(filepath.Join(member, "wal", "*.wal"))
			for _, log := range logs {
				// The first page has where the log starts, and who writes it.
				if err := os.Truncate(log, 4096); err != nil {
					t.Error(err)
				}
			}
		},
		"log lost": func(t *testing.T, member string) { _ = os.RemoveAll(filepath.Join(member, "wal")) },
		"not etcd's": func(t *testing.T, member string) {
			_ = os.RemoveAll(member)
			_ = os.WriteFile(member, []byte("x"), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := shortDir(t)
			s := start(t, dir)
			client := s.Client()
			for range 10 {
				if _, err := client.Put(t.Context(), "a", strings.Repeat("1", 10000)); err != nil {
					t.Fatal(err)
				}
			}
			_ = client.Close()
			s.Close()
			damage(t, filepath.Join(dir, "etcd", "member"))
			s, err := Start(t.Context(), Options{Dir: dir, State: filepath.Join(dir, "run")})
			if err == nil {
				s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), "move it away to begin with an empty cluster") || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v", err)
			}
		})
	}
}

// The disk may be full when etcd's database is written for the first time, which is after its start
// and before it serves, in a goroutine that holds what Close waits for.
func TestGoroutineEndsBeforeItServes(t *testing.T) {
	silent := newJournal(slog.New(slog.DiscardHandler))
	s := &Server{etcd: &member{Server: &etcdserver.EtcdServer{}}, journal: silent} // never ready, cannot be closed
	go s.journal.logger().Fatal("failed to commit tx", zap.Error(&os.PathError{Op: "write", Path: "db", Err: unix.ENOSPC}))
	err := s.serves(t.Context(), "/data")
	if want := "etcd cannot use /data: failed to commit tx: write db: no space left on device"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

// scramble overwrites the first pages of a file, scrambleAfter those after an offset.
func scramble(t *testing.T, path string) {
	t.Helper()
	scrambleAfter(t, path, 0)
}

func scrambleAfter(t *testing.T, path string, offset int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte(strings.Repeat("garbage!", 2048)), offset); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// A start whose log has many entries that the database does not have: etcd cuts the log while raft
// may not know yet that they have been applied.
func TestStartsWithALongLog(t *testing.T) {
	dir := shortDir(t)
	s := start(t, dir)
	client := s.Client()
	const entries = 3 * catchUp
	for range entries {
		if _, err := client.Put(t.Context(), "a", "1"); err != nil {
			t.Fatal(err)
		}
	}
	_ = client.Close()
	s.Close()
	const starts = 40
	for i := range starts {
		s, err := Start(t.Context(), Options{Dir: dir, State: filepath.Join(dir, "run")})
		if err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
		s.Close()
	}
}

// Regression: a first start that was killed after it had made the database, and before the log,
// could not be repeated: the data seemed to be damaged, though there had never been any.
func TestAFirstStartThatWasCutShort(t *testing.T) {
	for name, make := range map[string]func(db string) error{
		"before the first page": func(db string) error { return os.WriteFile(db, nil, 0o600) },
		"without a log": func(db string) error {
			opened, err := bolt.Open(db, 0o600, nil)
			if err != nil {
				return err
			}
			return opened.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := shortDir(t)
			db := filepath.Join(dir, "etcd", "member", "snap", "db")
			if err := errors.Join(os.MkdirAll(filepath.Dir(db), 0o700), make(db)); err != nil {
				t.Fatal(err)
			}
			s := start(t, dir)
			defer s.Close()
			if _, err := s.Client().Put(t.Context(), "a", "1"); err != nil {
				t.Error(err)
			}
		})
	}
}
