package etcd

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

const tinyQuota = 4 << 20

// tiny starts a server with a tiny quota, whose board is returned.
func tiny(t *testing.T, dir string) (s *Server, client *clientv3.Client, board *health.Board, stop func()) {
	t.Helper()
	board = &health.Board{}
	s, err := Start(t.Context(), Options{
		Dir: dir, State: filepath.Join(dir, "run"), Quota: tinyQuota, Health: board.Add("store"), pause: 10 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	client = s.Client()
	stop = sync.OnceFunc(func() {
		_ = client.Close()
		s.Close()
	})
	t.Cleanup(stop)
	return s, client, board, stop
}

// write writes values of 64 KiB under the keys that key returns until a write is refused for lack
// of space.
func write(t *testing.T, s *Server, c *clientv3.Client, key func(i int) string) (written int) {
	t.Helper()
	value := strings.Repeat("x", 64<<10)
	for i := range 2 * tinyQuota / len(value) {
		_, err := c.Put(t.Context(), key(i), value)
		s.etcd.Server.KV().Commit() // the quota is compared with what is in the file
		if errors.Is(err, rpctypes.ErrNoSpace) {
			return i
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the quota was never reached")
	return 0
}

func put(t *testing.T, c *clientv3.Client) error {
	t.Helper()
	_, err := c.Put(t.Context(), "small", "1")
	return err
}

// eventually waits until ask says yes: a part of the server has noticed something, which nothing
// tells.
func eventually(t *testing.T, what string, ask func() bool) {
	t.Helper()
	testkit.Eventually(t.Context(), t, what, func() (bool, error) { return ask(), nil })
}

func same(int) string { return "/registry/same" }

func different(i int) string { return fmt.Sprintf("/registry/%d", i) }

// Old versions of objects fill the store: by itself etcd would refuse writes for good.
func TestFullOfOldVersions(t *testing.T) {
	s, client, board, _ := tiny(t, shortDir(t))
	s.space.close()
	write(t, s, client, same)
	eventually(t, "etcd says that it is full", s.space.alarmed)
	if !errors.Is(put(t, client), rpctypes.ErrNoSpace) {
		t.Fatal("etcd alone did not stay full, so nothing is tested")
	}
	if got, err := client.Get(t.Context(), same(0)); err != nil || got.Count != 1 {
		t.Errorf("reading from a full store: %v, %v", got, err)
	}
	var again health.Board
	s.space = keepSpace(t.Context(), s.etcd.Server, s.space.dir, s.space.snapshots,
		Options{Quota: tinyQuota, Health: again.Add("store"), Log: s.space.log})
	if err := put(t, client); err != nil || s.space.alarmed() {
		t.Errorf("after room was made: %v", err)
	}
	if state := again.States()[0]; !state.Healthy || !strings.Contains(state.LastError, "room was made") {
		t.Errorf("state %+v", state)
	}
	if state := board.States()[0]; !state.Healthy || !strings.Contains(state.Message, "at most 4.0 MiB") {
		t.Errorf("state before %+v", state)
	}
	// And while it runs, by the write that is refused.
	client = s.Client()
	defer client.Close()
	write(t, s, client, same)
	eventually(t, "writes go on", func() bool { return put(t, client) == nil })
	if got, err := client.Get(t.Context(), same(0)); err != nil || got.Count != 1 || len(got.Kvs[0].Value) != 64<<10 {
		t.Errorf("what was written is lost: %v", err)
	}
}

// Objects fill the store: it says what to do, objects can be read and deleted, and writes go on
// when enough are gone. It is no different after a restart.
func TestFullOfObjects(t *testing.T) {
	dir := shortDir(t)
	s, client, board, stop := tiny(t, dir)
	full := func(board *health.Board) func() bool {
		return func() bool {
			state := board.States()[0]
			return !state.Healthy && strings.Contains(state.Message, "the store is full") && strings.Contains(state.Message, "Delete objects")
		}
	}
	written := 0
	eventually(t, "the store says that it is full", func() bool {
		// Each refusal makes it drop old versions and free pages, until there are none.
		written += write(t, s, client, func(i int) string { return different(written + i) })
		return full(board)()
	})
	if err := put(t, client); !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Errorf("a write to a full store: %v", err)
	}
	stop()

	_, client, board, _ = tiny(t, dir)
	eventually(t, "the store says that it is full after a restart", full(board))
	for i := range written / 4 {
		// As the API server deletes.
		answer, err := client.Txn(t.Context()).If(clientv3.Compare(clientv3.Version(different(i)), ">", 0)).Then(clientv3.OpDelete(different(i))).
			Else(clientv3.OpGet(different(i))).Commit()
		if err != nil || !answer.Succeeded {
			t.Fatalf("deleting from a full store: %v, %v", answer, err)
		}
	}
	eventually(t, "writes go on", func() bool { return put(t, client) == nil })
	eventually(t, "the store says so", func() bool { return board.States()[0].Healthy })
	if got, err := client.Get(t.Context(), "/registry/", clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil ||
		got.Count < int64(written-written/4) || got.Count > int64(written-written/4)+1 {
		// The last write may have been done although it was refused.
		t.Errorf("%d objects of %d are left, %v", got.Count, written-written/4, err)
	}
}

// What is mostly free is written again, when no one writes and no snapshot is being read.
func TestDefragmentation(t *testing.T) {
	dir := shortDir(t)
	s := start(t, dir)
	defer s.Close()
	client := s.Client()
	defer client.Close()
	value := strings.Repeat("x", 1<<20)
	for range worthwhile / len(value) {
		if _, err := client.Put(t.Context(), "a", value); err != nil {
			t.Fatal(err)
		}
	}
	s.space.commit()
	if s.space.wasteful() {
		t.Error("a file that is in use is called wasteful")
	}
	if _, err := client.Compact(t.Context(), s.etcd.Server.KV().Rev(), clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	s.space.commit()
	before := s.etcd.Server.Backend().Size()
	if !s.space.wasteful() {
		t.Fatalf("%d of %d bytes are in use, and that is not called wasteful", s.etcd.Server.Backend().SizeInUse(), before)
	}
	if !s.space.awaitQuiet(t.Context()) {
		t.Error("nothing is written, and that is not called quiet")
	}
	dialled, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer dialled.Close()
	reading, err := dialled.Snapshot(t.Context()) // 64 MiB are more than is on its way
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reading.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := s.space.defragment(); !errors.Is(err, errBusy) {
		t.Errorf("while a snapshot is read: %v", err)
	}
	if _, err := io.Copy(io.Discard, reading); err != nil {
		t.Fatal(err)
	}
	// The reader's end comes a moment before the sender's.
	eventually(t, "defragmented", func() bool {
		err := s.space.defragment()
		if err != nil && !errors.Is(err, errBusy) {
			t.Fatal(err)
		}
		return err == nil
	})
	if after := s.etcd.Server.Backend().Size(); after > before/8 {
		t.Errorf("%d bytes before, %d after", before, after)
	}
	if got, err := client.Get(t.Context(), "a"); err != nil || got.Count != 1 || string(got.Kvs[0].Value) != value {
		t.Errorf("the last version is lost: %v", err)
	}
}

// How long reads and writes wait for a file with 100 MB of objects of 10 kB.
func BenchmarkDefragment(b *testing.B) {
	dir := b.TempDir()
	s, err := Start(b.Context(), Options{Dir: dir, State: filepath.Join("/tmp", fmt.Sprintf("etcd-bench-%d", time.Now().UnixNano()))})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	value := []byte(strings.Repeat("x", 10<<10))
	for i := range 10000 {
		if _, err := s.etcd.Server.Put(b.Context(), &pb.PutRequest{Key: []byte(different(i)), Value: value}); err != nil {
			b.Fatal(err)
		}
	}
	s.space.commit()
	for b.Loop() {
		if err := s.space.defragment(); err != nil {
			b.Fatal(err)
		}
	}
}
