package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/coracle-project/coracle/cluster/health"
)

const (
	// lookEvery is how often the size of the database's file is looked at: two numbers in memory.
	lookEvery = 5 * time.Minute
	// A file of at least worthwhile bytes, of which at most half are in use, is written again.
	worthwhile = 64 << 20
	// That blocks reads and writes for as long as copying takes what is in use, so it waits until
	// nothing was written for quiet, at most quietTries times. Above a part of the quota it does
	// not wait.
	quiet      = time.Second
	quietTries = 60
	// roomEvery is the pause between tries to make room in a full database.
	roomEvery = 2 * time.Second
	// roomPart is how much of the quota must be free before writes are allowed again, as
	// 1/roomPart.
	roomPart = 20
	// copySpare is what the disk must have beyond a copy of the database.
	copySpare = 16 << 20
	// snapshotMethod is how gRPC calls the request for a snapshot.
	snapshotMethod = "/etcdserverpb.Maintenance/Snapshot"
)

// errBusy is for a moment when defragmenting would block others for long.
var errBusy = errors.New("a snapshot is being read, and defragmenting waits for its end")

// space keeps the database's file small, and makes room when it has reached its quota.
//
// etcd refuses writes then, and goes on refusing them until an operator compacts, defragments and
// takes back the alarm. All three are done here, at the first write that was refused.
type space struct {
	server *etcdserver.EtcdServer
	dir    string
	quota  int64
	health *health.Part
	log    *slog.Logger
	every  time.Duration // between tries to make room
	// full gets a value when a write was refused for lack of space.
	full chan struct{}
	// snapshots is held for reading while a snapshot is sent.
	snapshots *sync.RWMutex

	stop  context.CancelFunc
	ended chan struct{}
}

// keepSpace starts it. If the database is full from the start, it tries to make room before it
// returns: who opens the database has something to write.
func keepSpace(ctx context.Context, server *etcdserver.EtcdServer, dir string, snapshots *sync.RWMutex, o Options) *space {
	s := &space{
		server: server, dir: dir, quota: o.quota(), health: o.Health, log: o.Log, every: cmp.Or(o.pause, roomEvery),
		full: make(chan struct{}, 1), snapshots: snapshots, ended: make(chan struct{}),
	}
	s.health.Works(s.fine())
	if s.alarmed() {
		if err := s.makeRoom(ctx); err != nil {
			s.health.Fails(err)
			s.noticeFull()
		}
	}
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	go s.run(ctx)
	return s
}

func (s *space) close() {
	s.stop()
	<-s.ended
}

func (s *space) run(ctx context.Context) {
	defer close(s.ended)
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			if s.wasteful() && (s.large() || s.awaitQuiet(ctx)) {
				if err := s.defragment(); err != nil && !errors.Is(err, errBusy) {
					s.log.Warn("etcd cannot be defragmented", "err", err)
					s.health.Notes(err.Error())
				}
			}
		case <-s.full:
			s.untilRoom(ctx)
		}
	}
}

// noticeFull is called for each write that was refused. It never waits.
func (s *space) noticeFull() {
	select {
	case s.full <- struct{}{}:
	default:
	}
}

// untilRoom returns when writes are allowed again. Deleting objects is what an operator has to do
// meanwhile.
func (s *space) untilRoom(ctx context.Context) {
	again := time.NewTicker(s.every)
	defer again.Stop()
	said := ""
	for {
		err := s.makeRoom(ctx)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			return
		}
		s.health.Fails(err)
		if err.Error() != said {
			s.log.Error("writes are refused", "err", err)
			said = err.Error()
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}

// makeRoom drops all old versions of objects, gives the space back to the disk, and takes the alarm
// back. Clients that watch from an old version list again. An error says why writes are still
// refused, and what to do.
func (s *space) makeRoom(ctx context.Context) error {
	if !s.alarmed() && s.server.Backend().Size() < s.target() {
		return nil // another write has noticed it, too
	}
	began := time.Now()
	request := &pb.CompactionRequest{Revision: s.server.KV().Rev(), Physical: true}
	if _, err := s.server.Compact(ctx, request); err != nil && !errors.Is(err, mvcc.ErrCompacted) {
		return fmt.Errorf("the store is full, and compacting it failed: %w", err)
	}
	s.commit()
	if used := s.server.Backend().SizeInUse(); used >= s.target() {
		return fmt.Errorf("the store is full: %s of %s are in use by objects. Nothing can be created or changed, reading and deleting go on. "+
			"Delete objects that are not needed any more, such as old Jobs, Secrets and custom resources: below %s writes go on by themselves",
			size(used), size(s.quota), size(s.target()))
	}
	if s.server.Backend().Size() >= s.target() {
		if err := s.defragment(); err != nil {
			return fmt.Errorf("the store is full, and defragmenting it failed: %w", err)
		}
	}
	for _, alarm := range s.server.Alarms() {
		if alarm.Alarm != pb.AlarmType_NOSPACE {
			continue
		}
		request := &pb.AlarmRequest{MemberID: alarm.MemberID, Action: pb.AlarmRequest_DEACTIVATE, Alarm: pb.AlarmType_NOSPACE}
		if _, err := s.server.Alarm(ctx, request); err != nil {
			return fmt.Errorf("the store was full, and taking the alarm back failed: %w", err)
		}
	}
	s.health.Works(s.fine())
	s.health.Notes(fmt.Sprintf("the store was full; room was made in %v", time.Since(began).Round(time.Millisecond)))
	s.log.Warn("the store was full; room was made", "took", time.Since(began), "size", s.server.Backend().Size(), "quota", s.quota)
	return nil
}

// defragment writes the database again without the pages that are free. No one reads or writes
// meanwhile.
func (s *space) defragment() error {
	if !s.snapshots.TryLock() { // etcd would wait for it, holding what reads and writes need
		return errBusy
	}
	defer s.snapshots.Unlock()
	s.commit()
	backend := s.server.Backend()
	need := backend.SizeInUse() + copySpare
	var disk unix.Statfs_t
	if err := unix.Statfs(s.dir, &disk); err != nil {
		return fmt.Errorf("stat file system of %s: %w", s.dir, err)
	}
	if free := int64(disk.Bavail) * disk.Bsize; free < need {
		return fmt.Errorf("defragment %s: the disk has %s, a copy needs %s: free some", filepath.Join(s.dir, "member"), size(free), size(need))
	}
	before, began := backend.Size(), time.Now()
	if err := s.server.Defragment(); err != nil {
		return fmt.Errorf("defragment %s: %w", filepath.Join(s.dir, "member"), err)
	}
	s.log.Info("etcd defragmented", "before", before, "after", backend.Size(), "blocked", time.Since(began))
	return nil
}

// sending holds a lock while a snapshot is sent.
func sending(lock *sync.RWMutex) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		if info.FullMethod == snapshotMethod {
			lock.RLock()
			defer lock.RUnlock()
		}
		return handle(server, stream)
	}
}

// commit brings what was written into the file, and the counters up to date.
func (s *space) commit() { s.server.KV().Commit() }

func (s *space) alarmed() bool {
	return slices.ContainsFunc(s.server.Alarms(), func(a *pb.AlarmMember) bool { return a.Alarm == pb.AlarmType_NOSPACE })
}

// target is the size below which writes are allowed again.
func (s *space) target() int64 { return s.quota - s.quota/roomPart }

func (s *space) wasteful() bool {
	b := s.server.Backend()
	return b.Size() >= worthwhile && 2*b.SizeInUse() <= b.Size()
}

// large says that the quota is near.
func (s *space) large() bool { return s.server.Backend().Size() > s.quota/4*3 }

// awaitQuiet returns true when nothing was written for a moment.
func (s *space) awaitQuiet(ctx context.Context) bool {
	tick := time.NewTicker(quiet)
	defer tick.Stop()
	last := s.server.KV().Rev()
	for range quietTries {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
		now := s.server.KV().Rev()
		if now == last {
			return true
		}
		last = now
	}
	return false
}

func (s *space) fine() string { return fmt.Sprintf("%s, at most %s", s.dir, size(s.quota)) }

func size(bytes int64) string { return humanize.IBytes(uint64(bytes)) }

// noticing passes writes on, and tells of those that were refused for lack of space.
type noticing struct {
	pb.KVServer
	full func()
}

func (n noticing) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	answer, err := n.KVServer.Put(ctx, r)
	n.look(err)
	return answer, err
}

func (n noticing) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	answer, err := n.KVServer.Txn(ctx, r)
	n.look(err)
	return answer, err
}

func (n noticing) look(err error) {
	if errors.Is(err, rpctypes.ErrGRPCNoSpace) {
		n.full()
	}
}
