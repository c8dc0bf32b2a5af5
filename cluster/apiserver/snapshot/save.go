package snapshot

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/apiserver/dataversion"
	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
)

// dialTimeout is how long an etcd that runs may take to answer.
const dialTimeout = 5 * time.Second

// Save writes a snapshot of the cluster in root into a new file at path. The cluster may run, with
// its socket in state; if it does not, etcd is started for as long as it takes.
func Save(ctx context.Context, root, state, path string, f Facts, progress Progress, log *slog.Logger) (Facts, error) {
	if _, err := os.Lstat(path); err == nil {
		return f, fmt.Errorf("%s exists: choose another name, or remove it", path)
	}
	if _, err := os.Stat(database(root)); err != nil {
		return f, fmt.Errorf("there is no cluster's data in %s: %w", root, err)
	}
	endpoint, stop, err := endpointOf(ctx, root, state, log)
	if err != nil {
		return f, err
	}
	defer stop()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: dialTimeout, Logger: zap.NewNop()})
	if err != nil {
		return f, fmt.Errorf("etcd at %s: %w", endpoint, err)
	}
	defer client.Close()

	part, name, err := newFile(path)
	if err != nil {
		return f, err
	}
	defer part.Close()
	defer name.drop()
	f.Format, f.Created = format, time.Now().UTC().Truncate(time.Second)
	if err := f.versions(ctx, client, endpoint); err != nil {
		return f, fmt.Errorf("which versions wrote the cluster's data: %w", err)
	}
	if err := fill(ctx, part, client, root, f, progress); err != nil {
		return f, fmt.Errorf("snapshot to %s: %w", path, err)
	}
	if f.Size, err = part.Seek(0, io.SeekEnd); err != nil {
		return f, err
	}
	if err := errors.Join(ctx.Err(), part.Sync()); err != nil {
		return f, err
	}
	if err := name.publish(path); err != nil {
		return f, err
	}
	return f, syncDir(filepath.Dir(path))
}

func database(root string) string { return filepath.Join(root, "etcd", "member", "snap", "db") }

// endpointOf returns where the cluster's etcd is reached, and starts it if it does not run. The
// socket in state may be another cluster's, whose objects must not be saved with our keys: the
// process that listens there has to be the one that has locked root.
func endpointOf(ctx context.Context, root, state string, log *slog.Logger) (endpoint string, stop func(), err error) {
	lock, err := etcd.Lock(root)
	if held := (*etcd.HeldError)(nil); errors.As(err, &held) {
		socket := etcd.Socket(state)
		switch listener, err := listener(ctx, socket); {
		case err != nil:
			return "", nil, fmt.Errorf("process %d runs the cluster in %s, and its etcd is not reached: %w: give its --state", held.PID, root, err)
		case listener != held.PID:
			return "", nil, fmt.Errorf("the etcd at %s, process %d, is of another cluster than that in %s, process %d: give its --state", socket,
				listener, root, held.PID)
		}
		return "unix://" + socket, func() {}, nil
	}
	if err != nil {
		return "", nil, err
	}
	_ = lock.Close() // etcd takes it
	if err := Recover(root); err != nil {
		return "", nil, err
	}
	switch peers, err := etcd.ReadPeers(root); {
	case err != nil:
		return "", nil, err
	case peers != nil: // alone it has no quorum, and cannot tell what the others have
		return "", nil, fmt.Errorf("this machine's member of etcd has peers and does not run: save on a control-plane node that runs; if none is left, "+
			"copy %s and %s before 'coracle up --force-new-cluster'", filepath.Join(root, "etcd"), filepath.Join(root, "pki"))
	}
	short, err := os.MkdirTemp("", "coracle-etcd-") // a socket's path is short
	if err != nil {
		return "", nil, err
	}
	remove := func() { _ = os.RemoveAll(short) }
	server, err := etcd.Start(ctx, etcd.Options{Dir: root, State: short, Log: log})
	if err != nil {
		remove()
		return "", nil, err
	}
	return server.Endpoint, func() { server.Close(); remove() }, nil
}

// versions are those that wrote the data, which may be later ones than ours. Data that do not say
// it count as ours.
func (f *Facts) versions(ctx context.Context, client *clientv3.Client, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	status, err := client.Status(ctx, endpoint)
	if err != nil {
		return err
	}
	found, err := client.Get(ctx, dataversion.Key)
	if err != nil {
		return err
	}
	wrote := dataversion.Own(f.Coracle)
	if found.Count > 0 {
		var noted dataversion.Versions
		if err := json.Unmarshal(found.Kvs[0].Value, &noted); err == nil && noted.Kubernetes != "" {
			wrote = noted
		}
	}
	f.Coracle, f.Kubernetes, f.Etcd = wrote.Coracle, wrote.Kubernetes, cmp.Or(status.Version, etcd.Version)
	return nil
}

// fill writes the archive.
func fill(ctx context.Context, w io.Writer, client *clientv3.Client, root string, f Facts, progress Progress) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewMaintenanceClient(client.ActiveConnection()).Snapshot(ctx, &pb.SnapshotRequest{})
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	const sum = 32 // the SHA-256 that etcd sends last, and does not count
	size := int64(len(first.Blob)) + int64(first.RemainingBytes) + sum
	done := int64(0)
	a, err := newArchive(w, f, func(n int) {
		done += int64(n)
		progress(min(done, size), size)
	})
	if err != nil {
		return err
	}
	if err := a.add(databaseName, size, &blobs{stream: stream, rest: first.Blob}); err != nil {
		return err
	}
	for _, name := range keys {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return err
		}
		if err := a.add(name, int64(len(data)), bytes.NewReader(data)); err != nil {
			return err
		}
	}
	return a.close()
}

// blobs reads what etcd sends.
type blobs struct {
	stream pb.Maintenance_SnapshotClient
	rest   []byte
}

func (b *blobs) Read(p []byte) (int, error) {
	for len(b.rest) == 0 {
		message, err := b.stream.Recv()
		if err != nil {
			return 0, err // io.EOF after the last
		}
		b.rest = message.Blob
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// listener is the process that listens on a socket.
func listener(ctx context.Context, socket string) (pid int, err error) {
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var perr error
	err = raw.Control(func(fd uintptr) { peer, perr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, perr); err != nil {
		return 0, fmt.Errorf("who listens on %s: %w", socket, err)
	}
	return int(peer.Pid), nil
}

// unpublished is a file that is being written.
type unpublished struct {
	name    string // of a descriptor, or in its directory
	unnamed bool
}

// newFile makes a file of mode 0600 for path. Where the file system can, it has no name yet:
// nothing is left of it when we are killed.
func newFile(path string) (*os.File, unpublished, error) {
	dir := filepath.Dir(path)
	if fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600); err == nil {
		return os.NewFile(uintptr(fd), path), unpublished{name: fmt.Sprintf("/proc/self/fd/%d", fd), unnamed: true}, nil
	}
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".part-*")
	if err != nil {
		return nil, unpublished{}, err
	}
	return f, unpublished{name: f.Name()}, nil
}

func (u unpublished) drop() {
	if !u.unnamed {
		_ = os.Remove(u.name) // unless it was published
	}
}

func (u unpublished) publish(path string) error {
	if !u.unnamed {
		return publish(u.name, path)
	}
	if err := unix.Linkat(unix.AT_FDCWD, u.name, unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW); err != nil {
		return &os.LinkError{Op: "link", Old: u.name, New: path, Err: err}
	}
	return nil
}

// publish gives a file its name, unless there is one of that name.
func publish(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // the file system cannot
		if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w", to, errors.Join(err, fs.ErrExist))
		}
		return os.Rename(from, to)
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}
