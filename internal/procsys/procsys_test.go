package procsys

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/ownthread"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make network namespaces: run them as root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

const ttl = "net/ipv4/ip_default_ttl"

func read(dir string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, ttl))
	return strings.TrimSpace(string(b)), err
}

// Each thread gets a namespace with a value of its own, and finds that when all have written
// theirs, by whichever instance.
func eachItsOwn(t *testing.T, p *Instances) {
	t.Helper()
	const threads = 2*uses + 3
	host, err := read("/proc/sys")
	if err != nil {
		t.Fatal(err)
	}
	var written, all sync.WaitGroup
	written.Add(threads)
	for i := range threads {
		all.Go(func() {
			want := fmt.Sprint(100 + i)
			err := ownthread.Run(func() error {
				err := unix.Unshare(unix.CLONE_NEWNET)
				if err == nil {
					err = p.Use(func(dir string) error { return os.WriteFile(filepath.Join(dir, ttl), []byte(want), 0) })
				}
				written.Done()
				written.Wait()
				return errors.Join(err, p.Use(func(dir string) error {
					if got, err := read(dir); err != nil || got != want {
						return fmt.Errorf("%s is %q, %v, want %s", dir, got, err, want)
					}
					return nil
				}))
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if is, err := read("/proc/sys"); err != nil || is != host {
		t.Errorf("the host's is %q, %v, was %q", is, err, host)
	}
}

func TestUseIsOfTheThreadsNamespace(t *testing.T) {
	var p Instances
	none := descriptors(t)
	own := func(dir string) error {
		if dir == "/proc/sys" {
			t.Error("no instance of our own")
		}
		return nil
	}
	if err := p.Use(own); err != nil {
		t.Error(err)
	}
	before := descriptors(t)
	for range 3 {
		eachItsOwn(t, &p)
		if after := descriptors(t); after != before {
			t.Errorf("%d descriptors, %d before", after, before)
		}
	}
	p.Close()
	if after := descriptors(t); after != none {
		t.Errorf("%d descriptors after Close, %d before the first use", after, none)
	}
}

func TestCloseDuringUse(t *testing.T) {
	var p Instances
	none := descriptors(t)
	err := p.Use(func(dir string) error {
		p.Close()
		_, err := read(dir)
		return err
	})
	if err != nil {
		t.Errorf("an instance in use was closed: %v", err)
	}
	if after := descriptors(t); after != none {
		t.Errorf("%d descriptors after the last use, %d before", after, none)
	}
}

// Regression: an instance that was mounted during Close stayed open, and none was mounted any more
// if that failed.
func TestCloseDuringMount(t *testing.T) {
	var p Instances
	none := descriptors(t)
	_, closes, ours := p.present()
	if !ours {
		t.Fatal("there is an instance")
	}
	fd, err := mount()
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	i := p.mounted(fd, nil, closes)
	if after := descriptors(t); i == nil || after != none+1 {
		t.Errorf("%d descriptors in use, %d before", after, none)
	}
	p.put(i)
	if after := descriptors(t); after != none {
		t.Errorf("%d descriptors after the last use, %d before", after, none)
	}
	_, closes, _ = p.present()
	p.Close()
	if i := p.mounted(-1, unix.ENOMEM, closes); i != nil || p.refused {
		t.Errorf("after a mount that failed: %v, refused: %t", i, p.refused)
	}
}

func TestUseWhereNothingCanBeMounted(t *testing.T) {
	p := Instances{refused: true}
	eachItsOwn(t, &p)
	dirs := func(dir string) error {
		if dir != "/proc/sys" {
			t.Errorf("directory %s", dir)
		}
		return nil
	}
	if err := p.Use(dirs); err != nil {
		t.Error(err)
	}
}

func TestUseReturnsTheError(t *testing.T) {
	var p Instances
	defer p.Close()
	failed := errors.New("failed")
	if err := p.Use(func(string) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
}
