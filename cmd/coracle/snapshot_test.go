package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/cmd/coracle/bar"
)

// A restore is refused while a supervisor runs the cluster, and with an etcd of others.
func TestRestoreRefused(t *testing.T) {
	dir := t.TempDir()
	p := place{root: filepath.Join(dir, "root"), state: dir}
	progress := bar.New(t.Output(), "restore")
	lock, err := hold(p.supervisor())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := restoreSnapshot(t.Context(), p, progress, "file"); err == nil ||
		!strings.Contains(err.Error(), "nothing was changed: the cluster runs: 'coracle down --root "+p.root) {
		t.Errorf("error %v", err)
	}
	_ = lock.Close()
	if err := (upOptions{Etcd: []string{"https://10.0.0.9:2379"}}).remember(p); err != nil {
		t.Fatal(err)
	}
	for name, act := range map[string]func() error{
		"restore": func() error { _, err := restoreSnapshot(t.Context(), p, progress, "file"); return err },
		"save":    func() error { _, err := saveSnapshot(t.Context(), p, progress, "file"); return err },
	} {
		if err := act(); err == nil || !strings.Contains(err.Error(), "the etcd at https://10.0.0.9:2379: use 'etcdctl snapshot' there") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// restoring has coracle-kube restore a snapshot with these settings, as its package snapshot does.
// It is killed when the restore is decided, or ends.
func restoring(t *testing.T, p place, killed bool, name, settings string) {
	t.Helper()
	dir := t.TempDir()
	intent := fmt.Sprintf(`{"keep":%q,"settings":%s}`, name, settings)
	script := fmt.Sprintf("#!/bin/sh\ncd %s\nmkdir -p restore etcd %s\necho '%s' >restore/intent.json\n", p.kubeRoot(), name, intent)
	if killed {
		script += "kill -KILL $$\n"
	}
	script += fmt.Sprintf("mv restore/intent.json restored.json\nrmdir restore\necho '{\"result\":{\"kept\":\"%s/%s\",\"settings\":%s}}'\n",
		p.kubeRoot(), name, settings)
	if err := os.WriteFile(filepath.Join(dir, "coracle-kube"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// Regression: after a restore up refused the network of the snapshot's Services, and told to remove
// the data.
func TestUpFollowsARestore(t *testing.T) {
	saved := upOptions{ServiceCIDR: "10.112.0.0/16", Node: "boat", PodRanges: []string{"10.86.0.0/16", "fd86::/48"}}
	settings, err := json.Marshal(saved.forSnapshot())
	if err != nil {
		t.Fatal(err)
	}
	snapshot := string(settings)
	for name, killed := range map[string]bool{"restored": false, "killed when it was decided": true} {
		t.Run(name, func(t *testing.T) {
			p := place{root: t.TempDir(), state: t.TempDir()}
			before := upOptions{
				Port: 7443, ServiceCIDR: "10.97.0.0/16", ClusterDomain: "old.example", Node: "pier", PodRanges: []string{"10.85.0.0/16"},
				ClusterDNS: []string{"10.97.0.53", "192.0.2.53"}, // one of its network, and one elsewhere
			}
			remember(t, p, before)
			if err := os.MkdirAll(filepath.Join(p.kubeRoot(), "etcd"), 0o700); err != nil {
				t.Fatal(err)
			}
			up := func(given ...string) (*upRun, error) {
				u := &upRun{place: p, o: &upOptions{ServiceCIDR: defaultServices, Node: "host"}, last: remembered(p)}
				for flag, value := range map[string]*string{"service-cidr": &u.o.ServiceCIDR, "node-name": &u.o.Node} {
					if i := slices.Index(given, flag); i >= 0 {
						*value = given[i+1]
					}
				}
				u.o.follow(u.last, func(flag string) bool { return slices.Contains(given, flag) })
				var err error
				onOtherMachine(t, func() error { err = u.checkServiceRange(); return nil })
				return u, err
			}
			if _, err := up("service-cidr", "10.112.0.0/16"); err == nil || !strings.Contains(err.Error(), "have addresses of 10.97.0.0/16") {
				t.Fatalf("before the restore: %v: nothing is tested", err)
			}
			restoring(t, p, killed, "first", snapshot)
			facts, err := restoreSnapshot(t.Context(), p, bar.New(t.Output(), "restore"), "file")
			if killed != (err != nil) || !killed && facts.Up != "coracle up"+p.flags() {
				t.Fatalf("restore: %+v, %v", facts, err)
			}
			u, err := up()
			if o := u.o; err != nil || o.ServiceCIDR != "10.112.0.0/16" || o.Node != "boat" || o.ClusterDomain != "" || o.Port != 7443 ||
				!slices.Equal(o.ClusterDNS, []string{"192.0.2.53"}) || !slices.Equal(o.PodCIDR, saved.PodRanges) ||
				!slices.Equal(o.PodRanges, saved.PodRanges) {
				t.Errorf("up has %+v, %v", o, err)
			}
			remember(t, p, *u.o) // as up does, before the cluster's program finishes the restore
			for range 2 {        // and again
				remember(t, p, *u.o)
				kept, err := os.ReadFile(filepath.Join(p.kubeRoot(), "first", "up.json"))
				if err != nil || !strings.Contains(string(kept), "10.97.0.0/16") {
					t.Errorf("the settings of before are %s, %v", kept, err)
				}
			}
			if _, err := up("service-cidr", "10.97.0.0/16"); err == nil || !strings.Contains(err.Error(), "have addresses of 10.112.0.0/16") {
				t.Errorf("with the network of before: %v", err)
			}
			// A name that is given later stays, also when the restore is finished only now.
			if u, err = up("node-name", "ship"); err != nil {
				t.Fatal(err)
			}
			remember(t, p, *u.o)
			if killed {
				if err := os.Rename(filepath.Join(p.kubeRoot(), "restore", "intent.json"), filepath.Join(p.kubeRoot(), "restored.json")); err != nil {
					t.Fatal(err)
				}
			}
			if u, err = up(); err != nil || u.o.Node != "ship" || u.o.ServiceCIDR != "10.112.0.0/16" {
				t.Errorf("up has %+v, %v", u.o, err)
			}
			restoring(t, p, false, "second", snapshot)
			if _, err := restoreSnapshot(t.Context(), p, bar.New(t.Output(), "restore"), "file"); err != nil {
				t.Fatal(err)
			}
			if got := remembered(p); got.Node != "boat" {
				t.Errorf("after another restore: %+v", got)
			}
		})
	}
}

// Regression: the advice was to end a cluster in our --root, when one with another root has our
// --state.
func TestWhichClusterRuns(t *testing.T) {
	p := place{root: "/srv/coracle", state: "/run/coracle"}
	for _, test := range []struct{ root, want, not string }{
		{
			"/var/lib/coracle", "the cluster in /var/lib/coracle runs with --state /run/coracle: give the one in /srv/coracle another --state",
			"down --root",
		},
		{"/srv/coracle", "the cluster runs: 'coracle down --root /srv/coracle' first", "another"},
	} {
		supervisor := exec.Command("sh", "-c", "echo; read end; exit", "supervise", "--root", test.root)
		in, err := supervisor.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := supervisor.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := supervisor.Start(); err != nil {
			t.Fatal(err)
		}
		// A program's arguments are empty for a moment while it is executed.
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if err := p.runs(supervisor.Process.Pid); !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), test.not) {
			t.Errorf("%s: %v", test.root, err)
		}
		_ = in.Close()
		_ = supervisor.Wait()
	}
}

func TestSnapshotResult(t *testing.T) {
	var out bytes.Buffer
	progress := bar.New(&out, "save")
	facts, err := snapshotResult(strings.NewReader(`{"done":1,"total":3}{"done":2,"total":3}{"result":{"etcd":"3.6","kept":"/x"}}`), progress)
	if err != nil || facts.Etcd != "3.6" || facts.Kept != "/x" {
		t.Errorf("%+v, %v", facts, err)
	}
	if progress.End(); !strings.HasPrefix(out.String(), "save: 2B of 3B") {
		t.Errorf("progress %q", out.String())
	}
	if _, err := snapshotResult(strings.NewReader(`{"done":1}`), progress); !errors.Is(err, errNoResult) {
		t.Errorf("without a result: %v", err)
	}
	if err := complaint("noise\ncoracle-kube: it is damaged\n", errors.New("exit status 1")); err.Error() != "it is damaged" {
		t.Errorf("complaint %v", err)
	}
	if err := complaint("killed", errors.New("signal")); err.Error() != "signal: killed" {
		t.Errorf("complaint %v", err)
	}
}

// An address of the DNS stays as long as it is one of the restored Services' networks.
func TestRestoredNetworksKeepTheirDNS(t *testing.T) {
	for services, want := range map[string][]string{
		"10.97.0.0/16,fd97::/112": {"10.97.0.53", "192.0.2.53"}, "10.98.0.0/16": {"192.0.2.53"},
	} {
		p := place{root: t.TempDir()}
		restored := `{"keep": "first", "settings": {"service-cidr": "` + services + `"}}`
		err := errors.Join(os.MkdirAll(p.kubeRoot(), 0o700),
			os.WriteFile(filepath.Join(p.kubeRoot(), "restored.json"), []byte(restored), 0o600))
		if err != nil {
			t.Fatal(err)
		}
		o := upOptions{ServiceCIDR: "10.97.0.0/16", ClusterDNS: []string{"10.97.0.53", "192.0.2.53"}}
		o.followRestored(p)
		if o.ServiceCIDR != services || !slices.Equal(o.ClusterDNS, want) {
			t.Errorf("%s: %+v, want the DNS %v", services, o, want)
		}
	}
}
