package snapshot

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/coracle-project/coracle/cluster/apiserver/dataversion"
	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
)

func TestSaveRefuses(t *testing.T) {
	root := cluster(t, "old")
	t.Run("a file that exists", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Save(t.Context(), root, root, file, Facts{}, nothing, silent)
		if err == nil || !strings.Contains(err.Error(), "choose another name") ||
			readFile(t, file) != "mine" {
			t.Errorf("error %v, content %s", err, readFile(t, file))
		}
		if err := publish(filepath.Join(root, keys[0]), file); !errors.Is(err, fs.ErrExist) || readFile(t, file) != "mine" {
			t.Errorf("one that was made meanwhile: %v", err)
		}
		f, name, err := newFile(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := name.publish(file); !errors.Is(err, fs.ErrExist) || readFile(t, file) != "mine" {
			t.Errorf("one that was made meanwhile: %v", err)
		}
	})
	t.Run("no cluster", func(t *testing.T) {
		dir := t.TempDir()
		if _, err := Save(t.Context(), filepath.Join(dir, "root"), dir, filepath.Join(dir, "file"), Facts{}, nothing, silent); err == nil ||
			!strings.Contains(err.Error(), "no cluster's data") {
			t.Errorf("error %v", err)
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("it has left %v", left)
		}
	})
	t.Run("a member that is stopped", func(t *testing.T) {
		member := cluster(t, "member")
		if err := (etcd.Peers{Name: "one", URL: "https://127.0.0.1:2380"}).Write(member); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "file")
		_, err := Save(t.Context(), member, filepath.Join(member, "run"), file, Facts{}, nothing, silent)
		if err == nil || !strings.Contains(err.Error(), "save on a control-plane node that runs") ||
			!strings.Contains(err.Error(), "copy "+filepath.Join(member, "etcd")) {
			t.Error(err)
		}
	})
	t.Run("cut off", func(t *testing.T) {
		dir := t.TempDir()
		f, name, err := newFile(filepath.Join(dir, "file"))
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		name.drop()
		ctx, cancel := context.WithCancel(t.Context())
		_, err = Save(ctx, root, root, filepath.Join(dir, "file"), Facts{}, func(int64, int64) {
			// A kill at this moment would leave nothing, where the file system knows files without
			// names.
			if written, _ := os.ReadDir(dir); (len(written) == 0) != name.unnamed {
				t.Errorf("what is written has these names: %v", written)
			}
			cancel()
		}, silent)
		if left, _ := os.ReadDir(dir); err == nil || len(left) != 0 {
			t.Errorf("error %v, and it has left %v", err, left)
		}
	})
}

// Regression: with the --state of another cluster, that one's objects were saved with our keys.
func TestSaveOfAnotherCluster(t *testing.T) {
	ours, other := cluster(t, "ours"), cluster(t, "other")
	authorities := map[string]string{}
	for _, name := range keys {
		authorities["ours"+name] = readFile(t, filepath.Join(ours, name))
	}
	saved := func(what, state string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "file")
		if _, err := Save(t.Context(), ours, state, file, Facts{}, nothing, silent); err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		root := shortDir(t)
		if _, err := restore(t, root, file); err != nil {
			t.Errorf("%s: %v", what, err)
		} else if got := says(t, root, authorities); got != "ours" {
			t.Errorf("%s: the objects are %s's", what, got)
		}
	}
	theirState := filepath.Join(other, "run")
	with(t, other, func(*clientv3.Client) { saved("ours does not run", theirState) })

	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), serveRoot+"="+ours)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = in.Close(), cmd.Wait() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "serves\n" {
		t.Fatalf("%s, %v", line, err)
	}
	saved("ours runs", filepath.Join(ours, "run"))
	refused := func(state, want string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "file")
		_, err := Save(t.Context(), ours, state, file, Facts{}, nothing, silent)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "give its --state") || exists(file) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	with(t, other, func(*clientv3.Client) { refused(theirState, "is of another cluster than that in "+ours) })
	refused(theirState, fmt.Sprintf("process %d runs the cluster in %s, and its etcd is not reached", cmd.Process.Pid, ours))
}

// Regression: a snapshot named the versions of the program that saved it.
func TestVersionsOfTheData(t *testing.T) {
	root := cluster(t, "old")
	for noted, want := range map[string]dataversion.Versions{
		"": {Coracle: "v1.0.0", Kubernetes: dataversion.Own("").Kubernetes},
		`{"coracle":"v1.7.0","kubernetes":"1.99"}`: {Coracle: "v1.7.0", Kubernetes: "1.99"},
		"no JSON": {Coracle: "v1.0.0", Kubernetes: dataversion.Own("").Kubernetes},
	} {
		with(t, root, func(c *clientv3.Client) {
			if noted != "" {
				if _, err := c.Put(t.Context(), dataversion.Key, noted); err != nil {
					t.Fatal(err)
				}
			}
		})
		file := filepath.Join(t.TempDir(), "file")
		if _, err := Save(t.Context(), root, root, file, Facts{Coracle: "v1.0.0"}, nothing, silent); err != nil {
			t.Fatal(err)
		}
		with(t, root, func(c *clientv3.Client) { _, _ = c.Delete(t.Context(), dataversion.Key) })
		f, err := Check(file, nothing)
		if err != nil || f.Coracle != want.Coracle || f.Kubernetes != want.Kubernetes || f.Etcd != etcd.Version {
			t.Errorf("%q: %+v, %v", noted, f, err)
		}
		if _, err := restore(t, cluster(t, "other"), file); errors.Is(err, dataversion.ErrNewer) != (want.Kubernetes == "1.99") {
			t.Errorf("%q: restore: %v", noted, err)
		}
	}
}
