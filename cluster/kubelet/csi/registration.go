package csi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/version"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	// mostSockets bounds how many sockets are looked at.
	mostSockets = 256
	// registerTimeout bounds a call to a registrar.
	registerTimeout = 10 * time.Second
	// A registration that failed is tried again after firstTry, then after twice as long each time.
	firstTry = 200 * time.Millisecond
	lastTry  = time.Minute
)

// socket is a registrar's socket, from when it is seen until it is gone.
type socket struct {
	path string
	// born tells it from another of the same name.
	born born
	end  context.CancelFunc
	// driver is what it has registered, nil before that. Node.mu guards it.
	driver *driver
}

type born struct {
	inode uint64
	time  unix.Timespec
}

func (n *Node) socketDir() string { return filepath.Join(n.opts.RootDir, "plugins_registry") }

// watchSockets registers what has a socket in plugins_registry, until ctx ends. If it cannot watch
// the directory, it looks from time to time.
func (n *Node) watchSockets(ctx context.Context) {
	for wait := time.Second; ctx.Err() == nil; wait = min(2*wait, lastTry) {
		began := time.Now()
		err := n.followSockets(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > lastTry {
			wait = time.Second
		}
		n.opts.Log.Warn("csi: drivers that start now are seen late", "dir", n.socketDir(), "err", err)
		if err := n.lookForSockets(ctx); err != nil {
			n.opts.Log.Warn("csi: drivers' sockets cannot be listed", "dir", n.socketDir(), "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

var errWatchEnded = errors.New("the directory was removed or moved away")

// followSockets looks whenever the directory changes.
func (n *Node) followSockets(ctx context.Context) error {
	if err := os.MkdirAll(n.socketDir(), 0o750); err != nil {
		return err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("inotify: %w (fs.inotify.max_user_instances may be too low)", err)
	}
	queue := os.NewFile(uintptr(fd), "inotify")
	defer queue.Close()
	// The directory above, too: one that was removed tells of it only when the last socket in it is
	// closed, and drivers hold theirs open.
	const wanted = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF |
		unix.IN_ONLYDIR
	var watched unix.Stat_t
	if err := unix.Stat(n.socketDir(), &watched); err != nil {
		return &os.PathError{Op: "stat", Path: n.socketDir(), Err: err}
	}
	for _, dir := range []string{n.opts.RootDir, n.socketDir()} {
		if _, err := unix.InotifyAddWatch(fd, dir, wanted); err != nil {
			return &os.PathError{Op: "inotify", Path: dir, Err: err}
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = queue.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var events [4096]byte
	for {
		var now unix.Stat_t
		if err := unix.Stat(n.socketDir(), &now); err != nil || now.Ino != watched.Ino || now.Dev != watched.Dev {
			return errWatchEnded
		}
		if err := n.lookForSockets(ctx); err != nil {
			return err
		}
		read, err := queue.Read(events[:])
		if err != nil {
			return fmt.Errorf("inotify: %w", err)
		}
		if watchEnded(events[:read]) {
			return errWatchEnded
		}
	}
}

// watchEnded says whether the events tell that the directory is not watched any more: another one
// of its name may exist already.
func watchEnded(events []byte) bool {
	for len(events) >= unix.SizeofInotifyEvent {
		mask, size := binary.NativeEndian.Uint32(events[4:]), binary.NativeEndian.Uint32(events[12:])
		if mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0 {
			return true
		}
		events = events[min(len(events), unix.SizeofInotifyEvent+int(size)):]
	}
	return false
}

// lookForSockets compares the directory with what is known: sockets that are new are registered,
// drivers of those that are gone are forgotten.
func (n *Node) lookForSockets(ctx context.Context) error {
	found, err := n.findSockets()
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, s := range n.sockets {
		if b, is := found[name]; !is || b != s.born {
			s.end()
			delete(n.sockets, name)
			n.deregisterLocked(s)
		}
	}
	for name, b := range found {
		if n.sockets[name] != nil {
			continue
		}
		life, end := context.WithCancel(ctx)
		s := &socket{path: filepath.Join(n.socketDir(), name), born: b, end: end}
		if !n.startLocked(func() { n.register(life, s) }) {
			end()
			return nil
		}
		n.sockets[name] = s
	}
	return nil
}

func (n *Node) findSockets() (map[string]born, error) {
	dir, err := os.Open(n.socketDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	list, err := dir.Readdirnames(16 * mostSockets)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	found := map[string]born{}
	for _, name := range list {
		var s unix.Stat_t
		if strings.HasPrefix(name, ".") || unix.Fstatat(int(dir.Fd()), name, &s, unix.AT_SYMLINK_NOFOLLOW) != nil ||
			s.Mode&unix.S_IFMT != unix.S_IFSOCK {
			continue
		}
		if len(found) == mostSockets {
			n.opts.Log.Warn("csi: too many sockets, some are not looked at", "dir", n.socketDir(), "most", mostSockets)
			break
		}
		found[name] = born{inode: s.Ino, time: s.Ctim}
	}
	return found, nil
}

// deregisterLocked forgets what a socket has registered. Another registration of the same driver
// stays.
func (n *Node) deregisterLocked(s *socket) {
	if s.driver == nil {
		return
	}
	name := s.driver.name
	all := n.drivers[name]
	for i, d := range all {
		if d == s.driver {
			all = append(all[:i:i], all[i+1:]...)
			break
		}
	}
	n.drivers[name] = all
	s.driver = nil
	var heir *driver
	if len(all) > 0 {
		heir = all[len(all)-1]
	} else {
		delete(n.drivers, name)
		n.opts.Log.Info("csi: driver gone; its volumes stay as they are", "driver", name)
	}
	n.startLocked(func() { n.state.withdraw(name, s, heir) })
}

// register asks a registrar about its driver, and the driver about this node, until that succeeds
// or the socket is gone.
func (n *Node) register(ctx context.Context, s *socket) {
	for wait := firstTry; ; wait = min(2*wait, lastTry) {
		err := n.tryRegister(ctx, s)
		if err == nil || ctx.Err() != nil || errors.Is(err, errNotCSI) {
			return
		}
		n.opts.Log.Warn("csi: driver not registered yet", "socket", s.path, "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// errNotCSI is of a registrar of something else.
var errNotCSI = errors.New("this kubelet registers CSI drivers only")

func (n *Node) tryRegister(ctx context.Context, s *socket) error {
	conn, err := dial(s.path)
	if err != nil {
		return err
	}
	defer conn.Close()
	registrar := registerapi.NewRegistrationClient(conn)
	call, cancel := context.WithTimeout(ctx, registerTimeout)
	info, err := registrar.GetInfo(call, &registerapi.InfoRequest{}, grpc.WaitForReady(false))
	cancel()
	if err != nil {
		return err
	}
	d, err := n.describe(s, info)
	if err == nil {
		err = d.ask(ctx)
	}
	if err == nil {
		err = n.state.publish(ctx, d)
	}
	if err == nil && !n.admit(ctx, s, d) {
		return ctx.Err()
	}
	answer := &registerapi.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		answer.Error = err.Error()
	}
	call, cancel = context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	if _, e := registrar.NotifyRegistrationStatus(call, answer); e != nil {
		n.opts.Log.Warn("csi: a registrar could not be told of its registration", "socket", s.path, "err", e)
	}
	return err
}

// describe checks what a registrar says.
func (n *Node) describe(s *socket, info *registerapi.PluginInfo) (*driver, error) {
	if info.GetType() != registerapi.CSIPlugin {
		return nil, fmt.Errorf("plugin of type %.40q: %w", info.GetType(), errNotCSI)
	}
	if err := checkDriverName(info.GetName()); err != nil {
		return nil, err
	}
	if err := checkVersions(info.GetSupportedVersions()); err != nil {
		return nil, fmt.Errorf("driver %s: %w", info.GetName(), err)
	}
	d := &driver{name: info.GetName(), endpoint: strings.TrimPrefix(info.GetEndpoint(), "unix://"), root: n.opts.RootDir, from: s}
	if d.endpoint == "" {
		d.endpoint = s.path
	}
	if !filepath.IsAbs(d.endpoint) || strings.ContainsRune(d.endpoint, 0) {
		return nil, fmt.Errorf("driver %s: endpoint %.200q is not the absolute path of a socket", d.name, info.GetEndpoint())
	}
	d.endpoint = filepath.Clean(d.endpoint)
	// A driver says by its endpoint where it has the kubelet's directory.
	if rest, ok := strings.CutPrefix(d.endpoint, kubeletDir+"/"); ok && !strings.HasPrefix(d.endpoint, n.opts.RootDir+"/") {
		d.endpoint, d.root = filepath.Join(n.opts.RootDir, rest), kubeletDir
	}
	return d, nil
}

// checkVersions wants one of CSI 1.x.
func checkVersions(all []string) error {
	for _, text := range all {
		if v, err := version.ParseGeneric(text); err == nil && v.Major() == 1 {
			return nil
		}
	}
	return fmt.Errorf("none of the versions specified %.200q are supported: this kubelet has CSI 1.x", all)
}

// admit makes a driver known, unless its socket has gone meanwhile, and goes on with all that waits
// for it.
func (n *Node) admit(ctx context.Context, s *socket, d *driver) bool {
	n.mu.Lock()
	if ctx.Err() != nil {
		var heir *driver
		if all := n.drivers[d.name]; len(all) > 0 {
			heir = all[len(all)-1]
		}
		n.startLocked(func() { n.state.withdraw(d.name, s, heir) })
		n.mu.Unlock()
		return false
	}
	s.driver = d
	n.drivers[d.name] = append(n.drivers[d.name], d)
	n.mu.Unlock()
	n.opts.Log.Info("csi: driver registered", "driver", d.name, "endpoint", d.endpoint, "node", d.nodeID)
	n.wake(driverKey(d.name))
	n.sweep(d.name)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.startLocked(func() {
		if object, err := n.driverObject(n.life, d.name); err == nil {
			n.state.follow(d, object)
		}
	})
	return true
}
