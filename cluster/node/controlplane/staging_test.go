package controlplane

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
)

// Regression: a join that was killed left the keys of the cluster on a machine that was no
// control-plane node, and a file by which its own etcd waited for the members of that cluster.
func TestForget(t *testing.T) {
	interrupted := func(t *testing.T, dirs ...string) (root string) {
		t.Helper()
		root = t.TempDir()
		for _, dir := range append(dirs, "pki.joining") {
			if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		err := os.WriteFile(filepath.Join(root, "pki.joining", "ca.pem"), []byte("key"), 0o600)
		if err == nil {
			err = (etcd.Peers{Name: "two", URL: "https://10.0.0.2:2380"}).Write(root)
		}
		if err != nil {
			t.Fatal(err)
		}
		return root
	}
	left := func(t *testing.T, root string) (names []string) {
		t.Helper()
		for _, name := range []string{"pki", "pki.joining", "etcd/peers.json"} {
			if _, err := os.Stat(filepath.Join(root, name)); err == nil {
				names = append(names, name)
			}
		}
		return names
	}
	t.Run("killed", func(t *testing.T) {
		root := interrupted(t)
		for range 2 {
			if err := Forget(root); err != nil {
				t.Error(err)
			}
			if got := left(t, root); len(got) > 0 {
				t.Errorf("%v are left", got)
			}
		}
	})
	t.Run("a cluster of its own", func(t *testing.T) {
		root := interrupted(t, "pki")
		if err := Forget(root); err != nil {
			t.Error(err)
		}
		if got := left(t, root); !slices.Equal(got, []string{"pki", "etcd/peers.json"}) {
			t.Errorf("%v are left", got)
		}
	})
	t.Run("running", func(t *testing.T) {
		root := interrupted(t)
		lock, err := lockStaging(stagingOf(root))
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		if err := Forget(root); !errors.Is(err, ErrJoining) {
			t.Error(err)
		}
		if got := left(t, root); !slices.Equal(got, []string{"pki.joining", "etcd/peers.json"}) {
			t.Errorf("a join that runs has only %v left", got)
		}
	})
}
