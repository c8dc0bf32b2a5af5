package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A purge while a CSI driver has volumes on the node does nothing, and names them.
func TestPurgeOfCSIVolumes(t *testing.T) {
	for name, record := range map[string]struct{ path, content, want string }{
		"staged": {
			"plugins/kubernetes.io/csi/d.example/0123/" + csiRecord,
			`{"specVolID":"pv-1","volumeHandle":"h","driverName":"d.example"}`, `"pv-1" of driver "d.example"`,
		},
		"block": {
			"plugins/kubernetes.io/csi/volumeDevices/pv-2/data/" + csiRecord, `{"volumeHandle":"h","driverName":"d.example"}`,
			`"h" of driver "d.example"`,
		},
		"published": {
			"pods/u/volumes/kubernetes.io~csi/v/" + csiRecord, `{"specVolID":"v","volumeHandle":"h","driverName":"d.example"}`,
			`"v" of driver`,
		},
		"unreadable": {"pods/u/plugins/kubernetes.io~csi/v/" + csiRecord, "", "pods/u/plugins/kubernetes.io~csi/v"},
	} {
		t.Run(name, func(t *testing.T) {
			p, path := placeWithRecord(t, record.path)
			if err := os.WriteFile(path, []byte(record.content), 0o600); err != nil {
				t.Fatal(err)
			}
			alone(t, func() {
				for _, volumes := range []bool{false, true} {
					err := down(t.Context(), p, true, volumes, io.Discard)
					if err == nil || !strings.Contains(err.Error(), "has done nothing") || !strings.Contains(err.Error(), record.want) {
						t.Errorf("purge: %v, want %q", err, record.want)
					}
				}
				if err := down(t.Context(), p, false, false, io.Discard); err != nil {
					t.Errorf("without --purge: %v", err)
				}
				if _, err := os.Stat(path); err != nil {
					t.Error("the record was deleted:", err)
				}
				if err := os.Remove(path); err != nil {
					t.Error(err)
				}
				if err := down(t.Context(), p, true, false, io.Discard); err != nil {
					t.Errorf("purge without volumes: %v", err)
				}
			})
		})
	}
}

// One that is mounted while down waits for the cluster process is kept, too.
func TestPurgeOfACSIVolumeThatIsBeingMounted(t *testing.T) {
	p, path := placeWithRecord(t, "plugins/kubernetes.io/csi/d.example/0123/"+csiRecord)
	ended := startHolder(t, p, `echo x >"$1"`, path)
	alone(t, func() {
		err := down(t.Context(), p, true, false, io.Discard)
		if err == nil || !strings.Contains(err.Error(), "down has stopped everything, and deleted nothing: volumes of CSI drivers") {
			t.Errorf("down: %v", err)
		}
		if err := <-ended; err != nil {
			t.Error("the process:", err)
		}
		if _, err := os.Stat(path); err != nil {
			t.Error("the record was deleted:", err)
		}
	})
}

// placeWithRecord is a place with the directory of a record.
func placeWithRecord(t *testing.T, record string) (p place, path string) {
	t.Helper()
	dir := t.TempDir()
	p = place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	path = filepath.Join(p.kubelet(), record)
	for _, dir := range []string{p.state, filepath.Dir(path)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	remember(t, p, upOptions{Bind: "127.0.0.1", Port: 6443, ServiceCIDR: "10.112.0.0/16"})
	return p, path
}
