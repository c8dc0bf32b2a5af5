package pod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/internal/cgstat"
	"github.com/coracle-project/coracle/internal/nspin"
	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/shim/client"
	"github.com/coracle-project/coracle/snapshot"
)

type fakeImages struct{ *hands }

func (s fakeImages) Get(ref string) (image.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	img, ok := s.images[ref]
	if !ok {
		return img, image.ErrNotFound
	}
	return img, nil
}

type fakeSnapshots struct{ *hands }

func (s fakeSnapshots) Prepare(ctx context.Context, id string, o snapshot.PrepareOptions) (snapshot.Snapshot, error) {
	snap := snapshot.Snapshot{ID: id, Target: o.Target, Upper: "/upper/" + id}
	return snap, s.do(ctx, "snapshots.Prepare", func() error {
		s.snapshots[id] = o.Target
		s.users[id] = o.Users
		s.labels[id] = o.Label
		s.layers[id] = o.Layers
		if files := s.contents[layersKey(o.Layers)]; files != nil {
			return os.CopyFS(o.Target, files)
		}
		if err := os.MkdirAll(filepath.Join(o.Target, "etc"), 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(o.Target, "etc/passwd"), []byte("app:x:33:44::/home/app:/bin/sh\n"), 0o644)
	})
}

func (s fakeSnapshots) Remove(ctx context.Context, id string) error {
	return s.do(ctx, "snapshots.Remove", func() error { return s.drop(id) })
}

func (s fakeSnapshots) drop(id string) error {
	if p := s.procs[id]; p != nil && p.state != client.StateStopped {
		return fmt.Errorf("snapshot %s removed under a container that is %s", id, p.state)
	}
	target := s.snapshots[id]
	delete(s.snapshots, id)
	if target == "" {
		return nil
	}
	return os.RemoveAll(target)
}

func (s fakeSnapshots) Usage(ctx context.Context, _ string) (snapshot.Usage, error) {
	return snapshot.Usage{Bytes: 4096, Inodes: 2}, s.do(ctx, "snapshots.Usage", func() error { return nil })
}

func (s fakeSnapshots) Changes(ctx context.Context, id string, to io.Writer) error {
	return s.do(ctx, "snapshots.Changes", func() error {
		_, err := io.WriteString(to, "changes of "+id)
		return err
	})
}

func (s fakeSnapshots) AddLayer(ctx context.Context, _ string, archive io.ReadSeeker) (digest.Digest, func(context.Context) error, error) {
	b, err := io.ReadAll(archive)
	if err != nil {
		return "", nil, err
	}
	release := func(ctx context.Context) error { return s.do(ctx, "snapshots.release", func() error { return nil }) }
	return digest.FromBytes(b), release, s.do(ctx, "snapshots.AddLayer", func() error { return nil })
}

func (s fakeSnapshots) Recover(ctx context.Context, claimed []string) error {
	return s.do(ctx, "snapshots.Recover", func() error {
		for id := range s.snapshots {
			if !slices.Contains(claimed, id) {
				if err := s.drop(id); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// layersKey is a key for a list of layers.
func layersKey(layers []digest.Digest) string { return fmt.Sprint(layers) }

type fakeNetwork struct{ *hands }

func (s fakeNetwork) Setup(ctx context.Context, p network.Pod) (network.Result, error) {
	r := network.Result{IPs: []netip.Addr{netip.MustParseAddr("10.1.2.3")}}
	return r, s.do(ctx, "network.Setup", func() error {
		s.networks[p.ID] = p
		return nil
	})
}

func (s fakeNetwork) Teardown(ctx context.Context, p network.Pod) error {
	return s.do(ctx, "network.Teardown", func() error {
		delete(s.networks, p.ID)
		return nil
	})
}

func (s fakeNetwork) Ready(ctx context.Context) error {
	return s.do(ctx, "network.Ready", func() error { return nil })
}

func (s fakeNetwork) Recover(ctx context.Context, claimed []string) error {
	return s.do(ctx, "network.Recover", func() error {
		maps.DeleteFunc(s.networks, func(id string, _ network.Pod) bool { return !slices.Contains(claimed, id) })
		return nil
	})
}

func (s fakeNetwork) Leases() []network.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []network.Lease
	for id := range s.networks {
		all = append(all, network.Lease{PodID: id})
	}
	return all
}

func (s fakeNetwork) SetPodCIDR(ctx context.Context, ranges []netip.Prefix) error {
	return s.do(ctx, "network.SetPodCIDR", func() error {
		s.ranges = ranges
		return nil
	})
}

type fakeMeter struct{ *hands }

func (s fakeMeter) Cgroup(ctx context.Context, _ string) (cgstat.Usage, error) {
	u := cgstat.Usage{
		Time: time.Now(), CPU: cgstat.CPU{Total: 7}, Memory: cgstat.Memory{WorkingSet: 10, Limit: 100}, Tasks: 2,
	}
	return u, s.do(ctx, "meter.Cgroup", func() error { return nil })
}

func (s fakeMeter) Processes(ctx context.Context, _ string, first int) (cgstat.Processes, error) {
	return cgstat.Processes{Count: 1, OpenFiles: uint64(first)}, s.do(ctx, "meter.Processes", func() error { return nil })
}

func (s fakeMeter) Interfaces(ctx context.Context, _ string) ([]network.InterfaceUsage, error) {
	return []network.InterfaceUsage{{Name: "eth0", RxBytes: 5}}, s.do(ctx, "meter.Interfaces", func() error { return nil })
}

type fakePins struct{ *hands }

func (s fakePins) Root(dir string) error { return os.MkdirAll(dir, 0o711) }

func (s fakePins) Create(ctx context.Context, dir string, spec nspin.Spec) (nspin.Set, error) {
	var set nspin.Set
	return set, s.do(ctx, "pins.Create", func() error {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return err
		}
		s.pins[dir] = true
		for _, ns := range []struct {
			want bool
			name string
			path *string
		}{
			{spec.Net, "net", &set.Net},
			{spec.IPC, "ipc", &set.IPC},
			{spec.UTS, "uts", &set.UTS},
			{len(spec.Users.UIDs) > 0, "user", &set.User},
		} {
			if !ns.want {
				continue
			}
			*ns.path = filepath.Join(dir, ns.name)
			if err := os.WriteFile(*ns.path, nil, 0o600); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s fakePins) SetHostname(pin, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hostnames[pin] = name
	return nil
}

func (s fakePins) Remove(ctx context.Context, dir string) error {
	return s.do(ctx, "pins.Remove", func() error {
		if _, connected := s.networks[filepath.Base(dir)]; connected {
			return errors.New("namespace removed before the network was torn down")
		}
		delete(s.pins, dir)
		return os.RemoveAll(dir)
	})
}
