package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A restore is refused while a supervisor runs the cluster, and with an etcd of others.
func TestRestoreRefused(t *testing.T) {
	dir := t.TempDir()
	p := place{root: filepath.Join(dir, "root"), state: dir}
	bar := newProgress(t.Output(), "restore")
	lock, err := hold(p.supervisor())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := restoreSnapshot(t.Context(), p, bar, "file"); err == nil || !strings.Contains(err.Error(), "the cluster runs; nothing was changed: 'coracle down --root "+p.root) {
		t.Errorf("error %v", err)
	}
	_ = lock.Close()
	if err := (upOptions{Etcd: []string{"https://10.0.0.9:2379"}}).remember(p); err != nil {
		t.Fatal(err)
	}
	for name, act := range map[string]func() error{
		"restore": func() error { _, err := restoreSnapshot(t.Context(), p, bar, "file"); return err },
		"save":    func() error { _, err := saveSnapshot(t.Context(), p, bar, "file"); return err },
	} {
		if err := act(); err == nil || !strings.Contains(err.Error(), "the etcd at https://10.0.0.9:2379: use 'etcdctl snapshot' there") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// What up has to be given for the restored cluster.
func TestSettingsOfASnapshot(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		now  upOptions
		was  map[string]string
		want string
	}{
		"nothing known": {upOptions{}, nil, ""},
		"defaults":      {upOptions{}, map[string]string{"service-cidr": defaultServices, "node-name": strings.ToLower(host)}, ""},
		"the same":      {upOptions{ServiceCIDR: "10.1.0.0/16", Node: "a"}, map[string]string{"service-cidr": "10.1.0.0/16", "node-name": "a"}, ""},
		"another machine": {
			upOptions{},
			map[string]string{"service-cidr": "10.1.0.0/16", "node-name": "boat", "cluster-domain": "boat.example"},
			" --service-cidr 10.1.0.0/16 --cluster-domain boat.example --node-name boat",
		},
	} {
		if got := test.now.different(test.was); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestSnapshotResult(t *testing.T) {
	bar := newProgress(&bytes.Buffer{}, "save")
	facts, err := snapshotResult(strings.NewReader(`{"done":1,"total":2}{"done":2,"total":2}{"result":{"etcd":"3.6","kept":"/x"}}`), bar)
	if err != nil || facts.Etcd != "3.6" || facts.Kept != "/x" || bar.done != 2 || bar.total != 2 {
		t.Errorf("%+v, %v, %d of %d", facts, err, bar.done, bar.total)
	}
	if _, err := snapshotResult(strings.NewReader(`{"done":1}`), bar); !errors.Is(err, errNoResult) {
		t.Errorf("without a result: %v", err)
	}
	if err := complaint("noise\ncoracle-kube: it is damaged\n", errors.New("exit status 1")); err.Error() != "it is damaged" {
		t.Errorf("complaint %v", err)
	}
	if err := complaint("killed", errors.New("signal")); err.Error() != "signal: killed" {
		t.Errorf("complaint %v", err)
	}
}
