package pod

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/coracle-project/coracle/image"
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
		}{{spec.Net, "net", &set.Net}, {spec.IPC, "ipc", &set.IPC}, {spec.UTS, "uts", &set.UTS}} {
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

func (s fakePins) Remove(ctx context.Context, dir string) error {
	return s.do(ctx, "pins.Remove", func() error {
		if _, connected := s.networks[filepath.Base(dir)]; connected {
			return errors.New("namespace removed before the network was torn down")
		}
		delete(s.pins, dir)
		return os.RemoveAll(dir)
	})
}
