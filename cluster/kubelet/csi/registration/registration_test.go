package registration

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/csi/client"
)

const driverName = "driver.example.com"

func TestOnlySocketsAreFound(t *testing.T) {
	r := New(Options{RootDir: t.TempDir()})
	at := func(name string) string { return filepath.Join(r.Dir(), name) }
	if found, err := r.findSockets(); err != nil || len(found) != 0 {
		t.Errorf("without a directory: sockets %v, %v", found, err)
	}
	if err := errors.Join(
		os.MkdirAll(at("dir"), 0o750), os.WriteFile(at("file"), nil, 0o600), os.Symlink("/dev/null", at("link")),
	); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a.sock", ".hidden"} {
		l, err := net.Listen("unix", at(name))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	found, err := r.findSockets()
	if _, is := found["a.sock"]; err != nil || !is || len(found) != 1 {
		t.Errorf("sockets %v, %v", found, err)
	}
}

func TestAnotherOrderOfTopologyKeysIsNoChange(t *testing.T) {
	object := &storagev1.CSINode{}
	d := &driver{Driver: client.Driver{Name: driverName, NodeID: "x", Topology: map[string]string{"a": "", "b": ""}}}
	setDriver(object, d)
	slices.Reverse(object.Spec.Drivers[0].TopologyKeys)
	d.Limit = 3
	setDriver(object, d)
	if got := object.Spec.Drivers; len(got) != 1 || !slices.Equal(got[0].TopologyKeys, []string{"b", "a"}) || *got[0].Allocatable.Count != 3 {
		t.Errorf("entries: %+v", got)
	}
}

// FuzzRegistration reads what registrars may say.
func FuzzRegistration(f *testing.F) {
	f.Add("CSIPlugin", driverName, "/var/lib/kubelet/plugins/x/csi.sock", "1.0.0")
	f.Add("CSIPlugin", "../../x", "unix:///../etc", "1.x")
	r := New(Options{RootDir: "/root-dir"})
	f.Fuzz(func(t *testing.T, kind, name, endpoint, version string) {
		d, err := r.describe(&socket{path: "/root-dir/plugins_registry/a.sock"},
			&registerapi.PluginInfo{Type: kind, Name: name, Endpoint: endpoint, SupportedVersions: []string{version}})
		if err != nil {
			return
		}
		if filepath.Base(d.Name) != d.Name || d.Name == ".." || !filepath.IsAbs(d.Endpoint) || filepath.Clean(d.Endpoint) != d.Endpoint {
			t.Errorf("accepted %+v", d)
		}
	})
}
